//! The same functions on an AMD GPU, which here is the project's simulator. Each target runs in a process of its own.
use crate::common::processes::{on_simulator, run, say};
use crate::plain::{attention, judge, random, Case};
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
fn without_a_gpu_the_reason_is_told() {
    run("rocm::inside_without", &[("ROCFLASH_HIP_LIBRARY", "/nowhere/libamdhip64.so")]);
}

#[test]
#[ignore = "run by the tests above, in a process of its own"]
fn inside_without() {
    let message = RocmAttention::new(0).unwrap_err().to_string();
    assert!(message.contains("no hip driver: ROCFLASH_HIP_LIBRARY is set, but"), "{message}");
}

/// Why the library does not do gradients on this GPU, if so. Candle's errors do not keep the kind, so the library is asked itself.
fn refusal_of_gradients(gpu: &RocmAttention) -> rocflash::Result<Option<String>> {
    use rocflash::{ErrorKind, Executor, Gradients, Options};
    let mut stream = gpu.stream().clone();
    let (x, lse) = (stream.zeros::<half::f16>(64)?, stream.zeros::<f32>(1)?);
    let mut dq = stream.zeros::<half::f16>(64)?;
    let shape = [1, 1, 1, 64];
    let view = x.view(&shape)?;
    let wanted = Gradients::new(view, view, lse.view(&[1, 1, 1])?).dq(dq.view_mut(&shape)?);
    match stream.backward(&view, &view, &view, &Options::new(), wanted) {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Some(error.to_string())),
        result => result.map(|()| None),
    }
}

#[test]
#[ignore = "run by the tests above, in a process of its own"]
fn inside() -> Result<()> {
    let gpu = match RocmAttention::new(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            say(&format!("skipped: attention on a GPU: {error}"));
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
        let plain = attention(&q, &k, &v, &case, DType::F32, Some(dtype))?;
        judge("dense", &gpu.flash_attn(&q, &k, &v, 0.125, true)?, &exact, &plain, 2.0)?;
        // Memory as (b, h, s, d): gathered on its way.
        let turned = q.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        judge("strided", &gpu.flash_attn(&turned, &k, &v, 0.125, true)?, &exact, &plain, 2.0)?;
        let begins = |n: u32| Tensor::from_slice(&[0u32, n], 2, &Device::Cpu);
        let out = gpu.flash_attn_varlen(
            &q.squeeze(0)?,
            &k.squeeze(0)?,
            &v.squeeze(0)?,
            &begins(20)?,
            &begins(33)?,
            20,
            33,
            0.125,
            true,
        )?;
        judge("packed", &out.unsqueeze(0)?, &exact, &plain, 2.0)?;
        // A cache that stays on the GPU: the last 20 keys come with the queries.
        let mut cache = gpu.kv_cache(dtype, 1, 40, 1, 64)?;
        let first = |x: &Tensor| x.narrow(1, 0, 13);
        cache.flash_attn(&first(&q)?, &first(&k)?, &first(&v)?, 0.125, true)?;
        let out = cache.flash_attn(&q, &k.narrow(1, 13, 20)?, &v.narrow(1, 13, 20)?, 0.125, true)?;
        judge("cache", &out, &exact, &plain, 2.0)?;
        assert_eq!(cache.lengths(), [33]);

        let variable = Var::from_tensor(&q)?;
        let loss = gpu.flash_attn(&variable, &k, &v, 0.125, true)?.to_dtype(DType::F32)?.sqr()?.sum_all()?;
        match refusal_of_gradients(&gpu).map_err(candle::Error::wrap)? {
            Some(words) => {
                say(&format!("skipped: gradients on a GPU: {words}"));
                assert!(loss.backward().unwrap_err().to_string().contains(&words));
            }
            None => {
                let on_gpu = loss.backward()?.get(&variable).unwrap().to_dtype(DType::F32)?;
                let loss =
                    flash_attn(&variable, &k, &v, 0.125, true)?.to_dtype(DType::F32)?.sqr()?.sum_all()?;
                let on_cpu = loss.backward()?.get(&variable).unwrap().to_dtype(DType::F32)?;
                let difference = (on_gpu - on_cpu)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(difference < if dtype == DType::F16 { 4e-3 } else { 3e-2 }, "{difference}");
            }
        }
        #[cfg(feature = "rocm")]
        {
            let op = FlashAttn {
                softmax_scale: 0.125,
                alibi_slopes: None,
                window_size_left: None,
                window_size_right: Some(0),
                softcap: None,
            };
            judge("in place", &in_place(&gpu, &op, &q, &k, &v)?, &exact, &plain, 2.0)?;
        }
    }
    Ok(())
}

/// As Candle's ROCm device will call it: tensors that are on the GPU already.
#[cfg(feature = "rocm")]
fn in_place(gpu: &RocmAttention, op: &FlashAttn, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    use candle_flash_rocm::rocm_device::{forward, output_shape, DeviceTensor};
    let stream = gpu.stream();
    let failed = candle::Error::wrap;
    let bits = |x: &Tensor| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        x.write_bytes(&mut bytes)?;
        Ok(bytes)
    };
    let upload = |x: &Tensor| stream.upload(&bits(x)?).map_err(failed);
    let (q_there, k_there, v_there) = (upload(q)?, upload(k)?, upload(v)?);
    let shape = output_shape(op, q.layout(), k.layout(), v.layout())?;
    let out = stream.zeros::<u8>(shape.elem_count() * 2).map_err(failed)?;
    let tensor = |buffer: &rocflash::gpu::Buffer, layout| DeviceTensor { address: buffer.address(), layout };
    // SAFETY: the buffers hold just these tensors, and are dropped after the download below.
    unsafe {
        forward(
            op,
            stream,
            q.dtype(),
            tensor(&q_there, q.layout()),
            tensor(&k_there, k.layout()),
            tensor(&v_there, v.layout()),
            out.address(),
        )?;
    }
    let bytes = out.download::<u8>().map_err(failed)?;
    Tensor::from_raw_buffer(&bytes, q.dtype(), shape.dims(), &Device::Cpu)
}
