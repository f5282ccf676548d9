//! Shapes and strides: the arithmetic that checks whether a view stays within its memory. Pure
//! functions on numbers, so that Miri and unit tests can cover every edge case.
use crate::error::{Error, Result};

/// The largest number of dimensions of a tensor.
pub const MAX_DIMS: usize = 5;

/// Sizes and strides of up to [`MAX_DIMS`] dimensions. Strides count elements and may be zero or
/// negative.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    shape: [i64; MAX_DIMS],
    strides: [i64; MAX_DIMS],
    ndim: usize,
}

impl Layout {
    /// A row-major layout without gaps.
    ///
    /// # Errors
    /// More than [`MAX_DIMS`] dimensions, or more than 2^63 - 1 elements.
    pub fn contiguous(shape: &[usize]) -> Result<Self> {
        let mut layout = Self::of_shape(shape)?;
        let mut stride: i64 = 1;
        for n in (0..layout.ndim).rev() {
            layout.strides[n] = stride;
            stride = stride
                .checked_mul(layout.shape[n].max(1))
                .ok_or_else(|| Error::invalid(format!("shape {shape:?} has more than 2^63 - 1 elements")))?;
        }
        Ok(layout)
    }

    /// A layout with these strides, in elements.
    ///
    /// # Errors
    /// More than [`MAX_DIMS`] dimensions, numbers of dimensions that differ, or offsets beyond 2^63
    /// - 1.
    pub fn strided(shape: &[usize], strides: &[isize]) -> Result<Self> {
        if shape.len() != strides.len() {
            return Err(Error::invalid(format!(
                "shape {shape:?} has {} dimensions but strides {strides:?} has {}",
                shape.len(),
                strides.len()
            )));
        }
        let mut layout = Self::of_shape(shape)?;
        for (n, stride) in strides.iter().enumerate() {
            layout.strides[n] = *stride as i64;
        }
        layout.reach()?;
        Ok(layout)
    }

    fn of_shape(shape: &[usize]) -> Result<Self> {
        if shape.len() > MAX_DIMS {
            return Err(Error::invalid(format!(
                "shape {shape:?} has {} dimensions; at most {MAX_DIMS} are allowed",
                shape.len()
            )));
        }
        let mut layout = Self { shape: [0; MAX_DIMS], strides: [0; MAX_DIMS], ndim: shape.len() };
        for (n, size) in shape.iter().enumerate() {
            layout.shape[n] = i64::try_from(*size)
                .map_err(|_| Error::invalid(format!("shape {shape:?}: {size} is more than 2^63 - 1")))?;
        }
        Ok(layout)
    }

    /// The sizes.
    pub fn shape(&self) -> &[i64] {
        &self.shape[..self.ndim]
    }

    /// The strides, in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.ndim]
    }

    /// Whether the layout has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// The number of elements. It fits: the sizes of a layout with distinct elements are bounded by
    /// its memory, and broadcast ones are counted with care.
    pub fn len(&self) -> usize {
        self.shape().iter().fold(1usize, |n, size| n.saturating_mul(*size as usize))
    }

    /// The lowest and the highest element offset relative to the first element; `None` without
    /// elements.
    fn reach(&self) -> Result<Option<(i64, i64)>> {
        if self.is_empty() {
            return Ok(None);
        }
        let (mut low, mut high) = (0i64, 0i64);
        for (size, stride) in self.shape().iter().zip(self.strides()) {
            let end = if *stride < 0 { &mut low } else { &mut high };
            *end = (size - 1)
                .checked_mul(*stride)
                .and_then(|span| end.checked_add(span))
                .ok_or_else(|| Error::invalid(format!("{self:?} has offsets beyond 2^63 - 1")))?;
        }
        Ok(Some((low, high)))
    }

    /// Checks that all elements are in memory of `len` elements when the first one is at `offset`.
    ///
    /// # Errors
    /// An element is outside.
    pub fn check_within(&self, offset: usize, len: usize) -> Result<()> {
        let outside = |low: i128, high: i128| {
            Err(Error::invalid(format!(
                "{self:?} at offset {offset} needs elements {low} to {high}; the memory has {len} elements"
            )))
        };
        match self.reach()? {
            None if offset > len => outside(offset as i128, offset as i128),
            None => Ok(()),
            Some((low, high)) => {
                let (low, high) = (offset as i128 + low as i128, offset as i128 + high as i128);
                if low < 0 || high >= len as i128 {
                    return outside(low, high);
                }
                Ok(())
            }
        }
    }

    /// Checks that no two indices address the same element, with the library's rule for outputs:
    /// dimensions ordered by stride must nest.
    ///
    /// # Errors
    /// Two indices may address the same element.
    pub fn check_distinct(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let mut dims: Vec<(i128, i128)> = (self.shape().iter().zip(self.strides()))
            .filter(|(size, _)| **size > 1)
            .map(|(size, stride)| (i128::from(*stride).abs(), i128::from(*size)))
            .collect();
        dims.sort_unstable();
        let mut reach = 0;
        for (stride, size) in dims {
            if stride <= reach {
                return Err(Error::invalid(format!(
                    "{self:?}: stride {stride} makes elements overlap; it must be greater than {reach} in a mutable view"
                )));
            }
            reach += stride * (size - 1);
        }
        Ok(())
    }

    /// The elements in index order as contiguous runs of equal length: the offset of each run
    /// relative to the first element, and the length.
    pub(crate) fn runs(&self) -> (Vec<i64>, usize) {
        if self.is_empty() {
            return (Vec::new(), 0);
        }
        let mut length = 1;
        let mut outer = self.ndim;
        while outer > 0 && (self.shape[outer - 1] == 1 || self.strides[outer - 1] == length) {
            length *= self.shape[outer - 1];
            outer -= 1;
        }
        let mut begins = vec![0];
        for n in 0..outer {
            let (size, stride) = (self.shape[n], self.strides[n]);
            begins = begins.iter().flat_map(|at| (0..size).map(move |i| at + i * stride)).collect();
        }
        (begins, length as usize)
    }

    pub(crate) fn shape_ptr(&self) -> *const i64 {
        self.shape.as_ptr()
    }

    pub(crate) fn strides_ptr(&self) -> *const i64 {
        self.strides.as_ptr()
    }
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shape {:?} with strides {:?}", self.shape(), self.strides())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element's offset, by enumerating all indices: the definition of a strided layout.
    fn offsets(layout: &Layout) -> Vec<i64> {
        let mut all = vec![0];
        for (size, stride) in layout.shape().iter().zip(layout.strides()) {
            all = all.iter().flat_map(|at| (0..*size).map(move |n| at + n * stride)).collect();
        }
        all
    }

    #[test]
    fn contiguous_strides() {
        let layout = Layout::contiguous(&[2, 3, 4, 5]).unwrap();
        assert_eq!(layout.strides(), [60, 20, 5, 1]);
        assert_eq!(layout.len(), 120);
        layout.check_within(0, 120).unwrap();
        layout.check_within(1, 121).unwrap();
        assert!(layout.check_within(1, 120).is_err());
        assert!(layout.check_within(0, 119).is_err());
    }

    #[test]
    fn closed_forms_match_enumeration() {
        for shape in [[1, 3, 2], [2, 2, 2], [3, 1, 4], [2, 0, 3]] {
            // Miri is slow; it runs a sample.
            let step = if cfg!(miri) { 7 } else { 1 };
            for a in (-7..=7isize).step_by(step) {
                for b in [-3, 5, -1, 0, 1, 2].into_iter().step_by(step) {
                    for c in [-1, 0, 1, 2] {
                        let layout = Layout::strided(&shape, &[a, b, c]).unwrap();
                        let mut all = offsets(&layout);
                        for (offset, len) in [(0, 30), (9, 20), (21, 22), (15, 16)] {
                            let inside = all.iter().all(|at| (0..len).contains(&(at + offset)));
                            assert_eq!(
                                layout.check_within(offset as usize, len as usize).is_ok(),
                                inside,
                                "{layout:?} at {offset} in {len}"
                            );
                        }
                        let count = all.len();
                        all.sort_unstable();
                        all.dedup();
                        if layout.check_distinct().is_ok() {
                            assert_eq!(all.len(), count, "{layout:?} has shared elements");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn runs_are_the_elements_in_order() {
        let layouts = [
            Layout::contiguous(&[2, 3, 4]).unwrap(),
            Layout::strided(&[2, 3, 4], &[20, 4, 1]).unwrap(),
            Layout::strided(&[2, 3, 4], &[1, 2, 6]).unwrap(),
            Layout::strided(&[2, 1, 4], &[4, 99, 1]).unwrap(),
            Layout::strided(&[3, 4], &[0, 1]).unwrap(),
            Layout::strided(&[3, 4], &[-4, 1]).unwrap(),
            Layout::contiguous(&[]).unwrap(),
            Layout::contiguous(&[3, 0]).unwrap(),
        ];
        let counts = [1, 2, 24, 1, 3, 3, 1, 0];
        for (layout, count) in layouts.iter().zip(counts) {
            let (begins, length) = layout.runs();
            assert_eq!(begins.len(), count, "{layout:?}");
            let all: Vec<i64> =
                begins.iter().flat_map(|at| (0..length as i64).map(move |n| at + n)).collect();
            assert_eq!(all, offsets(layout), "{layout:?}");
        }
    }

    #[test]
    fn overlap_is_detected() {
        assert!(Layout::strided(&[4, 4], &[0, 1]).unwrap().check_distinct().is_err());
        assert!(Layout::strided(&[4, 4], &[3, 1]).unwrap().check_distinct().is_err());
        assert!(Layout::strided(&[4, 4], &[4, 1]).unwrap().check_distinct().is_ok());
        assert!(Layout::strided(&[4, 1], &[1, 0]).unwrap().check_distinct().is_ok());
        assert!(Layout::strided(&[4, 4], &[-4, 1]).unwrap().check_distinct().is_ok());
        assert!(Layout::strided(&[0, 4], &[0, 0]).unwrap().check_distinct().is_ok());
    }

    #[test]
    fn numbers_that_do_not_fit_are_rejected() {
        assert!(Layout::contiguous(&[1 << 40, 1 << 40]).is_err());
        assert!(Layout::contiguous(&[usize::MAX]).is_err());
        assert!(Layout::strided(&[1 << 40, 2], &[1 << 40, 1]).is_err());
        assert!(Layout::strided(&[3], &[isize::MIN]).is_err());
        assert!(Layout::strided(&[2, 2], &[isize::MIN, isize::MIN]).is_err());
        assert!(Layout::strided(&[2, 2], &[1]).is_err());
        assert!(Layout::contiguous(&[1; 6]).is_err());
        let wide = Layout::strided(&[2], &[isize::MAX]).unwrap();
        assert!(wide.check_within(usize::MAX, usize::MAX).is_err());
        assert!(wide.check_distinct().is_ok());
        // A view broadcast to a huge shape has few distinct elements.
        let broadcast = Layout::strided(&[1 << 40, 1 << 40, 3], &[0, 0, 1]).unwrap();
        broadcast.check_within(0, 3).unwrap();
        assert_eq!(broadcast.len(), usize::MAX);
    }

    #[test]
    fn empty_and_scalar_layouts() {
        let empty = Layout::contiguous(&[3, 0, 5]).unwrap();
        assert!(empty.is_empty());
        empty.check_within(7, 7).unwrap();
        assert!(empty.check_within(8, 7).is_err());
        let scalar = Layout::contiguous(&[]).unwrap();
        scalar.check_within(0, 1).unwrap();
        assert!(scalar.check_within(0, 0).is_err());
    }
}
