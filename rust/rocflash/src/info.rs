//! What the library is, and what it found on this machine.
use crate::error::{check, text, Result};
use rocflash_sys as sys;

/// The library's version: "0.1.0".
pub fn version() -> String {
    // SAFETY: takes nothing, gives a string that lives as long as the library.
    text(unsafe { sys::rocflash_version() })
}

/// A number of the library's that is never negative.
fn count(n: i32) -> usize {
    usize::try_from(n).unwrap_or(0)
}

/// The index of the entry after those that are there.
fn index<T>(entries: &[T]) -> i32 {
    i32::try_from(entries.len()).unwrap_or(i32::MAX)
}

/// What the library can do, whatever the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest head size of q and k, and of v.
    pub max_head_dim: usize,
    /// Whether there is a backward.
    pub has_backward: bool,
    /// The threads of a call that does not say how many.
    pub default_threads: usize,
    /// Dropout's probability is honoured to the nearest 1 / this.
    pub dropout_steps: usize,
}

/// Asks for the limits.
pub fn limits() -> Result<Limits> {
    let mut raw = sys::rocflash_limits::new();
    // SAFETY: the struct is as large as it says.
    check(unsafe { sys::rocflash_query_limits(&mut raw) })?;
    Ok(Limits {
        max_head_dim: count(raw.max_head_dim),
        has_backward: raw.has_backward != 0,
        default_threads: count(raw.default_threads),
        dropout_steps: count(raw.dropout_steps),
    })
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// The CPU.
    Cpu,
    /// AMD GPUs.
    Hip,
    /// NVIDIA GPUs.
    Cuda,
}

/// A device that the library can run on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// What kind.
    pub platform: Platform,
    /// Its number among its kind.
    pub ordinal: usize,
    /// "AMD EPYC", "AMD Instinct MI300X".
    pub name: String,
    /// The code path taken: "avx512", "gfx942".
    pub arch: String,
    /// Instruction sets and the like that were found, separated by blanks.
    pub features: String,
    /// CPUs or compute units.
    pub units: usize,
}

/// The devices that the library has kernels for; the first is the CPU.
pub fn devices() -> Vec<DeviceInfo> {
    let mut all = Vec::new();
    let mut raw = sys::rocflash_device::new();
    // SAFETY: the struct is as large as it says. Past the last device the call is refused.
    while unsafe { sys::rocflash_query_device(index(&all), &mut raw) } == sys::ROCFLASH_OK {
        all.push(DeviceInfo {
            platform: match raw.device.device_type {
                sys::kDLROCM => Platform::Hip,
                sys::kDLCUDA => Platform::Cuda,
                _ => Platform::Cpu,
            },
            ordinal: count(raw.device.device_id),
            name: text(raw.name),
            arch: text(raw.arch),
            features: text(raw.features),
            units: count(raw.units),
        });
    }
    all
}

/// A GPU driver that the library looked for, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverInfo {
    /// "hip" or "cuda".
    pub name: String,
    /// The file that was opened, or "".
    pub library: String,
    /// A sentence: why it is or is not used.
    pub reason: String,
    /// Whether the library uses it.
    pub in_use: bool,
}

/// The GPU drivers that were looked for.
pub fn drivers() -> Vec<DriverInfo> {
    let mut all = Vec::new();
    let mut raw = sys::rocflash_driver::new();
    // SAFETY: the struct is as large as it says. Past the last driver the call is refused.
    while unsafe { sys::rocflash_query_driver(index(&all), &mut raw) } == sys::ROCFLASH_OK {
        all.push(DriverInfo {
            name: text(raw.name),
            library: text(raw.library),
            reason: text(raw.reason),
            in_use: raw.in_use != 0,
        });
    }
    all
}

/// A GPU architecture that the library carries kernels for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetInfo {
    /// "gfx942", "sm_80".
    pub arch: String,
    /// Whose schedule its kernels follow: "cdna3", "nvidia".
    pub family: String,
    /// "hip" or "cuda".
    pub driver: String,
}

/// The GPU architectures that the library carries kernels for, whether or not there is such a GPU.
pub fn targets() -> Vec<TargetInfo> {
    let mut all = Vec::new();
    let mut raw = sys::rocflash_target::new();
    // SAFETY: the struct is as large as it says. Past the last target the call is refused.
    while unsafe { sys::rocflash_query_target(index(&all), &mut raw) } == sys::ROCFLASH_OK {
        all.push(TargetInfo { arch: text(raw.arch), family: text(raw.family), driver: text(raw.driver) });
    }
    all
}
