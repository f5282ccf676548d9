//! Version, limits, devices, drivers and kernel targets of the library.
use crate::error::{check, text, Result};
use rocflash_sys as sys;

/// The library's version, such as "0.1.0".
pub fn version() -> String {
    // SAFETY: has no arguments, returns a string that lives as long as the library.
    text(unsafe { sys::rocflash_version() })
}

/// Converts a count of the C ABI, which is never negative.
fn count(n: i32) -> usize {
    usize::try_from(n).unwrap_or(0)
}

/// The index of the next entry to query.
fn index<T>(entries: &[T]) -> i32 {
    i32::try_from(entries.len()).unwrap_or(i32::MAX)
}

/// The limits of the library on any device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest head dim of q and k, and of v.
    pub max_head_dim: usize,
    /// Whether backward is supported.
    pub has_backward: bool,
    /// The number of threads of a call that does not set it.
    pub default_threads: usize,
    /// Dropout's probability is rounded to a multiple of 1 / `dropout_steps`.
    pub dropout_steps: usize,
}

/// Queries the limits.
///
/// # Errors
/// An error of the library.
pub fn limits() -> Result<Limits> {
    let mut raw = sys::rocflash_limits::new();
    // SAFETY: the struct's size field is correct.
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
    /// The kind of the device.
    pub platform: Platform,
    /// The index among the devices of its kind.
    pub ordinal: usize,
    /// "AMD EPYC", "AMD Instinct MI300X".
    pub name: String,
    /// The selected code path: "avx512", "gfx942".
    pub arch: String,
    /// The detected features, such as instruction sets, space-separated.
    pub features: String,
    /// CPUs or compute units.
    pub units: usize,
}

/// The devices that the library has kernels for; the first is the CPU.
pub fn devices() -> Vec<DeviceInfo> {
    let mut all = Vec::new();
    let mut raw = sys::rocflash_device::new();
    // SAFETY: the struct's size field is correct. Past the last device the call returns an error.
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

/// A GPU driver that the library searched for, and the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverInfo {
    /// "hip" or "cuda".
    pub name: String,
    /// The file that was opened, or "".
    pub library: String,
    /// Why the driver is or is not used, as a sentence.
    pub reason: String,
    /// Whether the library uses it.
    pub in_use: bool,
}

/// The GPU drivers that the library searched for.
pub fn drivers() -> Vec<DriverInfo> {
    let mut all = Vec::new();
    let mut raw = sys::rocflash_driver::new();
    // SAFETY: the struct's size field is correct. Past the last driver the call returns an error.
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

/// A GPU architecture that the library has kernels for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetInfo {
    /// "gfx942", "sm_80".
    pub arch: String,
    /// The family that defines the schedule of its kernels: "cdna3", "nvidia".
    pub family: String,
    /// "hip" or "cuda".
    pub driver: String,
}

/// The GPU architectures that the library has kernels for, whether or not such a GPU is present.
pub fn targets() -> Vec<TargetInfo> {
    let mut all = Vec::new();
    let mut raw = sys::rocflash_target::new();
    // SAFETY: the struct's size field is correct. Past the last target the call returns an error.
    while unsafe { sys::rocflash_query_target(index(&all), &mut raw) } == sys::ROCFLASH_OK {
        all.push(TargetInfo { arch: text(raw.arch), family: text(raw.family), driver: text(raw.driver) });
    }
    all
}
