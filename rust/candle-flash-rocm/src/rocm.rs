//! Attention on an AMD GPU for tensors in host memory, which are copied to the GPU and back.
use crate::kv_cache::KvCache;
use crate::rocm_tensor::RocmTensor;
use crate::stage::{from_rocflash, Target};
use candle::{DType, Result, Tensor};
use rocflash::gpu::{Device, Stream};
use std::sync::Mutex;

/// The GPU of the last call of [`new_rocm`].
static DEFAULT: Mutex<Option<Stream>> = Mutex::new(None);

/// Makes this crate's functions compute on this AMD GPU, in all threads. Returns the device of
/// Candle's tensors: the CPU, because Candle has no ROCm device. Where a program calls
/// `Device::new_rocm`, this is the only line to change:
///
/// ```no_run
/// use candle::{DType, Tensor};
/// use candle_flash_rocm::flash_attn;
///
/// let device = candle_flash_rocm::new_rocm(0)?;
/// let q = Tensor::randn(0.0, 1.0, (2, 128, 8, 64), &device)?.to_dtype(DType::F16)?;
/// let out = flash_attn(&q, &q, &q, 0.125, false)?; // on the GPU
/// # Ok::<(), candle::Error>(())
/// ```
///
/// Tensors are copied to the GPU and back for each call; a [`RocmTensor`](crate::RocmTensor) stays
/// there.
///
/// # Errors
/// As [`RocmAttention::new`]; the functions then continue on the previous device.
pub fn new_rocm(ordinal: usize) -> Result<candle::Device> {
    let stream = RocmAttention::new(ordinal)?.stream;
    *DEFAULT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(stream);
    Ok(candle::Device::Cpu)
}

/// The device of the functions without a device argument.
pub(crate) fn default_target() -> Target {
    let stream = DEFAULT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    stream.map_or(Target::Cpu, Target::Device)
}

/// An AMD GPU with the functions of this crate as methods.
///
/// Candle has no ROCm device, so its tensors are in host memory: each call copies q, k and v to the
/// GPU and the result back. [`RocmAttention::kv_cache`] keeps keys and values on the GPU between
/// calls, so that only the new ones are copied. [`RocmAttention::upload`] creates tensors that stay
/// on the GPU.
///
/// ```no_run
/// use candle_flash_rocm::RocmAttention;
/// # let q = candle::Tensor::zeros((1, 1, 1, 8), candle::DType::F16, &candle::Device::Cpu)?;
/// # let (k, v) = (q.clone(), q.clone());
///
/// let gpu = RocmAttention::new(0)?;
/// let out = gpu.flash_attn(&q, &k, &v, 0.125, true)?;
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RocmAttention {
    stream: Stream,
}

impl RocmAttention {
    /// Opens the AMD GPU with this ordinal.
    ///
    /// # Errors
    /// The driver or the GPU is missing, or the library has no kernels for the GPU; the message has
    /// the reason.
    pub fn new(ordinal: usize) -> Result<Self> {
        let device = Device::hip(ordinal).map_err(from_rocflash)?;
        device.attention().map_err(from_rocflash)?;
        Ok(Self { stream: device.stream().map_err(from_rocflash)? })
    }

    /// Uses an existing stream, of an AMD or NVIDIA GPU.
    ///
    /// # Errors
    /// The library has no kernels for the stream's device.
    pub fn on(stream: Stream) -> Result<Self> {
        stream.device().attention().map_err(from_rocflash)?;
        Ok(Self { stream })
    }

    /// The stream of all calls.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Allocates a KV cache on the GPU for `capacity` keys of `batch` sequences.
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn kv_cache(
        &self,
        dtype: DType,
        batch: usize,
        capacity: usize,
        heads: usize,
        head_dim: usize,
    ) -> Result<KvCache> {
        KvCache::make(self.target(), dtype, batch, capacity, heads, head_dim)
    }

    /// Copies a Candle tensor to the GPU.
    ///
    /// # Errors
    /// As [`RocmTensor::new`].
    pub fn upload(&self, tensor: &Tensor) -> Result<RocmTensor> {
        RocmTensor::new(&self.stream, tensor)
    }

    pub(crate) fn target(&self) -> Target {
        Target::Device(self.stream.clone())
    }
}
