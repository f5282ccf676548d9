//! Attention on an AMD GPU for tensors in host memory: they are copied there and back.
use crate::kv_cache::KvCache;
use crate::rocm_tensor::RocmTensor;
use crate::stage::{from_rocflash, Target};
use candle::{DType, Result, Tensor};
use rocflash::gpu::{Device, Stream};
use std::sync::Mutex;

/// The GPU that [`new_rocm`] was asked for last.
static DEFAULT: Mutex<Option<Stream>> = Mutex::new(None);

/// Makes this AMD GPU the one that this crate's functions compute on from now on, in all threads, and returns the device that Candle's
/// tensors are made on: the CPU, as Candle has no ROCm device. In place of a `Device::new_rocm`, it is the one line to change:
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
/// Tensors travel to the GPU and back for each call; [`RocmTensor`](crate::RocmTensor) is for those that shall stay there. Refused
/// as [`RocmAttention::new`] is; the functions then go on as before.
pub fn new_rocm(ordinal: usize) -> Result<candle::Device> {
    let stream = RocmAttention::new(ordinal)?.stream;
    *DEFAULT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(stream);
    Ok(candle::Device::Cpu)
}

/// Where functions compute that are not told.
pub(crate) fn default_target() -> Target {
    let stream = DEFAULT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    stream.map_or(Target::Cpu, Target::Device)
}

/// An AMD GPU with the functions of this crate as methods.
///
/// Candle has no ROCm device, so its tensors are host memory: q, k and v are copied to the GPU for each call, and the
/// result back. [`RocmAttention::kv_cache`] keeps keys and values on the GPU between calls, so that only the new ones travel;
/// [`RocmAttention::upload`] makes tensors that stay there.
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
    /// The AMD GPU of this number. Refused, with the reason, where there is no driver, no such GPU, or the library has
    /// no kernels for it.
    pub fn new(ordinal: usize) -> Result<Self> {
        let device = Device::hip(ordinal).map_err(from_rocflash)?;
        device.attention().map_err(from_rocflash)?;
        Ok(Self { stream: device.stream().map_err(from_rocflash)? })
    }

    /// On a stream of the caller's, of either kind of GPU.
    pub fn on(stream: Stream) -> Result<Self> {
        stream.device().attention().map_err(from_rocflash)?;
        Ok(Self { stream })
    }

    /// The stream that it works on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Room on the GPU for `capacity` keys and values of `batch` sequences.
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

    /// A copy of a tensor of Candle's, on the GPU.
    pub fn upload(&self, tensor: &Tensor) -> Result<RocmTensor> {
        RocmTensor::new(&self.stream, tensor)
    }

    pub(crate) fn target(&self) -> Target {
        Target::Device(self.stream.clone())
    }
}
