//! Attention on tensors that already lie in an AMD GPU's memory (feature `rocm`).
//!
//! Candle has no ROCm device yet. The day it has one, its storage will be an address, a dtype and a layout on a stream: just
//! what [`forward`] and [`backward`] take, so that the new methods of `CustomOp3` are calls of them.
use crate::functions::FlashAttn;
use crate::op::{with_options, Attention};
use crate::rocm_tensor::kind_of;
use crate::stage::{from_rocflash, strides, Target};
use candle::{bail, DType, Layout, Result, Shape};
use rocflash::gpu::Stream;
use rocflash::{Executor, Gradients, Outputs, View};

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
    // SAFETY: the caller's promise.
    unsafe { attend(op, stream, dtype, [q, k, v], out, None) }
}

/// As [`forward`]; `lse` gets what [`backward`] wants besides `out`: f32 (b, h, queries), without gaps.
///
/// # Safety
/// As [`forward`], and `lse` is room for so many numbers there.
#[expect(clippy::too_many_arguments, reason = "as forward")]
pub unsafe fn forward_with_lse(
    op: &FlashAttn,
    stream: &Stream,
    dtype: DType,
    q: DeviceTensor,
    k: DeviceTensor,
    v: DeviceTensor,
    out: u64,
    lse: u64,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { attend(op, stream, dtype, [q, k, v], out, Some(lse)) }
}

/// What [`backward`] takes besides q, k and v, in the stream's device's memory and without gaps.
#[derive(Clone, Copy, Debug)]
pub struct DeviceGradients {
    /// What forward wrote.
    pub out: u64,
    /// What [`forward_with_lse`] wrote.
    pub lse: u64,
    /// The gradient of out.
    pub dout: u64,
    /// Room for the gradient of q; nothing is computed where there is none.
    pub dq: Option<u64>,
    /// Likewise of k.
    pub dk: Option<u64>,
    /// Likewise of v.
    pub dv: Option<u64>,
}

/// Puts the gradients of q, k and v into the stream.
///
/// # Safety
/// As [`forward`]; all addresses of `gradients` are such memory too, of as many elements as what they belong to has.
pub unsafe fn backward(
    op: &FlashAttn,
    stream: &Stream,
    dtype: DType,
    q: DeviceTensor,
    k: DeviceTensor,
    v: DeviceTensor,
    gradients: DeviceGradients,
) -> Result<()> {
    let kind = kind_of(dtype)?;
    let spec = op.spec();
    let layouts = [q, k, v].map(|tensor| tensor.layout);
    let dims = Attention::dims(&spec, layouts[0], layouts[1], layouts[2])?;
    let keys = layouts[1].dims()[1];
    // SAFETY: the caller's promise, for all views here.
    unsafe {
        let [q, k, v] = [view(stream, kind, q)?, view(stream, kind, k)?, view(stream, kind, v)?];
        let read = |address, kind, shape: &[usize]| {
            Ok::<_, candle::Error>(stream.view_raw(address, kind, contiguous(shape)?))
        };
        let write = |address, layout: &Layout| {
            Ok::<_, candle::Error>(stream.view_raw_mut(address, kind, contiguous(layout.dims())?))
        };
        let mut wanted = Gradients::new(
            read(gradients.dout, kind, &dims.out)?,
            read(gradients.out, kind, &dims.out)?,
            read(gradients.lse, rocflash::DType::F32, &dims.lse)?,
        );
        if let Some(dq) = gradients.dq {
            wanted = wanted.dq(write(dq, layouts[0])?);
        }
        if let Some(dk) = gradients.dk {
            wanted = wanted.dk(write(dk, layouts[1])?);
        }
        if let Some(dv) = gradients.dv {
            wanted = wanted.dv(write(dv, layouts[2])?);
        }
        with_options(&spec, &dims, keys, &Target::Device(stream.clone()), |options| {
            stream.clone().backward(&q, &k, &v, options, wanted).map_err(from_rocflash)
        })
    }
}

/// # Safety
/// As [`forward_with_lse`].
unsafe fn attend(
    op: &FlashAttn,
    stream: &Stream,
    dtype: DType,
    [q, k, v]: [DeviceTensor; 3],
    out: u64,
    lse: Option<u64>,
) -> Result<()> {
    let kind = kind_of(dtype)?;
    let spec = op.spec();
    let dims = Attention::dims(&spec, q.layout, k.layout, v.layout)?;
    let keys = k.layout.dims()[1];
    // SAFETY: the caller's promise, for all views here.
    unsafe {
        let [q, k, v] = [view(stream, kind, q)?, view(stream, kind, k)?, view(stream, kind, v)?];
        let mut outputs = Outputs::new(stream.view_raw_mut(out, kind, contiguous(&dims.out)?));
        if let Some(lse) = lse {
            outputs = outputs.lse(stream.view_raw_mut(lse, rocflash::DType::F32, contiguous(&dims.lse)?));
        }
        with_options(&spec, &dims, keys, &Target::Device(stream.clone()), |options| {
            stream.clone().forward(&q, &k, &v, options, outputs).map_err(from_rocflash)
        })
    }
}

fn contiguous(shape: &[usize]) -> Result<rocflash::Layout> {
    rocflash::Layout::contiguous(shape).map_err(from_rocflash)
}

/// # Safety
/// The tensor is one of this dtype in memory of the stream's device, and stays so until the stream has read it.
unsafe fn view<'a>(stream: &Stream, kind: rocflash::DType, tensor: DeviceTensor) -> Result<View<'a>> {
    let layout = rocflash::Layout::strided(tensor.layout.dims(), &strides(tensor.layout)?);
    let bytes = tensor.layout.start_offset().checked_mul(kind.size());
    let first = bytes.and_then(|bytes| tensor.address.checked_add(u64::try_from(bytes).ok()?));
    let Some(first) = first else {
        bail!("offset {} is more than can be addressed", tensor.layout.start_offset())
    };
    // SAFETY: the caller's promise.
    Ok(unsafe { stream.view_raw(first, kind, layout.map_err(from_rocflash)?) })
}
