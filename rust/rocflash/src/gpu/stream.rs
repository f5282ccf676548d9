//! A stream, which orders all work on its buffers.
use super::buffer::Buffer;
use super::driver::StreamHandle;
use super::pool::Pool;
use super::Device;
use crate::call::{self, Call, Execute, ResidenceOf};
use crate::dtype::{DType, Element};
use crate::error::{ErrorKind, Result};
use crate::layout::Layout;
use crate::view::{RawView, Residence, View, ViewMut};
use rocflash_sys as sys;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A GPU stream. Clones refer to the same stream.
///
/// Its [`Executor`](crate::Executor) functions enqueue work and return. [`Buffer::download`] and
/// [`Stream::synchronize`] wait for it.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    handle: StreamHandle,
    owned: bool,
    id: u64,
    /// The workspace, reused by all calls. Locked while a call is enqueued, because a call may
    /// launch several kernels that pass data through it.
    workspace: Mutex<Option<Memory>>,
    /// Memory of dropped buffers.
    unused: Mutex<Pool>,
}

// SAFETY: drivers accept a stream on any thread, and mutexes protect the other fields.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Device memory, to be used in stream order.
pub(super) struct Memory {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

impl Stream {
    pub(super) fn new(device: Device) -> Result<Self> {
        let _current = device.driver.enter(device.handle)?;
        let handle = device.driver.stream_create()?;
        Ok(Self::wrap(device, handle, true))
    }

    /// Wraps a stream that other code owns, such as a framework; it is not destroyed on drop.
    ///
    /// # Safety
    /// `handle` is a `hipStream_t` or `CUstream` of this device (null: the default one) that
    /// outlives the result and all its copies and buffers.
    pub unsafe fn from_raw(device: Device, handle: *mut c_void) -> Self {
        Self::wrap(device, handle, false)
    }

    fn wrap(device: Device, handle: StreamHandle, owned: bool) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let id = COUNT.fetch_add(1, Ordering::Relaxed);
        let (workspace, unused) = Default::default();
        Self { inner: Arc::new(Inner { device, handle, owned, id, workspace, unused }) }
    }

    /// The device of the stream.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// The driver's handle: a `hipStream_t` or `CUstream`.
    pub fn as_raw(&self) -> *mut c_void {
        self.inner.handle
    }

    /// Waits until all enqueued work has completed.
    ///
    /// # Errors
    /// The driver reports a failure of earlier work or of the wait.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    /// Returns the memory of dropped buffers, which the stream keeps for reuse, to the driver.
    /// Synchronizes with the stream.
    pub fn release_unused(&self) {
        self.inner.release_unused();
    }

    /// Allocates a buffer with a copy of `data`.
    ///
    /// # Errors
    /// The driver failed, or memory is missing.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer> {
        let mut buffer = self.allocate(T::DTYPE, data.len())?;
        buffer.copy_from(data)?;
        Ok(buffer)
    }

    /// Allocates a buffer of zeros.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    pub fn zeros<T: Element>(&self, len: usize) -> Result<Buffer> {
        self.zeros_of(T::DTYPE, len)
    }

    /// Allocates a buffer of zeros, with the element type as a value.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    pub fn zeros_of(&self, dtype: DType, len: usize) -> Result<Buffer> {
        let buffer = self.allocate(dtype, len)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// Allocates a buffer with undefined contents.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    pub fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer> {
        let bytes = len.checked_mul(dtype.size()).ok_or_else(|| {
            crate::Error::invalid(format!("a buffer of {len} elements of {dtype} exceeds the address space"))
        })?;
        let memory = self.inner.allocate(bytes)?;
        Ok(Buffer::new(self.clone(), memory, dtype, len))
    }

    /// Views memory that other code owns on this device, such as a framework.
    ///
    /// # Safety
    /// Every element of the layout, relative to `address`, is memory of this device. It stays
    /// allocated, and no other code writes it, until the stream has completed the work enqueued
    /// during `'a`.
    pub unsafe fn view_raw<'a>(&self, address: u64, dtype: DType, layout: Layout) -> View<'a> {
        View::from_raw(RawView::new(address as *mut c_void, layout, dtype, self.residence()))
    }

    /// As [`Stream::view_raw`], for writing.
    ///
    /// # Safety
    /// As [`Stream::view_raw`], and no other code reads or writes the elements meanwhile.
    pub unsafe fn view_raw_mut<'a>(&self, address: u64, dtype: DType, layout: Layout) -> ViewMut<'a> {
        ViewMut::from_raw(RawView::new(address as *mut c_void, layout, dtype, self.residence()))
    }

    pub(crate) fn residence(&self) -> Residence {
        Residence::Device { device: self.inner.device.dlpack(), stream: self.inner.id }
    }

    pub(super) fn to_device(&self, to: u64, from: *const c_void, bytes: usize) -> Result<()> {
        let Inner { device, handle, .. } = &*self.inner;
        let _current = device.driver.enter(device.handle)?;
        // SAFETY: the callers' allocations have that size; they are borrowed until the
        // synchronization below.
        let copied = unsafe { device.driver.to_device(to, from, bytes, *handle) };
        self.synchronize().and(copied)
    }

    pub(super) fn to_host(&self, to: *mut c_void, from: u64, bytes: usize) -> Result<()> {
        let Inner { device, handle, .. } = &*self.inner;
        let _current = device.driver.enter(device.handle)?;
        // SAFETY: the callers' allocations have that size; they are borrowed until the
        // synchronization below.
        let copied = unsafe { device.driver.to_host(to, from, bytes, *handle) };
        self.synchronize().and(copied)
    }

    /// Copies between two buffers of this stream, which both have that size.
    pub(super) fn within_device(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let Inner { device, handle, .. } = &*self.inner;
        let _current = device.driver.enter(device.handle)?;
        // SAFETY: both have that size. The stream orders the copy and every later use of their
        // memory. The destination is exclusively borrowed, so the two do not overlap.
        unsafe { device.driver.within_device(to, from, bytes, *handle) }
    }

    pub(super) fn clear(&self, memory: &Memory) -> Result<()> {
        let Inner { device, handle, .. } = &*self.inner;
        let _current = device.driver.enter(device.handle)?;
        // SAFETY: the allocation has that size.
        unsafe { device.driver.zero(memory.address, memory.bytes, *handle) }
    }

    /// Keeps memory that only this stream has used, for reuse.
    pub(super) fn release(&self, memory: Memory) {
        self.inner.unused().put(memory);
    }
}

impl Inner {
    /// The execution struct without a workspace.
    fn execution(&self) -> sys::rocflash_execution {
        sys::rocflash_execution { stream: self.handle, ..Default::default() }
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.device.driver.enter(self.device.handle)?;
        // SAFETY: the handle lives as long as `self`.
        unsafe { self.device.driver.stream_synchronize(self.handle) }
    }

    fn unused(&self) -> MutexGuard<'_, Pool> {
        self.unused.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        if let Some(memory) = self.unused().take(bytes) {
            return Ok(memory);
        }
        let _current = self.device.driver.enter(self.device.handle)?;
        let bytes = Pool::block_size(bytes);
        let address = match self.device.driver.allocate(bytes) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                self.release_unused();
                self.device.driver.allocate(bytes)?
            }
            other => other?,
        };
        Ok(Memory { address, bytes })
    }

    /// Synchronizes first, because work in flight may use the memory. If the device has failed so
    /// that waiting or freeing fails, no caller can handle the error, and the memory is left to the
    /// driver.
    fn release_unused(&self) {
        let blocks = self.unused().take_all();
        if blocks.is_empty() || self.synchronize().is_err() {
            return;
        }
        let Ok(_current) = self.device.driver.enter(self.device.handle) else { return };
        for memory in blocks {
            // SAFETY: it came from `allocate`, and the only stream that used it is synchronized.
            let _ = unsafe { self.device.driver.release(memory.address) };
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let workspace = self.workspace.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(memory) = workspace {
            self.unused().put(memory);
        }
        self.release_unused();
        if self.owned {
            if let Ok(_current) = self.device.driver.enter(self.device.handle) {
                // SAFETY: `new` created it, and no other reference exists: buffers keep their
                // stream alive.
                let _ = unsafe { self.device.driver.stream_destroy(self.handle) };
            }
        }
    }
}

impl Execute for Stream {
    fn residence(&self) -> ResidenceOf {
        ResidenceOf(self.residence())
    }

    fn query(&self, call: &dyn Call) -> Result<usize> {
        call::workspace(call, &self.inner.execution())
    }

    fn execute(&mut self, call: &dyn Call) -> Result<()> {
        let inner = &*self.inner;
        let mut kept = inner.workspace.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut execution = inner.execution();
        let bytes = call::workspace(call, &execution)?;
        if bytes > kept.as_ref().map_or(0, |memory| memory.bytes) {
            if let Some(small) = kept.take() {
                inner.unused().put(small);
            }
            *kept = Some(inner.allocate(bytes)?);
        }
        if let Some(memory) = &*kept {
            execution.workspace = memory.address as *mut c_void;
            execution.workspace_size = memory.bytes;
        }
        let _current = inner.device.driver.enter(inner.device.handle)?;
        // SAFETY: the workspace is on this device and has the stated size. Only this stream uses
        // it, and it orders the calls. Drivers align allocations to 256 bytes. The tensors are
        // views of this stream's buffers, whose memory only later work of this stream reuses.
        unsafe { call::run(call, &execution) }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stream {} of {:?}", self.inner.id, self.inner.device)
    }
}
