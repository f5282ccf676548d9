//! Typed GPU memory that belongs to a stream.
use super::stream::{Memory, Stream};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::view::{check_all, RawView, View, ViewMut};

/// Elements in GPU memory. The stream that allocated them orders all work on them.
pub struct Buffer {
    stream: Stream,
    /// `Some` until the buffer is dropped.
    memory: Option<Memory>,
    dtype: DType,
    len: usize,
}

impl Buffer {
    pub(super) fn new(stream: Stream, memory: Memory, dtype: DType, len: usize) -> Self {
        Self { stream, memory: Some(memory), dtype, len }
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("a buffer has memory until it is dropped")
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device address of the first element.
    pub fn address(&self) -> u64 {
        self.memory().address
    }

    /// The stream that the buffer belongs to.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    fn check<T: Element>(&self, len: usize) -> Result<()> {
        if T::DTYPE != self.dtype || len != self.len {
            return Err(Error::invalid(format!(
                "{len} elements of {} do not match the buffer's {} of {}",
                T::DTYPE,
                self.len,
                self.dtype
            )));
        }
        Ok(())
    }

    /// Copies `data` into the buffer and synchronizes with the stream.
    ///
    /// # Errors
    /// Element type or length differ from the buffer's, or the driver failed.
    pub fn copy_from<T: Element>(&mut self, data: &[T]) -> Result<()> {
        self.check::<T>(data.len())?;
        if self.is_empty() {
            return Ok(());
        }
        self.stream.to_device(self.memory().address, data.as_ptr().cast(), size_of_val(data))
    }

    /// Copies the buffer into `data`, after all previous work of the stream.
    ///
    /// # Errors
    /// As [`Buffer::copy_from`].
    pub fn copy_to<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.check::<T>(data.len())?;
        if self.is_empty() {
            return Ok(());
        }
        self.stream.to_host(data.as_mut_ptr().cast(), self.memory().address, size_of_val(data))
    }

    /// Returns a copy of the elements, after all previous work of the stream.
    ///
    /// # Errors
    /// The element type differs from the buffer's, or the driver failed.
    pub fn download<T: Element>(&self) -> Result<Vec<T>> {
        let mut data = vec![T::default(); self.len];
        self.copy_to(&mut data)?;
        Ok(data)
    }

    /// Copies the elements of `from`, in index order, to elements `offset` onward of this buffer.
    /// Both belong to one stream, which orders the copy.
    ///
    /// # Errors
    /// Element types or streams differ, the elements do not fit, or the driver failed.
    pub fn copy_from_view(&mut self, offset: usize, from: &View) -> Result<()> {
        if from.dtype() != self.dtype || from.raw().residence() != self.stream.residence() {
            return Err(Error::invalid(format!("{from:?} cannot be copied into {self:?}")));
        }
        let layout = *from.raw().layout();
        let whole = Layout::contiguous(&[layout.len()])?;
        whole.check_within(offset, self.len)?;
        let size = self.dtype.size();
        let to = self.memory().address + (offset * size) as u64;
        let first = from.raw().address();
        let (runs, length) = layout.runs();
        for (n, run) in runs.into_iter().enumerate() {
            let from = first.wrapping_add_signed(run * size as i64);
            self.stream.within_device(to + (n * length * size) as u64, from, length * size)?;
        }
        Ok(())
    }

    pub(super) fn clear(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        self.stream.clear(self.memory())
    }

    fn raw(&self, offset: usize, layout: Layout) -> RawView {
        let first = self.memory().address.wrapping_add((offset * self.dtype.size()) as u64);
        RawView::new(first as *mut _, layout, self.dtype, self.stream.residence())
    }

    /// Views the buffer as a row-major tensor of this shape.
    ///
    /// # Errors
    /// As [`View::new`].
    pub fn view(&self, shape: &[usize]) -> Result<View<'_>> {
        let layout = Layout::contiguous(shape)?;
        check_all(&layout, self.len)?;
        Ok(View::from_raw(self.raw(0, layout)))
    }

    /// Views a part of the buffer: the first element is at `offset`, and strides count elements.
    ///
    /// # Errors
    /// As [`View::strided`].
    pub fn view_strided(&self, offset: usize, shape: &[usize], strides: &[isize]) -> Result<View<'_>> {
        let layout = Layout::strided(shape, strides)?;
        layout.check_within(offset, self.len)?;
        Ok(View::from_raw(self.raw(offset, layout)))
    }

    /// Views the buffer for writing.
    ///
    /// # Errors
    /// As [`ViewMut::new`].
    pub fn view_mut(&mut self, shape: &[usize]) -> Result<ViewMut<'_>> {
        let layout = Layout::contiguous(shape)?;
        check_all(&layout, self.len)?;
        Ok(ViewMut::from_raw(self.raw(0, layout)))
    }

    /// Views a part of the buffer for writing.
    ///
    /// # Errors
    /// As [`ViewMut::strided`].
    pub fn view_mut_strided(
        &mut self,
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<ViewMut<'_>> {
        let layout = Layout::strided(shape, strides)?;
        layout.check_within(offset, self.len)?;
        layout.check_distinct()?;
        Ok(ViewMut::from_raw(self.raw(offset, layout)))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.stream.release(memory);
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements of {} in {:?}", self.len, self.dtype, self.stream)
    }
}
