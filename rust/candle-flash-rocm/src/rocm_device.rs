//! Attention on tensors that already lie in an AMD GPU's memory (feature `rocm`).
//!
//! Candle has no ROCm device yet. The day it has one, its storage will be an address, a dtype and a layout on a stream: just
//! what [`forward`] takes, so that the new method of `CustomOp3` is a call of it.
use crate::functions::FlashAttn;
use crate::op::{Attention, Prepared};
use crate::stage::{from_rocflash, strides, Target};
use candle::{bail, DType, Layout, Result, Shape};
use rocflash::gpu::Stream;
use rocflash::{Executor, Outputs};

/// A tensor in a GPU's memory: where its storage begins, and which part of it is meant.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensor<'a> {
    /// The storage's first byte.
    pub address: u64,
    /// Shape, strides and offset within the storage.
    pub layout: &'a Layout,
}

/// The shape of what [`forward`] writes.
pub fn output_shape(op: &FlashAttn, q: &Layout, k: &Layout, v: &Layout) -> Result<Shape> {
    Ok(Shape::from(Attention::dims(&op.spec(), q, k, v)?.out))
}

/// Puts attention into the stream: `out` gets as many elements as [`output_shape`] says, without gaps.
///
/// # Safety
/// q, k and v are tensors of this dtype in memory of the stream's device, `out` is room for the result there, and all of it
/// stays allocated until the stream has done the work.
pub unsafe fn forward(
    op: &FlashAttn,
    stream: &Stream,
    dtype: DType,
    q: DeviceTensor,
    k: DeviceTensor,
    v: DeviceTensor,
    out: u64,
) -> Result<()> {
    let kind = match dtype {
        DType::F32 => rocflash::DType::F32,
        DType::F16 => rocflash::DType::F16,
        DType::BF16 => rocflash::DType::Bf16,
        dtype => bail!("flash-attn is only supported for f32/f16/bf16 ({dtype:?})"),
    };
    let spec = op.spec();
    let dims = Attention::dims(&spec, q.layout, k.layout, v.layout)?;
    let prepared = Prepared::new(&spec, &dims, k.layout.dims()[1])?;
    let staged = prepared.stage(&Target::Device(stream.clone()))?;
    let options = prepared.options(&spec, &staged)?;
    let view = |tensor: DeviceTensor| {
        let layout = rocflash::Layout::strided(tensor.layout.dims(), &strides(tensor.layout)?);
        let bytes = tensor.layout.start_offset().checked_mul(kind.size());
        let first = bytes.and_then(|bytes| tensor.address.checked_add(u64::try_from(bytes).ok()?));
        let Some(first) = first else {
            bail!("offset {} is more than can be addressed", tensor.layout.start_offset())
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.view_raw(first, kind, layout.map_err(from_rocflash)?) })
    };
    let (q, k, v) = (view(q)?, view(k)?, view(v)?);
    let layout = rocflash::Layout::contiguous(&dims.out).map_err(from_rocflash)?;
    // SAFETY: the caller's promise.
    let out = unsafe { stream.view_raw_mut(out, kind, layout) };
    stream.clone().forward(&q, &k, &v, &options, Outputs::new(out)).map_err(from_rocflash)
}
