//! Errors, with the library's own messages.
use rocflash_sys as sys;
use std::ffi::CStr;

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid; the message names the argument, its value and what is allowed.
    InvalidArgument,
    /// The call is valid, but this library, backend or device does not support it.
    Unsupported,
    /// The system or a device could not provide memory or threads.
    OutOfMemory,
    /// A driver failed; the message contains the driver's error text.
    Device,
    /// A defect of the library.
    Internal,
}

/// A rejected or failed call. After `InvalidArgument` and `Unsupported` nothing has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message: which argument, its value, and what is allowed.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Converts a status into a result; the message is this thread's last error.
pub(crate) fn check(status: sys::rocflash_status) -> Result<()> {
    let kind = match status {
        sys::ROCFLASH_OK => return Ok(()),
        sys::ROCFLASH_INVALID_ARGUMENT => ErrorKind::InvalidArgument,
        sys::ROCFLASH_UNSUPPORTED => ErrorKind::Unsupported,
        sys::ROCFLASH_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        sys::ROCFLASH_DEVICE_ERROR => ErrorKind::Device,
        _ => ErrorKind::Internal,
    };
    // SAFETY: the library returns a string that is valid until this thread's next call.
    Err(Error::new(kind, text(unsafe { sys::rocflash_last_error() })))
}

/// Copies a C string of the library; null becomes an empty string.
pub(crate) fn text(string: *const std::ffi::c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the library's strings are NUL-terminated.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
