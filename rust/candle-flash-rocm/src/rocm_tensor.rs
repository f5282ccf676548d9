//! Tensors in GPU memory: an owned buffer with a shape, converted from and to Candle's tensors.
use crate::op::{unsupported, with_options, Attention, Spec};
use crate::stage::{count, from_rocflash, gather, strides, upload, Target};
use candle::{bail, CpuStorage, DType, Layout, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use rocflash::gpu::{Buffer, Stream};
use rocflash::{Element, Executor, Gradients, Outputs, View};
use std::sync::Arc;

/// A tensor in GPU memory. Its stream orders all work on it, without copies to the host. Clones
/// share the memory.
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
    /// The inputs of a result, for its gradients.
    origin: Option<Arc<Origin>>,
}

#[derive(Debug)]
struct Origin {
    spec: Spec,
    inputs: [RocmTensor; 3],
    /// The outputs of forward that backward reads.
    out: Arc<Buffer>,
    lse: Buffer,
}

impl RocmTensor {
    /// Copies a Candle tensor to the stream's device.
    ///
    /// # Errors
    /// The tensor is not on the CPU, its dtype is not supported, or memory is missing.
    pub fn new(stream: &Stream, tensor: &Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            bail!("the tensor is on {:?}; candle-flash-rocm supports cpu tensors", tensor.device().location())
        };
        let memory = match storage {
            CpuStorage::F32(data) => upload(stream, data, layout),
            CpuStorage::F16(data) => upload(stream, data, layout),
            CpuStorage::BF16(data) => upload(stream, data, layout),
            _ => return Err(unsupported(tensor.dtype())),
        };
        Ok(Self::of(memory.map_err(from_rocflash)?, tensor.dtype(), tensor.dims()))
    }

    /// Allocates a tensor of zeros.
    ///
    /// # Errors
    /// The dtype is not supported, or memory is missing.
    pub fn zeros(stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Self> {
        let memory = stream.zeros_of(kind_of(dtype)?, count(shape)?).map_err(from_rocflash)?;
        Ok(Self::of(memory, dtype, shape))
    }

    fn of(memory: Buffer, dtype: DType, shape: &[usize]) -> Self {
        Self { memory: Arc::new(memory), layout: Layout::contiguous(shape), dtype, origin: None }
    }

    /// Copies the tensor to a Candle tensor, after all previous work of the stream.
    ///
    /// # Errors
    /// The driver failed.
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

    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// The sizes, the strides and the offset within the memory.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The stream that the tensor belongs to.
    pub fn stream(&self) -> &Stream {
        self.memory.stream()
    }

    /// A part of a dimension, in the same memory.
    ///
    /// # Errors
    /// The part is outside the dimension.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        Ok(self.with_layout(self.layout.narrow(dim, start, len)?))
    }

    /// Two dimensions transposed, in the same memory.
    ///
    /// # Errors
    /// A dimension does not exist.
    pub fn transpose(&self, dim1: usize, dim2: usize) -> Result<Self> {
        Ok(self.with_layout(self.layout.transpose(dim1, dim2)?))
    }

    /// Another shape, in the same memory; the tensor must be contiguous.
    ///
    /// # Errors
    /// The tensor is not contiguous, or the number of elements differs.
    pub fn reshape<S: Into<Shape>>(&self, shape: S) -> Result<Self> {
        let shape = shape.into();
        if !self.layout.is_contiguous() || shape.elem_count() != self.layout.shape().elem_count() {
            bail!(
                "a tensor of {:?} with strides {:?} cannot be reshaped to {shape:?}",
                self.dims(),
                self.layout.stride()
            )
        }
        Ok(self.with_layout(Layout::contiguous_with_offset(shape, self.layout.start_offset())))
    }

    /// The tensor without a reference to its inputs, whose memory can then be reused.
    pub fn detach(&self) -> Self {
        self.with_layout(self.layout.clone())
    }

    fn with_layout(&self, layout: Layout) -> Self {
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

    /// The gradients of q, k and v, given the gradient of this result of a function of
    /// [`on_device`](crate::on_device).
    ///
    /// # Errors
    /// The tensor is not such a result, or `dout` has another shape or dtype.
    pub fn gradients(&self, dout: &Self) -> Result<[Self; 3]> {
        let Some(origin) = &self.origin else {
            bail!("this tensor is not the result of a function of on_device and has no gradients")
        };
        if dout.dims() != self.dims() || dout.dtype != self.dtype {
            bail!(
                "dout is {:?} {:?}; it must be {:?} {:?} as the result",
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
        let allocate = |like: &Self| stream.allocate(kind, count(like.dims())?).map_err(from_rocflash);
        let (mut dq, mut dk, mut dv) = (allocate(q)?, allocate(k)?, allocate(v)?);
        let out = origin.out.view(&dims.out).map_err(from_rocflash)?;
        let lse = origin.lse.view(&dims.lse).map_err(from_rocflash)?;
        let gradients = Gradients::new(dout.view()?, out, lse)
            .dq(dq.view_mut(q.dims()).map_err(from_rocflash)?)
            .dk(dk.view_mut(k.dims()).map_err(from_rocflash)?)
            .dv(dv.view_mut(v.dims()).map_err(from_rocflash)?);
        with_options(spec, &dims, k.dims()[1], &Target::Device(stream.clone()), |options| {
            stream.backward(&q.view()?, &k.view()?, &v.view()?, options, gradients).map_err(from_rocflash)
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
