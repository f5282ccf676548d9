//! The functions on an AMD GPU, which is the project's simulator here. Each architecture runs in a
//! child process.
use crate::common::processes::{on_simulator, report, run};
use crate::naive::{attention, check_error, random, Case};
use candle::{DType, Device, Result, Tensor, Var};
use candle_flash_rocm::*;

#[test]
fn on_gfx942() {
    on_simulator("rocm::inside", "gfx942");
}

#[test]
fn on_gfx1100() {
    on_simulator("rocm::inside", "gfx1100");
}

#[test]
fn new_rocm_selects_the_gpu() {
    on_simulator("rocm::inside_new_rocm", "gfx942");
}

#[test]
#[ignore = "run by the test above, in a child process"]
fn inside_new_rocm() -> Result<()> {
    let device = match new_rocm(0) {
        Ok(device) => device,
        Err(error) => {
            report(&format!("skipped: attention on a GPU: {error}"));
            assert!(error.to_string().contains("no kernels"), "{error}");
            return Ok(());
        }
    };
    let q = Tensor::randn(0.0, 1.0, (2, 16, 2, 64), &device)?.to_dtype(DType::F16)?;
    let k = Tensor::randn(0.0, 1.0, (2, 16, 2, 64), &device)?.to_dtype(DType::F16)?;
    let out = flash_attn(&q, &k, &k, 0.125, false)?;
    let case = Case { scale: 0.125, ..Case::default() };
    let exact = attention(&q, &k, &k, &case, DType::F64, None)?;
    let naive = attention(&q, &k, &k, &case, DType::F32, Some(DType::F16))?;
    check_error("on the default GPU", &out, &exact, &naive, 2.0)?;
    let explicit = RocmAttention::new(0)?.flash_attn(&q, &k, &k, 0.125, false)?;
    let numbers = |x: &Tensor| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    assert_eq!(numbers(&out)?, numbers(&explicit)?);
    Ok(())
}

#[test]
fn a_missing_driver_is_reported() {
    run("rocm::inside_missing_driver", &[("ROCFLASH_HIP_LIBRARY", "/nowhere/libamdhip64.so")]);
}

#[test]
#[ignore = "run by the tests above, in a child process"]
fn inside_missing_driver() {
    let message = RocmAttention::new(0).unwrap_err().to_string();
    assert!(message.contains("no hip driver: ROCFLASH_HIP_LIBRARY is set, but"), "{message}");
}

/// Gradients of all three inputs, of the sum of squares of the result of `attend`.
fn gradients(
    [q, k, v]: [&Tensor; 3],
    attend: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let variables = [Var::from_tensor(q)?, Var::from_tensor(k)?, Var::from_tensor(v)?];
    let out = attend(&variables[0], &variables[1], &variables[2])?;
    let found = out.to_dtype(DType::F32)?.sqr()?.sum_all()?.backward()?;
    variables.iter().map(|x| found.get(x).unwrap().to_dtype(DType::F32)).collect()
}

#[test]
#[ignore = "run by the tests above, in a child process"]
fn inside() -> Result<()> {
    let gpu = match RocmAttention::new(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            report(&format!("skipped: attention on a GPU: {error}"));
            assert!(error.to_string().contains("no kernels"), "{error}");
            return Ok(());
        }
    };
    for dtype in [DType::F16, DType::BF16] {
        let q = random(1, &[1, 20, 2, 64], dtype)?;
        let k = random(2, &[1, 33, 1, 64], dtype)?;
        let v = random(3, &[1, 33, 1, 64], dtype)?;
        let case = Case { scale: 0.125, window: [None, Some(0)], ..Case::default() };
        let exact = attention(&q, &k, &v, &case, DType::F64, None)?;
        let naive = attention(&q, &k, &v, &case, DType::F32, Some(dtype))?;
        check_error("dense", &gpu.flash_attn(&q, &k, &v, 0.125, true)?, &exact, &naive, 2.0)?;
        // Memory as (b, h, s, d): gathered for the upload.
        let transposed = q.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        check_error("strided", &gpu.flash_attn(&transposed, &k, &v, 0.125, true)?, &exact, &naive, 2.0)?;
        let cu_seqlens = |n: u32| Tensor::from_slice(&[0u32, n], 2, &Device::Cpu);
        let out = gpu.flash_attn_varlen(
            &q.squeeze(0)?,
            &k.squeeze(0)?,
            &v.squeeze(0)?,
            &cu_seqlens(20)?,
            &cu_seqlens(33)?,
            20,
            33,
            0.125,
            true,
        )?;
        check_error("varlen", &out.unsqueeze(0)?, &exact, &naive, 2.0)?;
        // A KV cache on the GPU: the last 20 keys are appended with the queries.
        let mut cache = gpu.kv_cache(dtype, 1, 40, 1, 64)?;
        let first = |x: &Tensor| x.narrow(1, 0, 13);
        cache.flash_attn(&first(&q)?, &first(&k)?, &first(&v)?, 0.125, true)?;
        let out = cache.flash_attn(&q, &k.narrow(1, 13, 20)?, &v.narrow(1, 13, 20)?, 0.125, true)?;
        check_error("cache", &out, &exact, &naive, 2.0)?;
        assert_eq!(cache.lengths(), [33]);

        let on_gpu = gradients([&q, &k, &v], |q, k, v| gpu.flash_attn(q, k, v, 0.125, true))?;
        let on_cpu = gradients([&q, &k, &v], |q, k, v| flash_attn(q, k, v, 0.125, true))?;
        for (name, (on_gpu, on_cpu)) in ["dq", "dk", "dv"].iter().zip(on_gpu.iter().zip(&on_cpu)) {
            let largest = on_cpu.abs()?.max_all()?.to_scalar::<f32>()?;
            let difference = (on_gpu - on_cpu)?.abs()?.max_all()?.to_scalar::<f32>()?;
            let rounding = if dtype == DType::F16 { 1e-3 } else { 8e-3 };
            assert!(
                largest > 0.01 && difference < 2.0 * rounding * largest,
                "{name}: {difference} of {largest}"
            );
        }
        // The same with tensors that stay on the GPU.
        let device = [gpu.upload(&q)?, gpu.upload(&k)?, gpu.upload(&v)?];
        let out = on_device::flash_attn(&device[0], &device[1], &device[2], 0.125, true)?;
        check_error("on the device", &out.to_candle()?, &exact, &naive, 2.0)?;
        let dout = (out.to_candle()?.to_dtype(DType::F32)? * 2.0)?.to_dtype(dtype)?;
        for (found, staged) in out.gradients(&gpu.upload(&dout)?)?.iter().zip(&on_gpu) {
            let found = found.to_candle()?.to_dtype(DType::F32)?;
            let difference = (found - staged)?.abs()?.max_all()?.to_scalar::<f32>()?;
            let largest = staged.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(difference < 0.02 * largest, "on the device: {difference} of {largest}");
        }
        let error = out.detach().gradients(&device[0]).unwrap_err().to_string();
        assert!(error.contains("not the result of a function of on_device"), "{error}");
        let transposed = gpu.upload(&q.transpose(1, 2)?.contiguous()?)?.transpose(1, 2)?;
        let [_, k_device, v_device] = &device;
        let transposed = on_device::flash_attn(&transposed, k_device, v_device, 0.125, true)?;
        check_error("transposed, on the device", &transposed.to_candle()?, &exact, &naive, 2.0)?;
        let mut cache = gpu.kv_cache(dtype, 1, 40, 1, 64)?;
        let part = |x: &RocmTensor, from, len| x.narrow(1, from, len);
        let mut on_gpu_cache = cache.on_device()?;
        on_gpu_cache.flash_attn(
            &part(&device[0], 0, 13)?,
            &part(k_device, 0, 13)?,
            &part(v_device, 0, 13)?,
            0.125,
            true,
        )?;
        let last = on_gpu_cache.flash_attn(
            &device[0],
            &part(k_device, 13, 20)?,
            &part(v_device, 13, 20)?,
            0.125,
            true,
        )?;
        check_error("cache on the device", &last.to_candle()?, &exact, &naive, 2.0)?;
        #[cfg(feature = "rocm")]
        {
            let op = FlashAttn {
                softmax_scale: 0.125,
                alibi_slopes: None,
                window_size_left: None,
                window_size_right: Some(0),
                softcap: None,
            };
            let (out, found) = in_place(&gpu, &op, &q, &k, &v)?;
            check_error("in place", &out, &exact, &naive, 2.0)?;
            for (in_place, staged) in found.iter().zip(&on_gpu) {
                let difference =
                    (in_place.to_dtype(DType::F32)? - staged)?.abs()?.max_all()?.to_scalar::<f32>()?;
                let largest = staged.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(difference < 0.02 * largest, "in place: {difference} of {largest}");
            }
        }
    }
    Ok(())
}

/// Calls `rocm_device` as a ROCm device of Candle would: on tensors in GPU memory. Also returns the
/// gradients of the sum of squares.
#[cfg(feature = "rocm")]
fn in_place(
    gpu: &RocmAttention,
    op: &FlashAttn,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<(Tensor, Vec<Tensor>)> {
    use candle_flash_rocm::rocm_device::{
        backward, forward_with_lse, output_shape, DeviceGradients, DeviceTensor,
    };
    let stream = gpu.stream();
    let wrap = candle::Error::wrap;
    let upload = |x: &Tensor| {
        let mut bytes = Vec::new();
        x.write_bytes(&mut bytes)?;
        stream.upload(&bytes).map_err(wrap)
    };
    let download = |buffer: &rocflash::gpu::Buffer, shape: &[usize]| {
        Tensor::from_raw_buffer(&buffer.download::<u8>().map_err(wrap)?, q.dtype(), shape, &Device::Cpu)
    };
    let allocate = |elements: usize| stream.zeros::<u8>(elements * 2).map_err(wrap);
    let (q_device, k_device, v_device) = (upload(q)?, upload(k)?, upload(v)?);
    let shape = output_shape(op, q.layout(), k.layout(), v.layout())?;
    let out = allocate(shape.elem_count())?;
    let lse = stream.zeros::<f32>(shape.elem_count() / shape.dims()[3]).map_err(wrap)?;
    let tensor = |buffer: &rocflash::gpu::Buffer, layout| DeviceTensor { address: buffer.address(), layout };
    let inputs =
        [tensor(&q_device, q.layout()), tensor(&k_device, k.layout()), tensor(&v_device, v.layout())];
    let [q_in, k_in, v_in] = inputs;
    // SAFETY: the buffers have the sizes of these tensors and are dropped after the downloads
    // below.
    unsafe { forward_with_lse(op, stream, q.dtype(), q_in, k_in, v_in, out.address(), lse.address())? };
    let result = download(&out, shape.dims())?;
    let dout = upload(&(result.to_dtype(DType::F32)? * 2.0)?.to_dtype(q.dtype())?)?;
    let (dq, dk, dv) = (allocate(q.elem_count())?, allocate(k.elem_count())?, allocate(v.elem_count())?);
    let gradients = DeviceGradients {
        out: out.address(),
        lse: lse.address(),
        dout: dout.address(),
        dq: Some(dq.address()),
        dk: Some(dk.address()),
        dv: Some(dv.address()),
    };
    // SAFETY: as above.
    unsafe { backward(op, stream, q.dtype(), q_in, k_in, v_in, gradients)? };
    Ok((result, vec![download(&dq, q.dims())?, download(&dk, k.dims())?, download(&dv, v.dims())?]))
}
