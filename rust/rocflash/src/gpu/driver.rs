//! The driver functions that buffers and streams need, resolved at run time from the shared library
//! that rocflash itself loaded. HIP and the CUDA driver API have the same signatures here, so one
//! table serves both.
use crate::error::{Error, ErrorKind, Result};
use crate::info::{drivers, Platform};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::OnceLock;

pub(super) type Address = u64;
pub(super) type StreamHandle = *mut c_void;
type Status = c_int;

/// A stream that does not synchronize with the default stream.
const NON_BLOCKING: c_uint = 1;

/// Declares the function table: field, symbol in HIP and in CUDA, signature.
macro_rules! table {
    ($($field:ident: $hip:literal, $cuda:literal, ($($type:ty),*);)*) => {
        pub(super) struct Driver {
            platform: Platform,
            error_text: ErrorText,
            context: Context,
            $($field: unsafe extern "C" fn($($type),*) -> Status,)*
            _library: Library,
        }

        impl Driver {
            fn fill(platform: Platform, library: Library) -> Result<Self> {
                let hip = platform == Platform::Hip;
                $(let $field = lookup(&library, if hip { $hip } else { $cuda })?;)*
                Ok(Self {
                    platform,
                    error_text: ErrorText::lookup(hip, &library)?,
                    context: Context::lookup(hip, &library)?,
                    $($field,)*
                    _library: library,
                })
            }
        }
    };
}

table! {
    init: c"hipInit", c"cuInit", (c_uint);
    device_count: c"hipGetDeviceCount", c"cuDeviceGetCount", (*mut c_int);
    device_name: c"hipDeviceGetName", c"cuDeviceGetName", (*mut c_char, c_int, c_int);
    allocate: c"hipMalloc", c"cuMemAlloc_v2", (*mut Address, usize);
    release: c"hipFree", c"cuMemFree_v2", (Address);
    to_device: c"hipMemcpyHtoDAsync", c"cuMemcpyHtoDAsync_v2", (Address, *const c_void, usize, StreamHandle);
    to_host: c"hipMemcpyDtoHAsync", c"cuMemcpyDtoHAsync_v2", (*mut c_void, Address, usize, StreamHandle);
    within_device: c"hipMemcpyDtoDAsync", c"cuMemcpyDtoDAsync_v2", (Address, Address, usize, StreamHandle);
    fill_bytes: c"hipMemsetD8Async", c"cuMemsetD8Async", (Address, u8, usize, StreamHandle);
    stream_create: c"hipStreamCreateWithFlags", c"cuStreamCreate", (*mut StreamHandle, c_uint);
    stream_destroy: c"hipStreamDestroy", c"cuStreamDestroy_v2", (StreamHandle);
    stream_synchronize: c"hipStreamSynchronize", c"cuStreamSynchronize", (StreamHandle);
}

fn lookup<T: Copy>(library: &Library, name: &CStr) -> Result<T> {
    // SAFETY: T is the function's type, as declared in the drivers' public headers.
    unsafe { library.get::<T>(name.to_bytes_with_nul()) }.map(|symbol| *symbol).map_err(|error| {
        Error::new(ErrorKind::Device, format!("the driver lacks {}: {error}", name.to_string_lossy()))
    })
}

enum ErrorText {
    Hip(unsafe extern "C" fn(Status) -> *const c_char),
    Cuda(unsafe extern "C" fn(Status, *mut *const c_char) -> Status),
}

impl ErrorText {
    fn lookup(hip: bool, library: &Library) -> Result<Self> {
        Ok(if hip {
            Self::Hip(lookup(library, c"hipGetErrorString")?)
        } else {
            Self::Cuda(lookup(library, c"cuGetErrorString")?)
        })
    }

    fn of(&self, status: Status) -> String {
        let mut text = std::ptr::null();
        // SAFETY: both accept any status and return a static string or null.
        unsafe {
            match self {
                Self::Hip(get) => text = get(status),
                Self::Cuda(get) => _ = get(status, &mut text),
            }
        }
        crate::error::text(text)
    }
}

/// HIP has a current device per thread, CUDA a current context per thread.
enum Context {
    Hip {
        get: unsafe extern "C" fn(*mut c_int) -> Status,
        set: unsafe extern "C" fn(c_int) -> Status,
    },
    Cuda {
        get: unsafe extern "C" fn(*mut *mut c_void) -> Status,
        set: unsafe extern "C" fn(*mut c_void) -> Status,
        device: unsafe extern "C" fn(*mut c_int, c_int) -> Status,
        retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> Status,
    },
}

impl Context {
    fn lookup(hip: bool, library: &Library) -> Result<Self> {
        Ok(if hip {
            Self::Hip { get: lookup(library, c"hipGetDevice")?, set: lookup(library, c"hipSetDevice")? }
        } else {
            Self::Cuda {
                get: lookup(library, c"cuCtxGetCurrent")?,
                set: lookup(library, c"cuCtxSetCurrent")?,
                device: lookup(library, c"cuDeviceGet")?,
                retain: lookup(library, c"cuDevicePrimaryCtxRetain")?,
            }
        })
    }
}

/// What makes a device current: its ordinal in HIP, its primary context in CUDA, which the process
/// retains.
#[derive(Clone, Copy)]
pub(super) enum Handle {
    Hip(c_int),
    Cuda(*mut c_void),
}

// SAFETY: a context may be made current on any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Restores what was current on this thread before.
pub(super) struct Current {
    driver: &'static Driver,
    before: Option<Handle>,
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = self.driver.set_current(before);
        }
    }
}

impl Driver {
    /// The driver that rocflash itself loaded, opened once per process.
    pub(super) fn get(platform: Platform) -> Result<&'static Self> {
        static HIP: OnceLock<Result<Driver>> = OnceLock::new();
        static CUDA: OnceLock<Result<Driver>> = OnceLock::new();
        let (cell, name) = match platform {
            Platform::Hip => (&HIP, "hip"),
            Platform::Cuda => (&CUDA, "cuda"),
            Platform::Cpu => return Err(Error::invalid("the CPU has no driver; use rocflash::Cpu")),
        };
        cell.get_or_init(|| Self::open(platform, name)).as_ref().map_err(Clone::clone)
    }

    fn open(platform: Platform, name: &str) -> Result<Self> {
        let found = drivers().into_iter().find(|driver| driver.name == name);
        let unsupported =
            |why: String| Err(Error::new(ErrorKind::Unsupported, format!("no {name} driver: {why}")));
        let Some(found) = found else { return unsupported("the library does not know it".into()) };
        if found.library.is_empty() {
            return unsupported(found.reason);
        }
        // SAFETY: the library has opened this file already, so its constructors have run.
        let library = match unsafe { Library::open(Some(&found.library), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => library,
            Err(error) => return unsupported(error.to_string()),
        };
        let driver = Self::fill(platform, library)?;
        // SAFETY: 0 is the only defined flag.
        driver.check("init", unsafe { (driver.init)(0) })?;
        Ok(driver)
    }

    pub(super) fn platform(&self) -> Platform {
        self.platform
    }

    fn check(&self, what: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // Both drivers return 2 for "out of memory".
        let kind = if status == 2 { ErrorKind::OutOfMemory } else { ErrorKind::Device };
        Err(Error::new(kind, format!("{what}: {} (error {status})", self.error_text.of(status))))
    }

    pub(super) fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: writes one int.
        self.check("counting devices", unsafe { (self.device_count)(&mut count) })?;
        usize::try_from(count).map_err(|_| {
            Error::new(ErrorKind::Device, format!("counting devices: the driver returned {count}"))
        })
    }

    pub(super) fn device_name(&self, number: c_int) -> Result<String> {
        const CAPACITY: c_int = 256;
        let mut name: [c_char; CAPACITY as usize] = [0; CAPACITY as usize];
        // SAFETY: writes at most CAPACITY characters, NUL-terminated.
        self.check("the device's name", unsafe { (self.device_name)(name.as_mut_ptr(), CAPACITY, number) })?;
        Ok(crate::error::text(name.as_ptr()))
    }

    pub(super) fn handle(&self, ordinal: c_int) -> Result<Handle> {
        match &self.context {
            Context::Hip { .. } => Ok(Handle::Hip(ordinal)),
            Context::Cuda { device, retain, .. } => {
                let (mut number, mut context) = (0, std::ptr::null_mut());
                // SAFETY: each writes one value.
                self.check("opening the device", unsafe { device(&mut number, ordinal) })?;
                // SAFETY: as above.
                self.check("opening the device", unsafe { retain(&mut context, number) })?;
                Ok(Handle::Cuda(context))
            }
        }
    }

    fn set_current(&self, handle: Handle) -> Result<()> {
        let status = match (&self.context, handle) {
            // SAFETY: accepts any number.
            (Context::Hip { set, .. }, Handle::Hip(number)) => unsafe { set(number) },
            // SAFETY: the context came from this driver and is retained.
            (Context::Cuda { set, .. }, Handle::Cuda(context)) => unsafe { set(context) },
            _ => unreachable!("a handle of the other driver"),
        };
        self.check("setting the current device", status)
    }

    /// Makes a device current on this thread until the returned guard is dropped.
    pub(super) fn enter(&'static self, handle: Handle) -> Result<Current> {
        let same = match (&self.context, handle) {
            (Context::Hip { get, .. }, Handle::Hip(wanted)) => {
                let mut number = -1;
                // SAFETY: writes one int.
                self.check("querying the current device", unsafe { get(&mut number) })?;
                if number == wanted {
                    Ok(())
                } else {
                    Err(Handle::Hip(number))
                }
            }
            (Context::Cuda { get, .. }, Handle::Cuda(wanted)) => {
                let mut context = std::ptr::null_mut();
                // SAFETY: writes one pointer.
                self.check("querying the current device", unsafe { get(&mut context) })?;
                if context == wanted {
                    Ok(())
                } else {
                    Err(Handle::Cuda(context))
                }
            }
            _ => unreachable!("a handle of the other driver"),
        };
        match same {
            Ok(()) => Ok(Current { driver: self, before: None }),
            Err(before) => {
                self.set_current(handle)?;
                Ok(Current { driver: self, before: Some(before) })
            }
        }
    }

    pub(super) fn allocate(&self, bytes: usize) -> Result<Address> {
        let mut address = 0;
        // SAFETY: writes one address.
        self.check(&format!("allocating {bytes} bytes"), unsafe {
            (self.allocate)(&mut address, bytes.max(1))
        })?;
        Ok(address)
    }

    /// # Safety
    /// The memory came from `allocate` and is no longer in use.
    pub(super) unsafe fn release(&self, address: Address) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("releasing memory", unsafe { (self.release)(address) })
    }

    /// # Safety
    /// Both allocations have at least `bytes` bytes. The host's stays valid until the stream is
    /// synchronized.
    pub(super) unsafe fn to_device(
        &self,
        to: Address,
        from: *const c_void,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("copying to the device", unsafe { (self.to_device)(to, from, bytes, stream) })
    }

    /// # Safety
    /// Both allocations have at least `bytes` bytes. The host's stays valid until the stream is
    /// synchronized.
    pub(super) unsafe fn to_host(
        &self,
        to: *mut c_void,
        from: Address,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("copying to the host", unsafe { (self.to_host)(to, from, bytes, stream) })
    }

    /// # Safety
    /// Both allocations have at least `bytes` bytes and do not overlap.
    pub(super) unsafe fn within_device(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("copying within the device", unsafe { (self.within_device)(to, from, bytes, stream) })
    }

    /// # Safety
    /// The allocation has at least `bytes` bytes.
    pub(super) unsafe fn zero(&self, at: Address, bytes: usize, stream: StreamHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("clearing memory", unsafe { (self.fill_bytes)(at, 0, bytes, stream) })
    }

    pub(super) fn stream_create(&self) -> Result<StreamHandle> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes one handle.
        self.check("creating a stream", unsafe { (self.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(stream)
    }

    /// # Safety
    /// The stream is alive and is not used after this.
    pub(super) unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("destroying a stream", unsafe { (self.stream_destroy)(stream) })
    }

    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("waiting for the stream", unsafe { (self.stream_synchronize)(stream) })
    }
}
