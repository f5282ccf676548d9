//! A stream: the order of all that happens to the buffers made on it.
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

/// Work on a GPU, one thing after the other. Copies of it are the same stream.
///
/// Its [`Executor`](crate::Executor) functions put work into the stream and return; [`Buffer::download`] and
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
    /// Scratch memory of attention, kept from call to call. Locked while a call is put into the stream, since
    /// a call may be several kernels that hand it on.
    workspace: Mutex<Option<Memory>>,
    /// Memory of buffers that are no more.
    unused: Mutex<Pool>,
}

// SAFETY: drivers take a stream from any thread, and what is kept beside it is locked.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Memory of the device, for use in the stream's order.
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

    /// A stream that somebody else made, such as a framework; it is not destroyed here.
    ///
    /// # Safety
    /// `handle` is a `hipStream_t` or `CUstream` of this device (null: the default one) that outlives the result
    /// and all its copies and buffers.
    pub unsafe fn from_raw(device: Device, handle: *mut c_void) -> Self {
        Self::wrap(device, handle, false)
    }

    fn wrap(device: Device, handle: StreamHandle, owned: bool) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let id = COUNT.fetch_add(1, Ordering::Relaxed);
        let (workspace, unused) = Default::default();
        Self { inner: Arc::new(Inner { device, handle, owned, id, workspace, unused }) }
    }

    /// The device that it is of.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// The driver's handle: a `hipStream_t` or `CUstream`.
    pub fn as_raw(&self) -> *mut c_void {
        self.inner.handle
    }

    /// Waits until all that was put into it is done.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    /// Gives memory of dropped buffers, which the stream keeps for new ones, back to the driver. Waits for the stream.
    pub fn release_unused(&self) {
        self.inner.release_unused();
    }

    /// A buffer with a copy of `data`.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer> {
        let mut buffer = self.allocate(T::DTYPE, data.len())?;
        buffer.copy_from(data)?;
        Ok(buffer)
    }

    /// A buffer of zeros.
    pub fn zeros<T: Element>(&self, len: usize) -> Result<Buffer> {
        self.zeros_of(T::DTYPE, len)
    }

    /// A buffer of zeros, with the element type as a value.
    pub fn zeros_of(&self, dtype: DType, len: usize) -> Result<Buffer> {
        let buffer = self.allocate(dtype, len)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// A buffer whose contents mean nothing until they are written.
    pub fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer> {
        let bytes = len.checked_mul(dtype.size()).ok_or_else(|| {
            crate::Error::invalid(format!(
                "a buffer of {len} elements of {dtype} is more than can be addressed"
            ))
        })?;
        let memory = self.inner.allocate(bytes)?;
        Ok(Buffer::new(self.clone(), memory, dtype, len))
    }

    /// A tensor in memory that somebody else has on this device, such as a framework.
    ///
    /// # Safety
    /// Every element of the layout, from `address` on, is memory of this device that stays allocated, and that nobody writes,
    /// until the stream has done what is put into it during `'a`.
    pub unsafe fn view_raw<'a>(&self, address: u64, dtype: DType, layout: Layout) -> View<'a> {
        View::from_raw(RawView::new(address as *mut c_void, layout, dtype, self.residence()))
    }

    /// As [`Stream::view_raw`], to be written.
    ///
    /// # Safety
    /// As there, and nobody else reads or writes it meanwhile.
    pub unsafe fn view_raw_mut<'a>(&self, address: u64, dtype: DType, layout: Layout) -> ViewMut<'a> {
        ViewMut::from_raw(RawView::new(address as *mut c_void, layout, dtype, self.residence()))
    }

    pub(crate) fn residence(&self) -> Residence {
        Residence::Device { device: self.inner.device.dlpack(), stream: self.inner.id }
    }

    pub(super) fn to_device(&self, to: u64, from: *const c_void, bytes: usize) -> Result<()> {
        let Inner { device, handle, .. } = &*self.inner;
        let _current = device.driver.enter(device.handle)?;
        // SAFETY: callers give memory of that size on both sides; it is borrowed until the wait below.
        let copied = unsafe { device.driver.to_device(to, from, bytes, *handle) };
        self.synchronize().and(copied)
    }

    pub(super) fn to_host(&self, to: *mut c_void, from: u64, bytes: usize) -> Result<()> {
        let Inner { device, handle, .. } = &*self.inner;
        let _current = device.driver.enter(device.handle)?;
        // SAFETY: callers give memory of that size on both sides; it is borrowed until the wait below.
        let copied = unsafe { device.driver.to_host(to, from, bytes, *handle) };
        self.synchronize().and(copied)
    }

    /// Callers give memory of that size on both sides, of buffers of this stream.
    pub(super) fn within_device(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let Inner { device, handle, .. } = &*self.inner;
        let _current = device.driver.enter(device.handle)?;
        // SAFETY: as said; it is done in the stream's order, and so is whatever gets the buffers' memory next. The target is
        // exclusively borrowed, so the two do not overlap.
        unsafe { device.driver.within_device(to, from, bytes, *handle) }
    }

    pub(super) fn clear(&self, memory: &Memory) -> Result<()> {
        let Inner { device, handle, .. } = &*self.inner;
        let _current = device.driver.enter(device.handle)?;
        // SAFETY: the memory is as large as it says.
        unsafe { device.driver.zero(memory.address, memory.bytes, *handle) }
    }

    /// Keeps memory that only this stream has used for the next buffers.
    pub(super) fn release(&self, memory: Memory) {
        self.inner.unused().put(memory);
    }
}

impl Inner {
    /// How the library is to execute a call, without workspace.
    fn execution(&self) -> sys::rocflash_execution {
        sys::rocflash_execution { stream: self.handle, ..Default::default() }
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.device.driver.enter(self.device.handle)?;
        // SAFETY: the handle lives as long as this.
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

    /// Waits first: what is in flight may use it. If the device has failed so badly that waiting or releasing fails,
    /// there is nobody to tell and the memory is left to the driver.
    fn release_unused(&self) {
        let blocks = self.unused().take_all();
        if blocks.is_empty() || self.synchronize().is_err() {
            return;
        }
        let Ok(_current) = self.device.driver.enter(self.device.handle) else { return };
        for memory in blocks {
            // SAFETY: it came from `allocate`, and the only stream that used it has been waited for.
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
                // SAFETY: it was made by `new`, and nobody else has it: buffers keep their stream alive.
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
        // SAFETY: the workspace is of this device and as large as it says, and only this stream uses it, call after
        // call in order; drivers align allocations to 256 bytes. The tensors are views of this stream's
        // buffers, whose memory goes to nobody but later work of this stream.
        unsafe { call::run(call, &execution) }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stream {} of {:?}", self.inner.id, self.inner.device)
    }
}
