//! GPUs: devices, streams, and buffers that belong to a stream.
//!
//! The crate does not link ROCm or CUDA. It opens at run time the driver that the rocflash library
//! itself loaded: the copy that the process has already loaded, else the versioned names, else the
//! unversioned name. `ROCFLASH_HIP_LIBRARY` and `ROCFLASH_CUDA_LIBRARY` override the file name.
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
    /// The ordinal of the driver and of DLPack.
    number: c_int,
}

impl Device {
    /// Opens an AMD GPU by its ordinal.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn hip(ordinal: usize) -> Result<Self> {
        Self::open(Platform::Hip, ordinal)
    }

    /// Opens an NVIDIA GPU by its ordinal.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Self::open(Platform::Cuda, ordinal)
    }

    /// Opens a GPU of this platform by its ordinal.
    ///
    /// # Errors
    /// The platform has no usable driver, or `ordinal` is not below [`Device::count`].
    pub fn open(platform: Platform, ordinal: usize) -> Result<Self> {
        let driver = Driver::get(platform)?;
        let count = driver.device_count()?;
        match c_int::try_from(ordinal) {
            Ok(number) if ordinal < count => Ok(Self { driver, handle: driver.handle(number)?, number }),
            _ => Err(Error::invalid(format!(
                "ordinal is {ordinal}; this machine has {count} {platform:?} devices"
            ))),
        }
    }

    /// The number of GPUs of this platform.
    ///
    /// # Errors
    /// The platform has no usable driver.
    pub fn count(platform: Platform) -> Result<usize> {
        Driver::get(platform)?.device_count()
    }

    /// The platform of the device.
    pub fn platform(&self) -> Platform {
        self.driver.platform()
    }

    /// The ordinal of the device.
    ///
    /// # Panics
    /// Never: `open` rejects negative ordinals.
    pub fn ordinal(&self) -> usize {
        usize::try_from(self.number).expect("`open` rejects negative ordinals")
    }

    /// The device's name as the driver reports it.
    ///
    /// # Errors
    /// The driver failed.
    pub fn name(&self) -> Result<String> {
        self.driver.device_name(self.number)
    }

    /// The library's description of the device.
    ///
    /// # Errors
    /// The library does not support the device; the message has the reason.
    pub fn attention(&self) -> Result<DeviceInfo> {
        let known =
            devices().into_iter().find(|d| d.platform == self.platform() && d.ordinal == self.ordinal());
        known.ok_or_else(|| {
            let name = if self.platform() == Platform::Hip { "hip" } else { "cuda" };
            let why = drivers().into_iter().find(|d| d.name == name).map(|d| d.reason).unwrap_or_default();
            Error::new(ErrorKind::Unsupported, format!("{name} device {}: {why}", self.number))
        })
    }

    /// Creates a stream on the device.
    ///
    /// # Errors
    /// The driver failed.
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
