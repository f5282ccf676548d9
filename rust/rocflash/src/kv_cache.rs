//! A KV cache in host memory or on a GPU.
use crate::call::Attention;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Executor;
use crate::gpu::{Buffer, Stream};
use crate::options::{Append, Options, Outputs};
use crate::view::{View, ViewMut};
use half::{bf16, f16};

enum Memory {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Device(Buffer),
}

impl Memory {
    fn new(stream: Option<&Stream>, dtype: DType, len: usize) -> Result<Self> {
        match (stream, dtype) {
            (Some(stream), DType::F32 | DType::F16 | DType::Bf16) => {
                Ok(Self::Device(stream.zeros_of(dtype, len)?))
            }
            (None, DType::F32) => Ok(Self::F32(zeros(0.0, len)?)),
            (None, DType::F16) => Ok(Self::F16(zeros(f16::ZERO, len)?)),
            (None, DType::Bf16) => Ok(Self::Bf16(zeros(bf16::ZERO, len)?)),
            _ => Err(Error::invalid(format!("dtype is {dtype}; it must be f32, f16 or bf16"))),
        }
    }

    fn view(&self, shape: &[usize]) -> Result<View<'_>> {
        match self {
            Self::F32(data) => View::new(data, shape),
            Self::F16(data) => View::new(data, shape),
            Self::Bf16(data) => View::new(data, shape),
            Self::Device(buffer) => buffer.view(shape),
        }
    }

    fn view_mut(&mut self, shape: &[usize]) -> Result<ViewMut<'_>> {
        match self {
            Self::F32(data) => ViewMut::new(data, shape),
            Self::F16(data) => ViewMut::new(data, shape),
            Self::Bf16(data) => ViewMut::new(data, shape),
            Self::Device(buffer) => buffer.view_mut(shape),
        }
    }
}

/// `vec!` gets zeroed pages lazily from the system, but aborts the process if the allocation fails.
/// So the allocator is tried first.
fn zeros<T: Clone>(zero: T, len: usize) -> Result<Vec<T>> {
    let failed = |_| {
        let bytes = len.saturating_mul(size_of::<T>());
        Error::new(ErrorKind::OutOfMemory, format!("could not allocate a cache of {bytes} bytes"))
    };
    Vec::<T>::new().try_reserve_exact(len).map_err(failed)?;
    Ok(vec![zero; len])
}

/// A KV cache of `batch` sequences of up to `capacity` keys each.
///
/// ```
/// use rocflash::{Append, Cpu, DType, KvCache, Options, Outputs, View, ViewMut};
///
/// // batch, capacity, KV heads, head dim
/// let mut cache = KvCache::new(DType::F32, 1, 1024, 2, 64)?;
/// let mut cpu = Cpu::new();
/// for step in 0..3 {
///     let q = vec![1.0f32; 8 * 64];
///     let new = vec![step as f32; 2 * 64];
///     let new = View::new(&new, &[1, 1, 2, 64])?;
///     let mut out = vec![0.0f32; 8 * 64];
///     cache.attend(
///         &mut cpu,
///         &View::new(&q, &[1, 1, 8, 64])?,
///         &Append::new(new, new),
///         &Options::new().causal(),
///         Outputs::new(ViewMut::new(&mut out, &[1, 1, 8, 64])?),
///     )?;
/// }
/// assert_eq!(cache.lengths(), [3]);
/// # Ok::<(), rocflash::Error>(())
/// ```
pub struct KvCache {
    k: Memory,
    v: Memory,
    k_shape: [usize; 4],
    v_shape: [usize; 4],
    lengths: Vec<i32>,
    /// The lengths in device memory, for a cache on a GPU.
    device_lengths: Option<Buffer>,
}

impl KvCache {
    /// Allocates a cache in host memory; keys and values have the same head dim.
    ///
    /// # Errors
    /// As [`KvCache::with_value_dim`].
    pub fn new(dtype: DType, batch: usize, capacity: usize, heads: usize, head_dim: usize) -> Result<Self> {
        Self::with_value_dim(None, dtype, batch, capacity, heads, [head_dim; 2])
    }

    /// Allocates a cache on a GPU; keys and values have the same head dim.
    ///
    /// # Errors
    /// As [`KvCache::with_value_dim`].
    pub fn on(
        stream: &Stream,
        dtype: DType,
        batch: usize,
        capacity: usize,
        heads: usize,
        head_dim: usize,
    ) -> Result<Self> {
        Self::with_value_dim(Some(stream), dtype, batch, capacity, heads, [head_dim; 2])
    }

    /// Allocates a cache in host memory or on a GPU; `head_dims` are those of keys and of values.
    ///
    /// # Errors
    /// `dtype` or `capacity` is not supported, or memory is missing.
    pub fn with_value_dim(
        stream: Option<&Stream>,
        dtype: DType,
        batch: usize,
        capacity: usize,
        heads: usize,
        head_dims: [usize; 2],
    ) -> Result<Self> {
        if i32::try_from(capacity).is_err() {
            return Err(Error::invalid(format!("capacity is {capacity}; it must be 0 to {}", i32::MAX)));
        }
        let [k_shape, v_shape] = head_dims.map(|d| [batch, capacity, heads, d]);
        let memory = |shape: &[usize; 4]| {
            let len = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
            let len = len
                .filter(|len| *len <= isize::MAX as usize / dtype.size())
                .ok_or_else(|| Error::invalid(format!("shape {shape:?} exceeds the address space")))?;
            Memory::new(stream, dtype, len)
        };
        let device_lengths = stream.map(|stream| stream.zeros::<i32>(batch)).transpose()?;
        Ok(Self {
            k: memory(&k_shape)?,
            v: memory(&v_shape)?,
            k_shape,
            v_shape,
            lengths: vec![0; batch],
            device_lengths,
        })
    }

    /// The number of keys of each sequence.
    pub fn lengths(&self) -> &[i32] {
        &self.lengths
    }

    /// The largest number of keys of a sequence.
    pub fn capacity(&self) -> usize {
        self.k_shape[1]
    }

    /// The keys: (batch, capacity, heads, head dim).
    ///
    /// # Errors
    /// Never, since the constructor has checked the shape.
    pub fn keys(&self) -> Result<View<'_>> {
        self.k.view(&self.k_shape)
    }

    /// The values: (batch, capacity, heads, head dim).
    ///
    /// # Errors
    /// As [`KvCache::keys`].
    pub fn values(&self) -> Result<View<'_>> {
        self.v.view(&self.v_shape)
    }

    /// Shortens a sequence to its first `len` keys.
    ///
    /// # Errors
    /// `sequence` does not exist or has fewer than `len` keys.
    pub fn truncate(&mut self, sequence: usize, len: usize) -> Result<()> {
        let sequences = self.lengths.len();
        let length = self.lengths.get_mut(sequence).ok_or_else(|| {
            Error::invalid(format!("sequence is {sequence}; the cache has {sequences} sequences"))
        })?;
        match i32::try_from(len) {
            Ok(len) if len <= *length => *length = len,
            _ => return Err(Error::invalid(format!("len is {len}; sequence {sequence} has {length} keys"))),
        }
        Ok(())
    }

    /// Removes the keys of all sequences.
    pub fn clear(&mut self) {
        self.lengths.fill(0);
    }

    /// Appends the new keys and values, then attends to all keys. The executor must match the
    /// cache's memory: [`Cpu`](crate::Cpu) or the cache's stream. A rejected call leaves the cache
    /// unchanged.
    ///
    /// # Errors
    /// As [`Executor::forward`](crate::Executor::forward), or the new keys exceed the capacity.
    pub fn attend<E: Executor + ?Sized>(
        &mut self,
        executor: &mut E,
        q: &View,
        append: &Append,
        options: &Options,
        outputs: Outputs,
    ) -> Result<()> {
        for (name, given) in [
            ("seqused_k", options.seqused_k.is_some()),
            ("cu_seqlens_k", options.cu_seqlens_k.is_some()),
            ("block_table", options.block_table.is_some()),
            ("cache_batch_idx", options.cache_batch_idx.is_some()),
            ("cu_seqlens_k_new", append.cu_seqlens_k_new.is_some()),
        ] {
            if given {
                return Err(Error::invalid(format!("{name} is set; a KvCache sets it itself")));
            }
        }
        let new = self.check_new(append)?;
        let after: Vec<i32> = self.lengths.iter().map(|length| length + new).collect();
        self.decode(executor, q, append, options, &outputs)?;
        self.lengths = after;
        Ok(())
    }

    /// Validates the new rows and returns their number per sequence. The library does not read
    /// lengths in GPU memory on the host, so the capacity is checked here.
    fn check_new(&self, append: &Append) -> Result<i32> {
        let Some((k_new, v_new)) = append.new else { return Ok(0) };
        let [batch, _, heads, columns] = self.k_shape;
        let rows = k_new.shape().get(1).copied().unwrap_or(0);
        let wanted = format!("({batch}, new keys, {heads}, {columns})");
        check_shape("k_new", &k_new, [batch, heads, columns], rows, wanted)?;
        let columns = self.v_shape[3];
        let wanted = format!("({batch}, {rows}, {heads}, {columns}) with the rows of k_new");
        check_shape("v_new", &v_new, [batch, heads, columns], rows, wanted)?;
        for (name, new, cache) in [("k_new", k_new, self.keys()?), ("v_new", v_new, self.values()?)] {
            if new.dtype() != cache.dtype() {
                return Err(Error::invalid(format!(
                    "{name} has dtype {}; this cache is {}",
                    new.dtype(),
                    cache.dtype()
                )));
            }
            if new.raw().residence() != cache.raw().residence() {
                return Err(Error::invalid(format!(
                    "{name} is in {}; this cache is in {}",
                    new.raw().residence(),
                    cache.raw().residence()
                )));
            }
        }
        let capacity = self.capacity();
        let too_long = |length: &i32| {
            let after = i64::from(*length).checked_add(rows).and_then(|after| usize::try_from(after).ok());
            after.is_none_or(|after| after > capacity)
        };
        if let Some(n) = self.lengths.iter().position(too_long) {
            return Err(Error::invalid(format!(
                "k_new has {rows} new keys; sequence {n} has {} of at most {capacity}",
                self.lengths[n]
            )));
        }
        // A cache without sequences appends nothing, even if k_new has rows.
        Ok(if self.lengths.is_empty() {
            0
        } else {
            i32::try_from(rows).expect("checked against the capacity")
        })
    }

    /// Runs decode over the cached keys and the appended ones.
    fn decode<E: Executor + ?Sized>(
        &mut self,
        executor: &mut E,
        q: &View,
        append: &Append,
        options: &Options,
        outputs: &Outputs,
    ) -> Result<()> {
        let count = self.lengths.len();
        if let Some(buffer) = &mut self.device_lengths {
            buffer.copy_from(&self.lengths)?;
        }
        let used = match &self.device_lengths {
            Some(buffer) => buffer.view(&[count])?,
            None => View::new(&self.lengths, &[count])?,
        };
        let caches = [self.k.view_mut(&self.k_shape)?, self.v.view_mut(&self.v_shape)?];
        let options = options.seqused_k(used);
        let [k, v] = &caches;
        let residence = executor.residence().0;
        let call = Attention::decode(residence, q, [k, v], append, &options, outputs)?;
        executor.execute(&call)
    }
}

/// Checks that new rows have the shape (batch, rows, heads, columns); `wanted` is that shape in the
/// message.
fn check_shape(
    name: &str,
    new: &View,
    [batch, heads, columns]: [usize; 3],
    rows: i64,
    wanted: String,
) -> Result<()> {
    let is = |size: i64, wanted: usize| usize::try_from(size) == Ok(wanted);
    match *new.shape() {
        [b, r, h, c] if is(b, batch) && r == rows && is(h, heads) && is(c, columns) => Ok(()),
        ref shape => {
            let sizes: Vec<String> = shape.iter().map(i64::to_string).collect();
            Err(Error::invalid(format!("{name} has shape ({}); it must be {wanted}", sizes.join(", "))))
        }
    }
}

impl std::fmt::Debug for KvCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvCache").field("shape", &self.k_shape).field("lengths", &self.lengths).finish()
    }
}
