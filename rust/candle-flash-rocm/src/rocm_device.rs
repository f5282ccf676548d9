//! Attention on tensors in the memory of an AMD GPU (feature `rocm`).
//!
//! Candle has no ROCm device yet. The storage of such a device would be an address, a dtype and a
//! layout on a stream, which are the arguments of [`forward`] and [`backward`]. So the ROCm methods
//! of `CustomOp3` would be calls of these functions.
use crate::functions::FlashAttn;
use crate::op::{with_options, Attention};
use crate::rocm_tensor::kind_of;
use crate::stage::{from_rocflash, strides, Target};
use candle::{bail, DType, Layout, Result, Shape};
use rocflash::gpu::Stream;
use rocflash::{Executor, Gradients, Outputs, View};

/// A tensor in GPU memory: the start of its storage, and its layout.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensor<'a> {
    /// The address of the storage.
    pub address: u64,
    /// Shape, strides and offset within the storage.
    pub layout: &'a Layout,
}

/// The shape of the output of [`forward`].
///
/// # Errors
/// The shapes do not match, or are not supported.
pub fn output_shape(op: &FlashAttn, q: &Layout, k: &Layout, v: &Layout) -> Result<Shape> {
    Ok(Shape::from(Attention::dims(&op.spec(), q, k, v)?.out))
}

/// Enqueues attention on the stream. `out` receives a contiguous tensor of shape [`output_shape`].
///
/// # Errors
/// As [`flash_attn`](crate::flash_attn).
///
/// # Safety
/// q, k and v are tensors of this dtype in memory of the stream's device. `out` has that device's
/// memory for the result. All of it stays allocated until the stream has completed the work.
pub unsafe fn forward(
    op: &FlashAttn,
    stream: &Stream,
    dtype: DType,
    q: DeviceTensor,
    k: DeviceTensor,
    v: DeviceTensor,
    out: u64,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { attend(op, stream, dtype, [q, k, v], out, None) }
}

/// As [`forward`]; `lse` receives a contiguous f32 (b, h, queries), an input of [`backward`].
///
/// # Errors
/// As [`forward`].
///
/// # Safety
/// As [`forward`], and `lse` has memory for that tensor.
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
    // SAFETY: guaranteed by the caller.
    unsafe { attend(op, stream, dtype, [q, k, v], out, Some(lse)) }
}

/// The arguments of [`backward`] besides q, k and v: addresses of contiguous tensors on the
/// stream's device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceGradients {
    /// The output of forward.
    pub out: u64,
    /// The lse of [`forward_with_lse`].
    pub lse: u64,
    /// The gradient of out.
    pub dout: u64,
    /// Memory for the gradient of q; `None`: not computed.
    pub dq: Option<u64>,
    /// Memory for the gradient of k.
    pub dk: Option<u64>,
    /// Memory for the gradient of v.
    pub dv: Option<u64>,
}

/// Enqueues the gradients of q, k and v on the stream.
///
/// # Errors
/// As [`forward`].
///
/// # Safety
/// As [`forward`]; all addresses of `gradients` are memory of that device with the size of their
/// tensors.
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
    // SAFETY: guaranteed by the caller, for all views here.
    unsafe {
        let [q, k, v] = [view(stream, kind, q)?, view(stream, kind, k)?, view(stream, kind, v)?];
        let read = |address, kind, shape: &[usize]| {
            Ok::<_, candle::Error>(stream.view_raw(address, kind, contiguous(shape)?))
        };
        let write = |address, layout: &Layout| {
            Ok::<_, candle::Error>(stream.view_raw_mut(address, kind, contiguous(layout.dims())?))
        };
        let mut outputs = Gradients::new(
            read(gradients.dout, kind, &dims.out)?,
            read(gradients.out, kind, &dims.out)?,
            read(gradients.lse, rocflash::DType::F32, &dims.lse)?,
        );
        if let Some(dq) = gradients.dq {
            outputs = outputs.dq(write(dq, layouts[0])?);
        }
        if let Some(dk) = gradients.dk {
            outputs = outputs.dk(write(dk, layouts[1])?);
        }
        if let Some(dv) = gradients.dv {
            outputs = outputs.dv(write(dv, layouts[2])?);
        }
        with_options(&spec, &dims, keys, &Target::Device(stream.clone()), |options| {
            stream.clone().backward(&q, &k, &v, options, outputs).map_err(from_rocflash)
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
    // SAFETY: guaranteed by the caller, for all views here.
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
/// The tensor has this dtype, is in memory of the stream's device, and stays valid until the stream
/// has read it.
unsafe fn view<'a>(stream: &Stream, kind: rocflash::DType, tensor: DeviceTensor) -> Result<View<'a>> {
    let layout = rocflash::Layout::strided(tensor.layout.dims(), &strides(tensor.layout)?);
    let bytes = tensor.layout.start_offset().checked_mul(kind.size());
    let first = bytes.and_then(|bytes| tensor.address.checked_add(u64::try_from(bytes).ok()?));
    let Some(first) = first else {
        bail!("offset {} exceeds the address space", tensor.layout.start_offset())
    };
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { stream.view_raw(first, kind, layout.map_err(from_rocflash)?) })
}
