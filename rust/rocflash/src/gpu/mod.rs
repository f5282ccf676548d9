//! GPUs: devices, streams, and buffers that belong to a stream.
//!
//! Nothing of ROCm or CUDA is linked. The driver is opened at run time, the one that the rocflash library found
//! itself: what the process has already loaded, then the versioned names, then the plain one;
//! `ROCFLASH_HIP_LIBRARY` and `ROCFLASH_CUDA_LIBRARY` name another.
//!
//! ```no_run
//! use rocflash::{gpu::Device, Executor, Options, Outputs};
//!
//! let stream = Device::hip(0)?.stream()?;
//! let shape = [1, 128, 8, 64];
//! let q = stream.upload(&vec![0.5f32; 128 * 8 * 64])?;
//! let mut out = stream.zeros::<f32>(q.len())?;
//! let (view, options) = (q.view(&shape)?, Options::new().causal());
//! stream.clone().forward(&view, &view, &view, &options, Outputs::new(out.view_mut(&shape)?))?;
//! let result: Vec<f32> = out.download()?;
//! # Ok::<(), rocflash::Error>(())
//! ```
mod buffer;
mod driver;
mod pool;
mod stream;

pub use buffer::Buffer;
pub use stream::Stream;

use crate::error::{Error, ErrorKind, Result};
use crate::info::{devices, drivers, DeviceInfo, Platform};
use driver::{Driver, Handle};
use rocflash_sys as sys;
use std::ffi::c_int;

/// A GPU.
#[derive(Clone, Copy)]
pub struct Device {
    driver: &'static Driver,
    handle: Handle,
    /// As drivers and DLPack count.
    number: c_int,
}

impl Device {
    /// An AMD GPU, by its number.
    pub fn hip(ordinal: usize) -> Result<Self> {
        Self::open(Platform::Hip, ordinal)
    }

    /// An NVIDIA GPU, by its number.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Self::open(Platform::Cuda, ordinal)
    }

    /// A GPU of either kind.
    pub fn open(platform: Platform, ordinal: usize) -> Result<Self> {
        let driver = Driver::get(platform)?;
        let count = driver.device_count()?;
        match c_int::try_from(ordinal) {
            Ok(number) if ordinal < count => Ok(Self { driver, handle: driver.handle(number)?, number }),
            _ => Err(Error::invalid(format!("device {ordinal}: there are {count} {platform:?} devices"))),
        }
    }

    /// How many GPUs of this kind there are.
    pub fn count(platform: Platform) -> Result<usize> {
        Driver::get(platform)?.device_count()
    }

    /// Of which kind it is.
    pub fn platform(&self) -> Platform {
        self.driver.platform()
    }

    /// Its number.
    pub fn ordinal(&self) -> usize {
        usize::try_from(self.number).expect("`open` takes no negative number")
    }

    /// Its name in the driver's words.
    pub fn name(&self) -> Result<String> {
        self.driver.device_name(self.number)
    }

    /// What the library knows of it, or why the library has no kernels for it.
    pub fn attention(&self) -> Result<DeviceInfo> {
        let known =
            devices().into_iter().find(|d| d.platform == self.platform() && d.ordinal == self.ordinal());
        known.ok_or_else(|| {
            let name = if self.platform() == Platform::Hip { "hip" } else { "cuda" };
            let why = drivers().into_iter().find(|d| d.name == name).map(|d| d.reason).unwrap_or_default();
            Error::new(ErrorKind::Unsupported, format!("{name} device {}: {why}", self.number))
        })
    }

    /// A new stream on it.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(*self)
    }

    fn dlpack(&self) -> sys::DLDevice {
        let device_type = if self.platform() == Platform::Hip { sys::kDLROCM } else { sys::kDLCUDA };
        sys::DLDevice { device_type, device_id: self.number }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} device {}", self.platform(), self.number)
    }
}
