//! Decode with a KV cache matches prefill of all keys.
use crate::naive::random;
use candle::{DType, Result, Tensor};
use candle_flash_rocm::*;

fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    let (a, b) = (a.to_dtype(DType::F32)?, b.to_dtype(DType::F32)?);
    (a - b)?.abs()?.max_all()?.to_scalar::<f32>()
}

/// Runs prefill and decode steps of these lengths.
fn in_steps(
    steps: &[usize],
    [q, k, v]: [&Tensor; 3],
    mut attend: impl FnMut(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut outs = Vec::new();
    let mut from = 0;
    for n in steps {
        outs.push(attend(&q.narrow(1, from, *n)?, &k.narrow(1, from, *n)?, &v.narrow(1, from, *n)?)?);
        from += n;
    }
    Tensor::cat(&outs, 1)
}

#[test]
fn decode_steps_match_prefill() -> Result<()> {
    let steps = [9, 1, 1, 4, 1];
    for (dtype, tolerance) in [(DType::F32, 3e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let q = random(1, &[2, 16, 4, 24], dtype)?;
        let k = random(2, &[2, 16, 2, 24], dtype)?;
        let v = random(3, &[2, 16, 2, 24], dtype)?;
        let slopes = random(4, &[4], DType::F32)?.abs()?;
        let mut cache = KvCache::new(dtype, 2, 20, 2, 24)?;
        let out = in_steps(&steps, [&q, &k, &v], |q, k, v| cache.flash_attn(q, k, v, 0.2, true))?;
        assert!(difference(&out, &flash_attn(&q, &k, &v, 0.2, true)?)? < tolerance);
        assert_eq!((cache.lengths(), cache.capacity()), (vec![16, 16], 20));
        cache.clear();
        let out = in_steps(&steps, [&q, &k, &v], |q, k, v| {
            cache.flash_attn_alibi_windowed_softcap(q, k, v, Some(&slopes), 0.2, Some(5), Some(0), 3.0)
        })?;
        let whole = flash_attn_alibi_windowed_softcap(&q, &k, &v, Some(&slopes), 0.2, Some(5), Some(0), 3.0)?;
        assert!(difference(&out, &whole)? < tolerance);
    }
    Ok(())
}

#[test]
fn a_rejected_step_leaves_the_cache_unchanged() -> Result<()> {
    let x = random(1, &[1, 6, 2, 8], DType::F32)?;
    let mut cache = KvCache::new(DType::F32, 1, 8, 2, 8)?;
    cache.flash_attn(&x, &x, &x, 1.0, true)?;
    let message = cache.flash_attn(&x, &x, &x, 1.0, true).unwrap_err().to_string();
    assert!(message.contains("the cache has a capacity of 8 keys; 12 are too many"), "{message}");
    let other = random(1, &[1, 1, 2, 16], DType::F32)?;
    assert!(cache.flash_attn(&other, &other, &other, 1.0, true).is_err());
    let half = x.to_dtype(DType::F16)?;
    let message = cache.flash_attn(&half, &half, &half, 1.0, true).unwrap_err().to_string();
    assert!(message.contains("q is F16; this cache is F32"), "{message}");
    assert_eq!(cache.lengths(), [6]);
    cache.truncate(0, 3)?;
    cache.flash_attn(&x.narrow(1, 3, 3)?, &x.narrow(1, 3, 3)?, &x.narrow(1, 3, 3)?, 1.0, true)?;
    assert_eq!(cache.lengths(), [6]);
    assert!(KvCache::new(DType::U8, 1, 1, 1, 1).is_err());
    Ok(())
}
