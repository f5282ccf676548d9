//! The dense functions, every option crossed with every dtype, shapes sampled.
use crate::naive::{attention, causal, check_error, random, Case};
use candle::{DType, Result, Tensor};
use candle_flash_rocm::*;

/// batch, queries, keys, heads, kv heads, head dim.
pub const SHAPES: [[usize; 6]; 6] = [
    [2, 9, 9, 4, 2, 16],
    [1, 1, 40, 6, 1, 64],
    [2, 33, 70, 2, 2, 40],
    [1, 70, 33, 3, 3, 7],
    [1, 17, 64, 8, 4, 128],
    [1, 5, 12, 2, 1, 512],
];

/// Calls the function that has the options of the case.
fn call(q: &Tensor, k: &Tensor, v: &Tensor, case: &Case) -> Result<Tensor> {
    let (scale, [left, right]) = (case.scale, case.window);
    let causal = right == Some(0);
    match (&case.alibi, case.softcap, left) {
        (slopes, Some(cap), _) => {
            flash_attn_alibi_windowed_softcap(q, k, v, slopes.as_ref(), scale, left, right, cap)
        }
        (None, None, None) if causal || right.is_none() => flash_attn(q, k, v, scale, causal),
        (None, None, _) => flash_attn_windowed(q, k, v, scale, left, right),
        (Some(slopes), None, None) if causal || right.is_none() => {
            flash_attn_alibi(q, k, v, slopes, scale, causal)
        }
        (Some(slopes), None, _) => flash_attn_alibi_windowed(q, k, v, slopes, scale, left, right),
    }
}

/// All cases: window × ALiBi × softcap × dtype, cycling through the shapes.
pub fn cases() -> Result<Vec<(Case, DType, [usize; 6])>> {
    let mut all = Vec::new();
    for window in [
        [None, None],
        [None, Some(0)],
        [Some(3), Some(0)],
        [Some(5), Some(2)],
        [Some(4), None],
        [None, Some(1000)],
    ] {
        for alibi in [false, true] {
            for softcap in [None, Some(0.0), Some(2.0)] {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    let shape = SHAPES[all.len() % SHAPES.len()];
                    let slopes = random(7, &[shape[3]], DType::F32)?.abs()?;
                    let alibi = alibi.then_some(slopes);
                    let scale = 1.0 / (shape[5] as f32).sqrt();
                    all.push((Case { scale, window, alibi, softcap, ..Case::default() }, dtype, shape));
                }
            }
        }
    }
    Ok(all)
}

#[test]
fn crossed_options() -> Result<()> {
    for (n, (mut case, dtype, [b, sq, sk, h, hk, d])) in cases()?.into_iter().enumerate() {
        let q = random(n as u64, &[b, sq, h, d], dtype)?;
        let k = random(n as u64 + 1000, &[b, sk, hk, d], dtype)?;
        let v = random(n as u64 + 2000, &[b, sk, hk, d], dtype)?;
        let out = call(&q, &k, &v, &case)?;
        // A window larger than the number of keys is unbounded.
        case.window = case.window.map(|size| size.filter(|size| *size <= sk));
        let exact = attention(&q, &k, &v, &case, DType::F64, None)?;
        let naive = attention(&q, &k, &v, &case, DType::F32, Some(dtype))?;
        check_error(&format!("case {n}: {case:?} {dtype:?}"), &out, &exact, &naive, 2.0)?;
        assert_eq!(out.dtype(), dtype);
    }
    Ok(())
}

#[test]
fn strided_inputs_give_the_same_bits() -> Result<()> {
    let (b, s, h, d) = (2, 21, 4, 24);
    // Views into one projection of q, k and v, and tensors in (b, h, s, d) order.
    let qkv = random(1, &[b, s, 3 * h, d], DType::F32)?;
    let views: Vec<Tensor> = (0..3).map(|n| qkv.narrow(2, n * h, h)).collect::<Result<_>>()?;
    let copies: Vec<Tensor> = views.iter().map(|x| x.contiguous()).collect::<Result<_>>()?;
    let expected = flash_attn(&copies[0], &copies[1], &copies[2], 0.2, true)?;
    let out = flash_attn(&views[0], &views[1], &views[2], 0.2, true)?;
    assert!(!views[1].is_contiguous());
    assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, expected.flatten_all()?.to_vec1::<f32>()?);
    let transposed: Vec<Tensor> =
        copies.iter().map(|x| x.transpose(1, 2)?.contiguous()?.transpose(1, 2)).collect::<Result<_>>()?;
    let out = flash_attn(&transposed[0], &transposed[1], &transposed[2], 0.2, true)?;
    assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, expected.flatten_all()?.to_vec1::<f32>()?);
    // Keys and values shared by the whole batch, without a copy.
    let (k, v) = (copies[1].narrow(0, 1, 1)?, copies[2].narrow(0, 1, 1)?);
    let (k, v) = (k.broadcast_as(copies[1].shape())?, v.broadcast_as(copies[2].shape())?);
    let out = flash_attn(&copies[0], &k, &v, 0.2, true)?;
    let expected = flash_attn(&copies[0], &k.contiguous()?, &v.contiguous()?, 0.2, true)?;
    assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, expected.flatten_all()?.to_vec1::<f32>()?);
    Ok(())
}

#[test]
fn sinks_add_to_the_softmax_sum() -> Result<()> {
    let q = random(1, &[2, 9, 4, 24], DType::F32)?;
    let k = random(2, &[2, 13, 2, 24], DType::F32)?;
    let v = random(3, &[2, 13, 2, 24], DType::F32)?;
    let sinks = random(4, &[4], DType::F32)?;
    let case = Case { scale: 0.2, window: [Some(5), Some(0)], sinks: Some(sinks.clone()), ..Case::default() };
    let exact = attention(&q, &k, &v, &case, DType::F64, None)?;
    let naive = attention(&q, &k, &v, &case, DType::F32, None)?;
    let out = flash_attn_windowed_sinks(&q, &k, &v, &sinks, 0.2, Some(5), Some(0))?;
    check_error("sinks", &out, &exact, &naive, 2.0)?;
    let cu_seqlens = |n: u32| Tensor::from_slice(&[0, n, 2 * n], 3, &candle::Device::Cpu);
    let rows = |x: &Tensor| x.flatten(0, 1);
    let (cu_q, cu_k) = (cu_seqlens(9)?, cu_seqlens(13)?);
    let packed = flash_attn_varlen_windowed_sinks(
        &rows(&q)?,
        &rows(&k)?,
        &rows(&v)?,
        &sinks,
        &cu_q,
        &cu_k,
        9,
        13,
        0.2,
        Some(5),
        Some(0),
    )?;
    check_error("varlen sinks", &packed.reshape((2, 9, 4, 24))?, &exact, &naive, 2.0)?;
    let variable = candle::Var::from_tensor(&sinks)?;
    let error = flash_attn_windowed_sinks(&q, &k, &v, &variable, 0.2, None, None).unwrap_err();
    assert!(error.to_string().contains("sinks is a variable"), "{error}");
    Ok(())
}

#[test]
fn other_spellings_are_the_same_function() -> Result<()> {
    let q = random(1, &[2, 9, 4, 24], DType::F32)?;
    let k = random(2, &[2, 13, 2, 24], DType::F32)?;
    let numbers = |x: Tensor| x.flatten_all()?.to_vec1::<f32>();
    let expected = numbers(flash_attn(&q, &k, &k, 0.2, true)?)?;
    assert_eq!(numbers(v3::flash_attn(&q, &k, &k, 0.2, true, true)?)?, expected);
    assert_eq!(numbers(flash_attn_softcap(&q, &k, &k, 0.2, None, true)?)?, expected);
    // With pages of 13 keys, each page is one sequence.
    let cu_seqlens = |n: u32| Tensor::from_slice(&[0, n, 2 * n], 3, &candle::Device::Cpu);
    let (rows, cu_q, cu_k) = (q.flatten(0, 1)?, cu_seqlens(9)?, cu_seqlens(13)?);
    let table = Some(Tensor::from_slice(&[0u32, 1], (2, 1), &candle::Device::Cpu)?);
    let paged = flash_attn_varlen_softcap(&rows, &k, &k, &cu_q, &cu_k, &table, 9, 13, 0.2, None, true)?;
    let keys = k.flatten(0, 1)?;
    let flat = flash_attn_varlen_softcap(&rows, &keys, &keys, &cu_q, &cu_k, &None, 9, 13, 0.2, None, true)?;
    let windowed = flash_attn_varlen_windowed_softcap(
        &rows,
        &k,
        &k,
        &cu_q,
        &cu_k,
        &table,
        9,
        13,
        0.2,
        Some(0.0),
        None,
        Some(0),
    )?;
    for other in [paged, flat, windowed] {
        let difference = (other.reshape(q.dims())? - flash_attn(&q, &k, &k, 0.2, true)?)?.abs()?;
        assert!(difference.max_all()?.to_scalar::<f32>()? < 1e-5);
    }
    Ok(())
}

#[test]
fn values_may_have_another_head_dim() -> Result<()> {
    let q = random(1, &[1, 6, 4, 24], DType::F32)?;
    let k = random(2, &[1, 11, 2, 24], DType::F32)?;
    let v = random(3, &[1, 11, 2, 40], DType::F32)?;
    let case = Case { scale: 0.2, ..Case::default() };
    let out = flash_attn(&q, &k, &v, 0.2, false)?;
    assert_eq!(out.dims(), [1, 6, 4, 40]);
    let exact = attention(&q, &k, &v, &case, DType::F64, None)?;
    let naive = attention(&q, &k, &v, &case, DType::F32, None)?;
    check_error("head dim of v", &out, &exact, &naive, 2.0)
}

#[test]
fn empty_tensors() -> Result<()> {
    let q = random(1, &[1, 0, 4, 8], DType::F32)?;
    let k = random(2, &[1, 3, 2, 8], DType::F32)?;
    assert_eq!(flash_attn(&q, &k, &k, 1.0, false)?.dims(), [1, 0, 4, 8]);
    let q = random(1, &[1, 5, 4, 8], DType::F32)?;
    let k = random(2, &[1, 0, 2, 8], DType::F32)?;
    assert_eq!(flash_attn(&q, &k, &k, 1.0, true)?.flatten_all()?.to_vec1::<f32>()?, vec![0.0; 160]);
    Ok(())
}

#[test]
fn the_operation_itself() -> Result<()> {
    let q = random(1, &[1, 5, 4, 8], DType::F32)?;
    let out = q.apply_op3(&q, &q, causal(0.3))?;
    let expected = flash_attn(&q, &q, &q, 0.3, true)?;
    assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, expected.flatten_all()?.to_vec1::<f32>()?);
    Ok(())
}

#[test]
fn matches_candle_nn() -> Result<()> {
    use candle_nn::attention::{flash_attn as on_cpu, AttnMask};
    let q = random(1, &[1, 30, 4, 32], DType::F32)?;
    let k = random(2, &[1, 30, 2, 32], DType::F32)?;
    let v = random(3, &[1, 30, 2, 32], DType::F32)?;
    let theirs = on_cpu::<f32>(&q, &k, &v, 0.2, AttnMask::causal(), None, None)?.transpose(1, 2)?;
    let ours = flash_attn(&q, &k, &v, 0.2, true)?;
    let difference = (theirs - ours)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference < 1e-5, "{difference}");
    Ok(())
}
