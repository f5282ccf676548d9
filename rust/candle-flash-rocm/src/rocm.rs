//! Attention on an AMD GPU for tensors in host memory: they are copied there and back.
use crate::kv_cache::KvCache;
use crate::stage::{from_rocflash, Target};
use candle::{DType, Result};
use rocflash::gpu::{Device, Stream};

/// An AMD GPU with the functions of this crate as methods.
///
/// Candle has no ROCm device, so its tensors are host memory: q, k and v are copied to the GPU for each call, and the
/// result back. [`RocmAttention::kv_cache`] keeps keys and values on the GPU between calls, so that only the new ones travel.
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

    pub(crate) fn target(&self) -> Target {
        Target::Device(self.stream.clone())
    }
}
