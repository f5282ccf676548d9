//! Borrowed tensors: memory, shape and strides, checked once when the view is made.
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::layout::Layout;
use rocflash_sys as sys;
use std::ffi::c_void;
use std::marker::PhantomData;

/// The memory that a tensor is in. GPU memory belongs to one [`Stream`](crate::gpu::Stream), which
/// orders all work on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    Host,
    Device { device: sys::DLDevice, stream: u64 },
}

impl Residence {
    pub(crate) fn dlpack(self) -> sys::DLDevice {
        match self {
            Residence::Host => sys::DLDevice { device_type: sys::kDLCPU, device_id: 0 },
            Residence::Device { device, .. } => device,
        }
    }
}

impl std::fmt::Display for Residence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Residence::Host => f.write_str("host memory"),
            Residence::Device { device, stream } => {
                let kind = if device.device_type == sys::kDLROCM { "rocm" } else { "cuda" };
                write!(f, "{kind}:{}, stream {stream}", device.device_id)
            }
        }
    }
}

/// The contents of both kinds of view: an address whose memory covers the layout.
#[derive(Clone, Copy)]
pub(crate) struct RawView {
    data: *mut c_void,
    layout: Layout,
    dtype: DType,
    residence: Residence,
}

impl RawView {
    /// The caller has checked that the layout stays within the memory at `data`.
    pub(crate) fn new(data: *mut c_void, layout: Layout, dtype: DType, residence: Residence) -> Self {
        Self { data, layout, dtype, residence }
    }

    pub(crate) fn residence(&self) -> Residence {
        self.residence
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The address of the first element.
    pub(crate) fn address(&self) -> u64 {
        self.data as u64
    }

    /// The view as a `DLTensor` that points into `self`.
    pub(crate) fn dlpack(&self) -> sys::DLTensor {
        sys::DLTensor {
            data: self.data,
            device: self.residence.dlpack(),
            ndim: self.layout.shape().len() as i32,
            dtype: self.dtype.dlpack(),
            shape: self.layout.shape_ptr().cast_mut(),
            strides: self.layout.strides_ptr().cast_mut(),
            byte_offset: 0,
        }
    }
}

impl std::fmt::Debug for RawView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} in {}", self.dtype, self.layout, self.residence)
    }
}

/// A borrowed tensor for reading.
///
/// Sound because the constructor checks that every index within the shape is inside the borrowed
/// memory. The library accesses nothing else, and the borrow lasts as long as the view.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    raw: RawView,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view is a shared borrow of numbers, or of a GPU buffer that can itself be shared.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Views all of `data` as a row-major tensor of this shape.
    ///
    /// # Errors
    /// `shape` does not match the length of `data`, or has more than [`MAX_DIMS`](crate::MAX_DIMS)
    /// dimensions.
    ///
    /// ```
    /// let keys = vec![0.0f32; 2 * 100 * 8 * 64];
    /// let view = rocflash::View::new(&keys, &[2, 100, 8, 64])?;
    /// # Ok::<(), rocflash::Error>(())
    /// ```
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Result<Self> {
        let layout = Layout::contiguous(shape)?;
        check_all(&layout, data.len())?;
        Ok(Self::from_slice(data, 0, layout))
    }

    /// Views a part of `data`: the first element is at `offset`, and strides count elements.
    ///
    /// # Errors
    /// An index of the shape is outside `data`, or shape and strides differ in their number of
    /// dimensions.
    pub fn strided<T: Element>(
        data: &'a [T],
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self> {
        let layout = Layout::strided(shape, strides)?;
        layout.check_within(offset, data.len())?;
        Ok(Self::from_slice(data, offset, layout))
    }

    /// Views booleans as a mask; true attends.
    ///
    /// # Errors
    /// As [`View::new`].
    pub fn mask(data: &'a [bool], shape: &[usize]) -> Result<Self> {
        // SAFETY: a bool is a byte of 0 or 1, and is only read here.
        let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), data.len()) };
        Self::new(bytes, shape)
    }

    fn from_slice<T: Element>(data: &'a [T], offset: usize, layout: Layout) -> Self {
        let first = data.as_ptr().wrapping_add(offset).cast_mut().cast();
        Self::from_raw(RawView::new(first, layout, T::DTYPE, Residence::Host))
    }

    pub(crate) fn from_raw(raw: RawView) -> Self {
        Self { raw, memory: PhantomData }
    }

    pub(crate) fn raw(&self) -> &RawView {
        &self.raw
    }

    /// The sizes.
    pub fn shape(&self) -> &[i64] {
        self.raw.layout.shape()
    }

    /// The strides, in elements.
    pub fn strides(&self) -> &[i64] {
        self.raw.layout.strides()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.raw.dtype
    }
}

/// A borrowed tensor for writing: as [`View`], and no two indices may address the same element.
#[derive(Debug)]
pub struct ViewMut<'a> {
    raw: RawView,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a view is an exclusive borrow of numbers, or of a GPU buffer that can itself be sent.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: a shared `ViewMut` gives read access at most.
unsafe impl Sync for ViewMut<'_> {}

impl<'a> ViewMut<'a> {
    /// Views all of `data` as a row-major tensor of this shape.
    ///
    /// # Errors
    /// As [`View::new`].
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<Self> {
        let layout = Layout::contiguous(shape)?;
        check_all(&layout, data.len())?;
        Ok(Self::from_slice(data, 0, layout))
    }

    /// Views a part of `data`: the first element is at `offset`, and strides count elements.
    ///
    /// # Errors
    /// As [`View::strided`], or two indices address the same element.
    pub fn strided<T: Element>(
        data: &'a mut [T],
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self> {
        let layout = Layout::strided(shape, strides)?;
        layout.check_within(offset, data.len())?;
        layout.check_distinct()?;
        Ok(Self::from_slice(data, offset, layout))
    }

    fn from_slice<T: Element>(data: &'a mut [T], offset: usize, layout: Layout) -> Self {
        let first = data.as_mut_ptr().wrapping_add(offset).cast();
        Self::from_raw(RawView::new(first, layout, T::DTYPE, Residence::Host))
    }

    pub(crate) fn from_raw(raw: RawView) -> Self {
        Self { raw, memory: PhantomData }
    }

    pub(crate) fn raw(&self) -> &RawView {
        &self.raw
    }

    /// Reborrows the view, so that several calls can use it.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut::from_raw(self.raw)
    }

    /// The same tensor for reading.
    pub fn as_view(&self) -> View<'_> {
        View::from_raw(self.raw)
    }

    /// The sizes.
    pub fn shape(&self) -> &[i64] {
        self.raw.layout.shape()
    }

    /// The strides, in elements.
    pub fn strides(&self) -> &[i64] {
        self.raw.layout.strides()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.raw.dtype
    }
}

/// A contiguous view must cover all of the memory: another length is most likely a mistake.
pub(crate) fn check_all(layout: &Layout, len: usize) -> Result<()> {
    layout.check_within(0, len)?;
    let needed = if layout.is_empty() { 0 } else { layout.len() };
    if needed != len {
        return Err(Error::invalid(format!(
            "shape {:?} has {needed} elements; the memory has {len}",
            layout.shape()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads every element the way the library would: through the address, with the strides.
    fn read(view: &View) -> Vec<f32> {
        let tensor = view.raw().dlpack();
        assert_eq!(tensor.ndim as usize, view.shape().len());
        let mut offsets = vec![0i64];
        for (size, stride) in view.shape().iter().zip(view.strides()) {
            offsets = offsets.iter().flat_map(|at| (0..*size).map(move |n| at + n * stride)).collect();
        }
        // SAFETY: the property under test, under Miri: every offset is within the borrowed memory.
        offsets.iter().map(|at| unsafe { *tensor.data.cast::<f32>().offset(*at as isize) }).collect()
    }

    #[test]
    fn every_index_reads_its_element() {
        let data: Vec<f32> = (0..24).map(|n| n as f32).collect();
        assert_eq!(read(&View::new(&data, &[2, 3, 4]).unwrap()), data);
        let transposed = View::strided(&data, 0, &[4, 6], &[1, 4]).unwrap();
        assert_eq!(read(&transposed)[..6], [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]);
        let backwards = View::strided(&data, 23, &[24], &[-1]).unwrap();
        assert_eq!(read(&backwards)[..3], [23.0, 22.0, 21.0]);
        let broadcast = View::strided(&data, 5, &[3, 2], &[0, 1]).unwrap();
        assert_eq!(read(&broadcast), [5.0, 6.0, 5.0, 6.0, 5.0, 6.0]);
        let part = View::strided(&data, 6, &[2, 2, 2], &[12, 4, 1]).unwrap();
        assert_eq!(read(&part), [6.0, 7.0, 10.0, 11.0, 18.0, 19.0, 22.0, 23.0]);
        assert!(read(&View::strided(&data, 24, &[0, 4], &[4, 1]).unwrap()).is_empty());
    }

    #[test]
    fn writing_through_a_view() {
        let mut data = vec![0.0f32; 12];
        {
            let mut view = ViewMut::strided(&mut data, 1, &[3, 2], &[4, 1]).unwrap();
            let view = view.reborrow();
            let tensor = view.raw().dlpack();
            for row in 0..3 {
                for column in 0..2 {
                    // SAFETY: the property under test, under Miri.
                    unsafe { *tensor.data.cast::<f32>().offset(row * 4 + column) = 1.0 };
                }
            }
            assert_eq!(read(&view.as_view()), [1.0; 6]);
        }
        assert_eq!(data, [0., 1., 1., 0., 0., 1., 1., 0., 0., 1., 1., 0.]);
    }

    #[test]
    fn out_of_bounds_views_are_rejected() {
        let mut data = vec![0.0f32; 24];
        let message = View::strided(&data, 1, &[2, 3, 4], &[12, 4, 1]).unwrap_err().to_string();
        assert_eq!(
            message,
            "shape [2, 3, 4] with strides [12, 4, 1] at offset 1 needs elements 1 to 24; the memory has 24 elements"
        );
        assert!(View::strided(&data, 0, &[2], &[-1]).is_err());
        let message = View::new(&data, &[2, 3, 3]).unwrap_err().to_string();
        assert_eq!(message, "shape [2, 3, 3] has 18 elements; the memory has 24");
        assert!(View::new(&data, &[2, 3, 5]).is_err());
        assert!(ViewMut::strided(&mut data, 0, &[3, 4], &[0, 1]).is_err());
        assert!(ViewMut::new(&mut data, &[25]).is_err());
    }

    #[test]
    fn masks_are_bytes() {
        let mask = [true, false, true, true];
        let view = View::mask(&mask, &[1, 1, 2, 2]).unwrap();
        assert_eq!(view.dtype(), DType::U8);
        assert!(View::mask(&mask, &[1, 1, 2, 3]).is_err());
    }
}
