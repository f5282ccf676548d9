//! Tensors that stay on a GPU: owned device memory with a shape, made from and into Candle's tensors.
use crate::op::{unsupported, with_options, Attention, Spec};
use crate::stage::{count, from_rocflash, gather, strides, upload, Target};
use candle::{bail, CpuStorage, DType, Layout, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use rocflash::gpu::{Buffer, Stream};
use rocflash::{Element, Executor, Gradients, Outputs, View};
use std::sync::Arc;

/// A tensor in a GPU's memory. All that happens to it happens in the order of the stream it was made on, without copies to the host.
/// Copies of it are the same memory.
///
/// ```no_run
/// use candle::{DType, Device, Tensor};
/// use candle_flash_rocm::{on_device, RocmAttention};
///
/// let gpu = RocmAttention::new(0)?;
/// let x = Tensor::randn(0f32, 1., (1, 128, 8, 64), &Device::Cpu)?.to_dtype(DType::F16)?;
/// let (q, k, v) = (gpu.upload(&x)?, gpu.upload(&x)?, gpu.upload(&x)?);
/// let out = on_device::flash_attn(&q, &k, &v, 0.125, true)?;
/// let [dq, dk, dv] = out.gradients(&gpu.upload(&x)?)?;
/// let result: Tensor = out.to_candle()?;
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RocmTensor {
    memory: Arc<Buffer>,
    layout: Layout,
    dtype: DType,
    /// What a result was computed from.
    origin: Option<Arc<Origin>>,
}

#[derive(Debug)]
struct Origin {
    spec: Spec,
    inputs: [RocmTensor; 3],
    /// The result without its origin, and what backward wants besides.
    out: Arc<Buffer>,
    lse: Buffer,
}

impl RocmTensor {
    /// A copy of a tensor of Candle's on the stream's device.
    pub fn new(stream: &Stream, tensor: &Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            bail!("the tensor is on {:?}; candle-flash-rocm takes cpu tensors", tensor.device().location())
        };
        let memory = match storage {
            CpuStorage::F32(data) => upload(stream, data, layout),
            CpuStorage::F16(data) => upload(stream, data, layout),
            CpuStorage::BF16(data) => upload(stream, data, layout),
            _ => return Err(unsupported(tensor.dtype())),
        };
        Ok(Self::of(memory.map_err(from_rocflash)?, tensor.dtype(), tensor.dims()))
    }

    /// Zeros.
    pub fn zeros(stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Self> {
        let memory = stream.zeros_of(kind_of(dtype)?, count(shape)?).map_err(from_rocflash)?;
        Ok(Self::of(memory, dtype, shape))
    }

    fn of(memory: Buffer, dtype: DType, shape: &[usize]) -> Self {
        Self { memory: Arc::new(memory), layout: Layout::contiguous(shape), dtype, origin: None }
    }

    /// A copy of it among Candle's tensors, after all that the stream was given before.
    pub fn to_candle(&self) -> Result<Tensor> {
        match self.dtype {
            DType::F32 => self.download::<f32>(),
            DType::F16 => self.download::<f16>(),
            DType::BF16 => self.download::<bf16>(),
            dtype => Err(unsupported(dtype)),
        }
    }

    fn download<T: Element + WithDType>(&self) -> Result<Tensor> {
        let data = self.memory.download::<T>().map_err(from_rocflash)?;
        Tensor::from_vec(gather(&data, &self.layout), self.dims(), &candle::Device::Cpu)
    }

    /// Its sizes.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// Its sizes, strides and offset within its memory.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The stream that it belongs to.
    pub fn stream(&self) -> &Stream {
        self.memory.stream()
    }

    /// Part of a dimension, in the same memory.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        Ok(self.seen_as(self.layout.narrow(dim, start, len)?))
    }

    /// With two dimensions exchanged, in the same memory.
    pub fn transpose(&self, dim1: usize, dim2: usize) -> Result<Self> {
        Ok(self.seen_as(self.layout.transpose(dim1, dim2)?))
    }

    /// With other sizes, in the same memory; its elements must lie side by side.
    pub fn reshape<S: Into<Shape>>(&self, shape: S) -> Result<Self> {
        let shape = shape.into();
        if !self.layout.is_contiguous() || shape.elem_count() != self.layout.shape().elem_count() {
            bail!(
                "a tensor of {:?} with strides {:?} cannot be reshaped to {shape:?}",
                self.dims(),
                self.layout.stride()
            )
        }
        Ok(self.seen_as(Layout::contiguous_with_offset(shape, self.layout.start_offset())))
    }

    /// The same without what it was computed from, whose memory is free for others then.
    pub fn detach(&self) -> Self {
        self.seen_as(self.layout.clone())
    }

    fn seen_as(&self, layout: Layout) -> Self {
        Self { memory: self.memory.clone(), layout, dtype: self.dtype, origin: None }
    }

    pub(crate) fn view(&self) -> Result<View<'_>> {
        let strides = strides(&self.layout)?;
        self.memory.view_strided(self.layout.start_offset(), self.dims(), &strides).map_err(from_rocflash)
    }

    pub(crate) fn attend(spec: Spec, inputs: [&Self; 3]) -> Result<Self> {
        let [q, k, v] = inputs;
        let kind = kind_of(q.dtype)?;
        let mut stream = q.stream().clone();
        let dims = Attention::dims(&spec, &q.layout, &k.layout, &v.layout)?;
        let mut out = stream.allocate(kind, count(&dims.out)?).map_err(from_rocflash)?;
        let mut lse = stream.allocate(rocflash::DType::F32, count(&dims.lse)?).map_err(from_rocflash)?;
        let outputs = Outputs::new(out.view_mut(&dims.out).map_err(from_rocflash)?)
            .lse(lse.view_mut(&dims.lse).map_err(from_rocflash)?);
        with_options(&spec, &dims, k.dims()[1], &Target::Device(stream.clone()), |options| {
            stream.forward(&q.view()?, &k.view()?, &v.view()?, options, outputs).map_err(from_rocflash)
        })?;
        let mut result = Self::of(out, q.dtype, &dims.out);
        let inputs = inputs.map(Self::detach);
        result.origin = Some(Arc::new(Origin { spec, inputs, out: result.memory.clone(), lse }));
        Ok(result)
    }

    pub(crate) fn attend_cache(
        spec: &Spec,
        cache: &mut rocflash::KvCache,
        dims: &crate::check::Dims,
        keys: usize,
        [q, k, v]: [&Self; 3],
    ) -> Result<Self> {
        let mut stream = q.stream().clone();
        let mut out = stream.allocate(kind_of(q.dtype)?, count(&dims.out)?).map_err(from_rocflash)?;
        let outputs = Outputs::new(out.view_mut(&dims.out).map_err(from_rocflash)?);
        let append = rocflash::Append::new(k.view()?, v.view()?);
        with_options(spec, dims, keys, &Target::Device(stream.clone()), |options| {
            cache.attend(&mut stream, &q.view()?, &append, options, outputs).map_err(from_rocflash)
        })?;
        Ok(Self::of(out, q.dtype, &dims.out))
    }

    /// The gradients of q, k and v, from that of this result of a function of [`on_device`](crate::on_device).
    pub fn gradients(&self, dout: &Self) -> Result<[Self; 3]> {
        let Some(origin) = &self.origin else {
            bail!("this tensor is not the result of a function of on_device: there is nothing to compute gradients of")
        };
        if dout.dims() != self.dims() || dout.dtype != self.dtype {
            bail!(
                "dout is {:?} {:?}; it must be {:?} {:?}, as the result is",
                dout.dtype,
                dout.dims(),
                self.dtype,
                self.dims()
            )
        }
        let [q, k, v] = &origin.inputs;
        let spec = &origin.spec;
        let kind = kind_of(self.dtype)?;
        let mut stream = self.stream().clone();
        let dims = Attention::dims(spec, &q.layout, &k.layout, &v.layout)?;
        let room = |like: &Self| stream.allocate(kind, count(like.dims())?).map_err(from_rocflash);
        let (mut dq, mut dk, mut dv) = (room(q)?, room(k)?, room(v)?);
        let out = origin.out.view(&dims.out).map_err(from_rocflash)?;
        let lse = origin.lse.view(&dims.lse).map_err(from_rocflash)?;
        let wanted = Gradients::new(dout.view()?, out, lse)
            .dq(dq.view_mut(q.dims()).map_err(from_rocflash)?)
            .dk(dk.view_mut(k.dims()).map_err(from_rocflash)?)
            .dv(dv.view_mut(v.dims()).map_err(from_rocflash)?);
        with_options(spec, &dims, k.dims()[1], &Target::Device(stream.clone()), |options| {
            stream.backward(&q.view()?, &k.view()?, &v.view()?, options, wanted).map_err(from_rocflash)
        })?;
        Ok([(dq, q), (dk, k), (dv, v)].map(|(memory, like)| Self::of(memory, self.dtype, like.dims())))
    }
}

pub(crate) fn kind_of(dtype: DType) -> Result<rocflash::DType> {
    match dtype {
        DType::F32 => Ok(rocflash::DType::F32),
        DType::F16 => Ok(rocflash::DType::F16),
        DType::BF16 => Ok(rocflash::DType::Bf16),
        dtype => Err(unsupported(dtype)),
    }
}
