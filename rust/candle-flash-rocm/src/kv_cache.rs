//! A KV cache in host memory or on a GPU, with the dense functions of this crate.
use crate::check;
use crate::op::{slices, stage_all, unsupported, with_options, Spec};
use crate::rocm_tensor::{kind_of, RocmTensor};
use crate::stage::{from_rocflash, Pending, Target};
use candle::{bail, CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use rocflash::{Append, Element, Outputs};
use std::sync::{Arc, Mutex, MutexGuard};

/// A KV cache: (batch, capacity, kv heads, head dim).
///
/// Its functions are those of this crate. They append `k` and `v` to the cache, and q attends to
/// all cached keys. Gradients through a cache are not supported.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_flash_rocm::KvCache;
///
/// // batch, capacity, KV heads, head dim
/// let mut cache = KvCache::new(DType::F32, 1, 4096, 2, 64)?;
/// for _ in 0..3 {
///     let q = Tensor::randn(0f32, 1., (1, 1, 8, 64), &Device::Cpu)?;
///     let k = Tensor::randn(0f32, 1., (1, 1, 2, 64), &Device::Cpu)?;
///     let out = cache.flash_attn(&q, &k, &k, 0.125, true)?;
///     assert_eq!(out.dims(), [1, 1, 8, 64]);
/// }
/// assert_eq!(cache.lengths(), [3]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    shared: Arc<Shared>,
}

/// The state that the cache and its custom op share.
#[derive(Debug)]
struct Shared {
    cache: Mutex<rocflash::KvCache>,
    target: Target,
    dtype: DType,
    shape: [usize; 4],
}

impl Shared {
    /// Checks the shapes; returns the sizes and the number of keys after the append. Window sizes
    /// are compared with the latter, of the longest sequence.
    fn check(&self, cache: &rocflash::KvCache, layouts: [&Layout; 3]) -> Result<(check::Dims, usize)> {
        let dims = check::dense(layouts[0], layouts[1], layouts[2])?;
        let [batch, capacity, heads, head_dim] = self.shape;
        let [k, v] = [layouts[1].dims(), layouts[2].dims()];
        if [k[0], k[2], k[3], v[3]] != [batch, heads, head_dim, head_dim] {
            bail!("shape mismatch cache {:?}, k {:?} and v {:?}", self.shape, k, v)
        }
        let longest = cache.lengths().iter().max().map_or(0, |length| usize::try_from(*length).unwrap_or(0));
        let keys = longest.saturating_add(k[1]);
        if keys > capacity {
            bail!("the cache has a capacity of {capacity} keys; {keys} are too many")
        }
        Ok((dims, keys))
    }

    fn lock(&self) -> MutexGuard<'_, rocflash::KvCache> {
        self.cache.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl KvCache {
    /// Allocates a cache in host memory.
    /// [`RocmAttention::kv_cache`](crate::RocmAttention::kv_cache) allocates one on a GPU.
    ///
    /// # Errors
    /// `dtype` or `capacity` is not supported, or memory is missing.
    pub fn new(dtype: DType, batch: usize, capacity: usize, heads: usize, head_dim: usize) -> Result<Self> {
        Self::make(Target::Cpu, dtype, batch, capacity, heads, head_dim)
    }

    pub(crate) fn make(
        target: Target,
        dtype: DType,
        batch: usize,
        capacity: usize,
        heads: usize,
        head_dim: usize,
    ) -> Result<Self> {
        let kind = kind_of(dtype)?;
        let cache = match &target {
            Target::Cpu => rocflash::KvCache::new(kind, batch, capacity, heads, head_dim),
            Target::Device(stream) => rocflash::KvCache::on(stream, kind, batch, capacity, heads, head_dim),
        };
        let cache = Mutex::new(cache.map_err(from_rocflash)?);
        let shape = [batch, capacity, heads, head_dim];
        Ok(Self { shared: Arc::new(Shared { cache, target, dtype, shape }) })
    }

    /// The number of keys of each sequence.
    pub fn lengths(&self) -> Vec<usize> {
        self.shared.lock().lengths().iter().map(|length| usize::try_from(*length).unwrap_or(0)).collect()
    }

    /// The largest number of keys of a sequence.
    pub fn capacity(&self) -> usize {
        self.shared.shape[1]
    }

    /// Shortens a sequence to its first `len` keys.
    ///
    /// # Errors
    /// `sequence` does not exist or has fewer than `len` keys.
    pub fn truncate(&mut self, sequence: usize, len: usize) -> Result<()> {
        self.shared.lock().truncate(sequence, len).map_err(from_rocflash)
    }

    /// Removes the keys of all sequences.
    pub fn clear(&mut self) {
        self.shared.lock().clear();
    }

    /// The functions for tensors in GPU memory, whose results stay there.
    ///
    /// # Errors
    /// The cache is in host memory.
    pub fn on_device(&mut self) -> Result<DeviceCache<'_>> {
        match &self.shared.target {
            Target::Device(_) => Ok(DeviceCache { cache: self }),
            Target::Cpu => {
                bail!("this cache is in host memory; RocmAttention::kv_cache allocates one on a GPU")
            }
        }
    }

    pub(crate) fn attend(&mut self, spec: Spec, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        if q.dtype() != self.shared.dtype {
            bail!("q is {:?}; this cache is {:?}", q.dtype(), self.shared.dtype)
        }
        q.apply_op3(k, v, Attend { shared: self.shared.clone(), spec })
    }
}

/// A [`KvCache`] on a GPU with functions for tensors in GPU memory: only the lengths are copied.
#[derive(Debug)]
pub struct DeviceCache<'a> {
    cache: &'a mut KvCache,
}

impl DeviceCache<'_> {
    pub(crate) fn attend(
        &mut self,
        spec: Spec,
        q: &RocmTensor,
        k: &RocmTensor,
        v: &RocmTensor,
    ) -> Result<RocmTensor> {
        let shared = &self.cache.shared;
        if q.dtype() != shared.dtype {
            bail!("q is {:?}; this cache is {:?}", q.dtype(), shared.dtype)
        }
        let mut cache = shared.lock();
        let (dims, keys) = shared.check(&cache, [q.layout(), k.layout(), v.layout()])?;
        RocmTensor::attend_cache(&spec, &mut cache, &dims, keys, [q, k, v])
    }
}

/// A custom op, so that backward through it is an error instead of a missing gradient.
struct Attend {
    shared: Arc<Shared>,
    spec: Spec,
}

impl Attend {
    fn forward<T: Element + WithDType>(
        &self,
        storages: [&CpuStorage; 3],
        layouts: [&Layout; 3],
    ) -> Result<(CpuStorage, Shape)> {
        let target = &self.shared.target;
        let mut cache = self.shared.lock();
        let (dims, keys) = self.shared.check(&cache, layouts)?;
        let [q, k, v] = stage_all(target, slices::<T>(storages)?, layouts)?;
        let mut out = Pending::<T>::new(target, &dims.out)?;
        let outputs = Outputs::new(out.view_mut()?);
        let append = Append::new(k.view()?, v.view()?);
        with_options(&self.spec, &dims, keys, target, |options| {
            cache
                .attend(&mut *target.executor(), &q.view()?, &append, options, outputs)
                .map_err(from_rocflash)
        })?;
        Ok((T::to_cpu_storage_owned(out.data()?), Shape::from(dims.out)))
    }
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "flash-attn-kvcache"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (storages, layouts) = ([q, k, v], [q_l, k_l, v_l]);
        match self.shared.dtype {
            DType::F32 => self.forward::<f32>(storages, layouts),
            DType::F16 => self.forward::<f16>(storages, layouts),
            DType::BF16 => self.forward::<bf16>(storages, layouts),
            dtype => Err(unsupported(dtype)),
        }
    }
}
