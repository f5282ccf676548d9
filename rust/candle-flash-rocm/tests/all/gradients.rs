//! Gradients against Candle's autograd of naive attention.
use crate::dense::SHAPES;
use crate::naive::{attention, causal, check_error, random, varlen_attention, Case};
use candle::{DType, Device, Result, Tensor, Var};
use candle_flash_rocm::*;

/// The gradients of Σ out · dout for q, k and v.
fn gradients(vars: &[Var; 3], out: &Tensor, dout: &Tensor) -> Result<Vec<Tensor>> {
    let loss = (out.to_dtype(dout.dtype())? * dout)?.sum_all()?;
    let grads = loss.backward()?;
    Ok(vars.iter().map(|var| grads.get(var).expect("a gradient").clone()).collect())
}

fn vars(tensors: &[Tensor; 3], dtype: DType) -> Result<[Var; 3]> {
    let [q, k, v] = tensors;
    let var = |x: &Tensor| Var::from_tensor(&x.to_dtype(dtype)?);
    Ok([var(q)?, var(k)?, var(v)?])
}

#[test]
fn dense() -> Result<()> {
    let mut n = 0;
    for window in [[None, None], [None, Some(0)], [Some(4), Some(1)]] {
        for (alibi, softcap) in [(false, 0.0), (true, 0.0), (false, 2.0), (true, 3.0)] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                n += 1;
                let [b, sq, sk, h, hk, d] = SHAPES[n % SHAPES.len()];
                let tensors = [
                    random(n as u64, &[b, sq, h, d], dtype)?,
                    random(n as u64 + 100, &[b, sk, hk, d], dtype)?,
                    random(n as u64 + 200, &[b, sk, hk, d], dtype)?,
                ];
                let dout = random(n as u64 + 300, &[b, sq, h, d], dtype)?;
                let slopes = alibi.then_some(random(7, &[h], DType::F32)?.abs()?);
                let scale = 1.0 / (d as f32).sqrt();
                let case = Case { scale, window, alibi: slopes, softcap: Some(softcap), ..Case::default() };

                let ours = vars(&tensors, dtype)?;
                let [q, k, v] = &ours;
                let slopes = case.alibi.as_ref();
                let out =
                    flash_attn_alibi_windowed_softcap(q, k, v, slopes, scale, window[0], window[1], softcap)?;
                let ours = gradients(&ours, &out, &dout)?;

                let exact = vars(&tensors, DType::F64)?;
                let out = attention(&exact[0], &exact[1], &exact[2], &case, DType::F64, None)?;
                let exact = gradients(&exact, &out, &dout.to_dtype(DType::F64)?)?;
                let naive = vars(&tensors, dtype)?;
                let out = attention(&naive[0], &naive[1], &naive[2], &case, DType::F32, Some(dtype))?;
                let naive = gradients(&naive, &out, &dout.to_dtype(DType::F32)?)?;
                for (name, at) in [("dq", 0), ("dk", 1), ("dv", 2)] {
                    let what = format!("{name} of {n}: {case:?} {dtype:?}");
                    check_error(&what, &ours[at], &exact[at], &naive[at], 3.0)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn varlen() -> Result<()> {
    let (cu_seqlens_q, cu_seqlens_k) = ([0u32, 5, 5, 14], [0u32, 9, 12, 20]);
    let tensors = [
        random(1, &[14, 4, 16], DType::F32)?,
        random(2, &[20, 2, 16], DType::F32)?,
        random(3, &[20, 2, 16], DType::F32)?,
    ];
    let dout = random(4, &[14, 4, 16], DType::F32)?;
    let case = Case { scale: 0.25, window: [None, Some(0)], ..Case::default() };
    let cu_seqlens = |x: &[u32]| Tensor::from_slice(x, x.len(), &Device::Cpu);
    let ours = vars(&tensors, DType::F32)?;
    let [q, k, v] = &ours;
    let out = flash_attn_varlen(
        q,
        k,
        v,
        &cu_seqlens(&cu_seqlens_q)?,
        &cu_seqlens(&cu_seqlens_k)?,
        9,
        9,
        0.25,
        true,
    )?;
    let ours = gradients(&ours, &out, &dout)?;
    let reference = |dtype: DType| -> Result<Vec<Tensor>> {
        let vars = vars(&tensors, dtype)?;
        let [q, k, v] = &vars;
        let out =
            varlen_attention([q, k, v], [&cu_seqlens_q, &cu_seqlens_k], &vec![case.clone(); 3], dtype, None)?;
        gradients(&vars, &out, &dout.to_dtype(dtype)?)
    };
    let (exact, naive) = (reference(DType::F64)?, reference(DType::F32)?);
    for (name, at) in [("dq", 0), ("dk", 1), ("dv", 2)] {
        check_error(name, &ours[at], &exact[at], &naive[at], 3.0)?;
    }
    Ok(())
}

#[test]
fn broadcast_and_transposed_output_gradients() -> Result<()> {
    let q = Var::from_tensor(&random(1, &[2, 6, 4, 8], DType::F32)?)?;
    let k = random(2, &[2, 9, 2, 8], DType::F32)?;
    let numbers = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
    let gradient = |loss: Tensor| -> Result<Vec<f32>> { numbers(loss.backward()?.get(&q).unwrap()) };
    // The gradient of a sum is one element, broadcast.
    let out = flash_attn(&q, &k, &k, 0.3, false)?;
    let summed = gradient(out.sum_all()?)?;
    let expected = gradient((&out * out.ones_like()?)?.sum_all()?)?;
    assert_eq!(summed, expected);
    // An output gradient with its last two dimensions transposed.
    let weights = random(3, &[2, 6, 8, 4], DType::F32)?;
    let transposed = gradient((out.transpose(2, 3)? * &weights)?.sum_all()?)?;
    let expected = gradient((&out * weights.transpose(2, 3)?.contiguous()?)?.sum_all()?)?;
    assert_eq!(transposed, expected);
    // Inputs that are views of one variable.
    let qkv = Var::from_tensor(&random(4, &[1, 7, 3, 2, 8], DType::F32)?)?;
    let part = |n| qkv.narrow(2, n, 1)?.squeeze(2);
    let out = flash_attn(&part(0)?, &part(1)?, &part(2)?, 0.3, true)?;
    let grads = out.sqr()?.sum_all()?.backward()?;
    let ours = numbers(grads.get(&qkv).unwrap())?;
    let case = Case { scale: 0.3, window: [None, Some(0)], ..Case::default() };
    let out = attention(&part(0)?, &part(1)?, &part(2)?, &case, DType::F32, None)?;
    let naive = numbers(out.sqr()?.sum_all()?.backward()?.get(&qkv).unwrap())?;
    let difference = ours.iter().zip(&naive).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-5, "{difference}");
    Ok(())
}

#[test]
fn repeated_backward_and_the_custom_op() -> Result<()> {
    let q = Var::from_tensor(&random(1, &[1, 6, 2, 8], DType::F32)?)?;
    let k = random(2, &[1, 9, 2, 8], DType::F32)?;
    let numbers = |loss: &Tensor| -> Result<Vec<f32>> {
        loss.backward()?.get(&q).unwrap().flatten_all()?.to_vec1::<f32>()
    };
    let loss = flash_attn(&q, &k, &k, 0.3, true)?.sqr()?.sum_all()?;
    let expected = numbers(&loss)?;
    assert_eq!(numbers(&loss)?, expected);
    // The custom op saves nothing, so backward recomputes lse, with another kernel.
    let loss = q.apply_op3(&k, &k, causal(0.3))?.sqr()?.sum_all()?;
    let difference = numbers(&loss)?.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-7, "{difference}");
    // k is not a variable, so it has no gradient.
    assert!(loss.backward()?.get(&k).is_none());
    Ok(())
}

#[test]
fn unsupported_gradients_are_rejected() -> Result<()> {
    let q = Var::from_tensor(&random(1, &[3, 2, 8], DType::F32)?)?;
    let pages = random(2, &[2, 4, 2, 8], DType::F32)?;
    let numbers = |x: &[u32]| Tensor::from_slice(x, x.len(), &Device::Cpu);
    let table = numbers(&[0, 1])?.reshape((1, 2))?;
    let (sq, sk) = (numbers(&[0, 3])?, numbers(&[0, 7])?);
    let out = flash_attn_varlen_paged_windowed(
        &q, &pages, &pages, &sq, &sk, &table, None, 3, 7, 0.3, None, None, 4, None,
    )?;
    let error = out.sum_all()?.backward().unwrap_err().to_string();
    assert!(error.contains("block_table"), "{error}");
    let q = Var::from_tensor(&random(1, &[1, 3, 2, 8], DType::F32)?)?;
    let mut cache = KvCache::new(DType::F32, 1, 8, 2, 8)?;
    let out = cache.flash_attn(&q, &q, &q, 0.3, true)?;
    let error = out.sum_all()?.backward().unwrap_err().to_string();
    assert!(error.contains("backward is not supported for flash-attn-kvcache"), "{error}");
    Ok(())
}
