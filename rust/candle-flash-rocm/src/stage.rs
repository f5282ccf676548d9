//! The device of a call, and the staging of Candle's host tensors: borrowed on the CPU, copied to a
//! GPU.
use candle::{Layout, Result, Tensor, WithDType};
use rocflash::gpu::{Buffer, Stream};
use rocflash::{Cpu, Element, Executor, View, ViewMut};

pub(crate) fn from_rocflash(error: rocflash::Error) -> candle::Error {
    candle::Error::wrap(error)
}

/// The device of a call.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Cpu,
    Device(Stream),
}

impl Target {
    pub(crate) fn executor(&self) -> Box<dyn Executor> {
        match self {
            Target::Cpu => Box::new(Cpu::new()),
            Target::Device(stream) => Box::new(stream.clone()),
        }
    }

    /// Stages a Candle tensor: borrowed with its strides on the CPU, copied contiguously to a GPU.
    pub(crate) fn tensor<'a, T: Element>(&self, data: &'a [T], layout: &Layout) -> Result<Staged<'a>> {
        match self {
            Target::Cpu => {
                let view = View::strided(data, layout.start_offset(), layout.dims(), &strides(layout)?);
                Ok(Staged::Host(view.map_err(from_rocflash)?))
            }
            Target::Device(stream) => {
                let buffer = upload(stream, data, layout).map_err(from_rocflash)?;
                Ok(Staged::Device(buffer, layout.dims().to_vec()))
            }
        }
    }

    /// Stages a contiguous array.
    pub(crate) fn array<'a, T: Element>(&self, data: &'a [T], shape: &[usize]) -> Result<Staged<'a>> {
        self.tensor(data, &Layout::contiguous(shape))
    }
}

/// Copies a tensor's elements in index order to GPU memory.
pub(crate) fn upload<T: Element>(stream: &Stream, data: &[T], layout: &Layout) -> rocflash::Result<Buffer> {
    match layout.contiguous_offsets() {
        Some((begin, end)) => stream.upload(&data[begin..end]),
        None => stream.upload(&gather(data, layout)),
    }
}

/// Candle's strides are unsigned, rocflash's are signed.
pub(crate) fn strides(layout: &Layout) -> Result<Vec<isize>> {
    let signed = |stride: &usize| {
        isize::try_from(*stride)
            .map_err(|_| candle::Error::msg(format!("stride {stride} exceeds the address space")))
    };
    layout.stride().iter().map(signed).collect()
}

/// The number of elements of a result. The inputs may be broadcast, so it is not bounded by their
/// memory.
pub(crate) fn count(shape: &[usize]) -> Result<usize> {
    let count = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
    count.ok_or_else(|| candle::Error::msg(format!("shape {shape:?} exceeds the address space")))
}

/// Allocates zeros; returns an error where `vec!` would abort.
pub(crate) fn zeros<T: Copy + Default>(shape: &[usize]) -> Result<Vec<T>> {
    let len = count(shape)?;
    let mut elements = Vec::new();
    elements
        .try_reserve_exact(len)
        .map_err(|_| candle::Error::msg(format!("could not allocate shape {shape:?}")))?;
    elements.resize(len, T::default());
    Ok(elements)
}

/// A tensor staged to the target.
pub(crate) enum Staged<'a> {
    Host(View<'a>),
    Device(Buffer, Vec<usize>),
}

impl Staged<'_> {
    pub(crate) fn view(&self) -> Result<View<'_>> {
        match self {
            Staged::Host(view) => Ok(*view),
            Staged::Device(buffer, shape) => buffer.view(shape).map_err(from_rocflash),
        }
    }
}

/// A result: host memory that is written directly, or GPU memory that is copied to it afterwards.
pub(crate) struct Pending<T> {
    host: Vec<T>,
    device: Option<Buffer>,
    shape: Vec<usize>,
}

impl<T: Element> Pending<T> {
    pub(crate) fn new(target: &Target, shape: &[usize]) -> Result<Self> {
        let host = zeros::<T>(shape)?;
        let device = match target {
            Target::Cpu => None,
            Target::Device(stream) => Some(stream.allocate(T::DTYPE, host.len()).map_err(from_rocflash)?),
        };
        Ok(Self { host, device, shape: shape.to_vec() })
    }

    pub(crate) fn view_mut(&mut self) -> Result<ViewMut<'_>> {
        match &mut self.device {
            None => ViewMut::new(&mut self.host, &self.shape).map_err(from_rocflash),
            Some(buffer) => buffer.view_mut(&self.shape).map_err(from_rocflash),
        }
    }

    /// The elements, after the call.
    pub(crate) fn data(mut self) -> Result<Vec<T>> {
        if let Some(buffer) = &self.device {
            buffer.copy_to(&mut self.host).map_err(from_rocflash)?;
        }
        Ok(self.host)
    }

    /// The result as a Candle tensor.
    pub(crate) fn tensor(self) -> Result<Tensor>
    where
        T: WithDType,
    {
        let shape = self.shape.clone();
        Tensor::from_vec(self.data()?, shape, &candle::Device::Cpu)
    }
}

/// The elements in index order, contiguous.
pub(crate) fn gather<T: Copy>(data: &[T], layout: &Layout) -> Vec<T> {
    let mut offsets = vec![layout.start_offset()];
    for (size, stride) in layout.dims().iter().zip(layout.stride()) {
        offsets = offsets.iter().flat_map(|at| (0..*size).map(move |n| at + n * stride)).collect();
    }
    offsets.into_iter().map(|at| data[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Device;

    #[test]
    fn gather_matches_candles_contiguous() -> Result<()> {
        let tensor = Tensor::arange(0f32, 120., &Device::Cpu)?.reshape((2, 3, 4, 5))?;
        for view in [
            tensor.transpose(1, 2)?,
            tensor.narrow(2, 1, 2)?.permute((2, 0, 3, 1))?,
            tensor.narrow(0, 1, 1)?.broadcast_as((3, 3, 4, 5))?,
        ] {
            let (storage, layout) = view.storage_and_layout();
            let candle::Storage::Cpu(candle::CpuStorage::F32(data)) = &*storage else { unreachable!() };
            assert_eq!(gather(data, layout), view.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(())
    }
}
