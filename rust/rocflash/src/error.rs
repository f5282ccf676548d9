//! What went wrong, in the library's own words.
use rocflash_sys as sys;
use std::ffi::CStr;

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call makes no sense; the message names the argument, its value and what is allowed.
    InvalidArgument,
    /// It makes sense, but this library, backend or device cannot do it.
    Unsupported,
    /// The system or a device refused memory or threads.
    OutOfMemory,
    /// A driver failed; the message carries its words.
    Device,
    /// A defect of the library.
    Internal,
}

/// A refused or failed call. After `InvalidArgument` and `Unsupported` nothing has been written.
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

    /// What kind of failure it is.
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

/// Turns a status into a result; the message is this thread's last one.
pub(crate) fn check(status: sys::rocflash_status) -> Result<()> {
    let kind = match status {
        sys::ROCFLASH_OK => return Ok(()),
        sys::ROCFLASH_INVALID_ARGUMENT => ErrorKind::InvalidArgument,
        sys::ROCFLASH_UNSUPPORTED => ErrorKind::Unsupported,
        sys::ROCFLASH_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        sys::ROCFLASH_DEVICE_ERROR => ErrorKind::Device,
        _ => ErrorKind::Internal,
    };
    // SAFETY: the library gives a string that is valid until this thread's next call.
    Err(Error::new(kind, text(unsafe { sys::rocflash_last_error() })))
}

/// A copy of one of the library's strings.
pub(crate) fn text(string: *const std::ffi::c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the library's strings end with a zero.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
