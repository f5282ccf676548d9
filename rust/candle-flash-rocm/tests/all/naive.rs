//! Naive attention in Candle operations, with autograd: the reference in f64, and the baseline in
//! the input's dtype, which rounds every intermediate tensor that a framework would materialize.
//! The error bound is the project's: at most twice (gradients: three times) the baseline's error,
//! where a baseline error below one rounding of the result counts as that rounding.
use candle::{DType, Device, Result, Tensor};
use candle_flash_rocm::FlashAttn;

/// The options of one call.
#[derive(Clone, Debug, Default)]
pub struct Case {
    pub scale: f32,
    pub window: [Option<usize>; 2],
    pub alibi: Option<Tensor>,
    pub softcap: Option<f32>,
    /// One extra logit per head.
    pub sinks: Option<Tensor>,
    /// Ranges of positions that attend to each other regardless of the window.
    pub ranges: Vec<[i64; 2]>,
}

impl Case {
    fn attends(&self, position: i64, key: i64) -> bool {
        let [left, right] = self.window.map(|size| size.map(|size| size as i64));
        let within = left.is_none_or(|left| position - left <= key)
            && right.is_none_or(|right| key <= position + right);
        within || self.ranges.iter().any(|[a, b]| (*a..*b).contains(&position) && (*a..*b).contains(&key))
    }
}

/// Attention of (b, sq, h, d) over (b, sk, hk, d), computed in `work`; intermediate tensors are
/// rounded to `round`.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    case: &Case,
    work: DType,
    round: Option<DType>,
) -> Result<Tensor> {
    let rounded = |x: Tensor| match round {
        Some(dtype) => x.to_dtype(dtype)?.to_dtype(work),
        None => Ok(x),
    };
    let (b, sq, h, _) = q.dims4()?;
    let (_, sk, hk, _) = k.dims4()?;
    let heads_first = |x: &Tensor| -> Result<Tensor> {
        let x = x.to_dtype(work)?.transpose(1, 2)?;
        let (b, heads, s, d) = x.dims4()?;
        x.unsqueeze(2)?.broadcast_as((b, heads, h / heads, s, d))?.contiguous()?.reshape((b, h, s, d))
    };
    assert_eq!(h % hk, 0);
    let (q, k, v) = (heads_first(q)?, heads_first(k)?, heads_first(v)?);
    if sk == 0 {
        return q.narrow(3, 0, 1)?.zeros_like()?.broadcast_as((b, h, sq, v.dim(3)?))?.transpose(1, 2);
    }
    let mut s = rounded((q.matmul(&k.t()?)? * f64::from(case.scale))?)?;
    if let Some(cap) = case.softcap.filter(|cap| *cap > 0.0) {
        s = rounded((rounded((s / f64::from(cap))?)?.tanh()? * f64::from(cap))?)?;
    }
    // Distances, and a large negative number where the key is masked.
    let positions: Vec<(i64, i64)> =
        (0..sq as i64).flat_map(|i| (0..sk as i64).map(move |j| (i + sk as i64 - sq as i64, j))).collect();
    let device = Device::Cpu;
    if let Some(slopes) = &case.alibi {
        let distance: Vec<f64> =
            positions.iter().map(|(position, key)| -((position - key).abs() as f64)).collect();
        let distance = Tensor::from_vec(distance, (1, 1, sq, sk), &device)?.to_dtype(work)?;
        let slopes = slopes.to_dtype(work)?.reshape((1, h, 1, 1))?;
        s = rounded(s.broadcast_add(&distance.broadcast_mul(&slopes)?)?)?;
    }
    let mask: Vec<f64> = positions
        .iter()
        .map(|(position, key)| if case.attends(*position, *key) { 0.0 } else { -1e9 })
        .collect();
    let has_keys: Vec<f64> = mask.chunks(sk).map(|row| if row.contains(&0.0) { 1.0 } else { 0.0 }).collect();
    let mask = Tensor::from_vec(mask, (1, 1, sq, sk), &device)?.to_dtype(work)?;
    let has_keys = Tensor::from_vec(has_keys, (1, 1, sq, 1), &device)?.to_dtype(work)?;
    let s = s.broadcast_add(&mask)?;
    let largest = s.max_keepdim(3)?.detach();
    let e = s.broadcast_sub(&largest)?.exp()?;
    let mut total = e.sum_keepdim(3)?;
    if let Some(sinks) = &case.sinks {
        let sinks = sinks.to_dtype(work)?.reshape((1, h, 1, 1))?;
        total = (total + sinks.broadcast_sub(&largest)?.exp()?)?;
    }
    let p = rounded(e.broadcast_div(&total)?.broadcast_mul(&has_keys)?)?;
    rounded(p.matmul(&v)?)?.transpose(1, 2)
}

/// Varlen: (total, heads, d) tensors and the row where each sequence starts.
pub fn varlen_attention(
    [q, k, v]: [&Tensor; 3],
    [cu_seqlens_q, cu_seqlens_k]: [&[u32]; 2],
    cases: &[Case],
    work: DType,
    round: Option<DType>,
) -> Result<Tensor> {
    let mut parts = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        let part = |x: &Tensor, cu_seqlens: &[u32]| {
            x.narrow(0, cu_seqlens[n] as usize, (cu_seqlens[n + 1] - cu_seqlens[n]) as usize)?.unsqueeze(0)
        };
        let (q, k, v) = (part(q, cu_seqlens_q)?, part(k, cu_seqlens_k)?, part(v, cu_seqlens_k)?);
        if q.dim(1)? > 0 {
            parts.push(attention(&q, &k, &v, case, work, round)?.squeeze(0)?);
        }
    }
    Tensor::cat(&parts, 0)
}

/// Causal attention as an operation of Candle.
pub fn causal(softmax_scale: f32) -> FlashAttn {
    FlashAttn {
        softmax_scale,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    }
}

/// Reproducible random numbers of a dtype.
pub fn random(seed: u64, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let data = crate::common::random(seed, shape.iter().product());
    Tensor::from_vec(data, shape, &Device::Cpu)?.to_dtype(dtype)
}

fn largest(a: &Tensor, b: &Tensor) -> Result<f64> {
    assert_eq!(a.dims(), b.dims());
    if a.elem_count() == 0 {
        return Ok(0.0);
    }
    let difference = (a.to_dtype(DType::F64)? - b.to_dtype(DType::F64)?)?.abs()?;
    let values = difference.flatten_all()?.to_vec1::<f64>()?;
    assert!(values.iter().all(|x| x.is_finite()), "not finite");
    Ok(values.into_iter().fold(0.0, f64::max))
}

/// Checks a result against the error bound.
pub fn check_error(what: &str, result: &Tensor, exact: &Tensor, naive: &Tensor, factor: f64) -> Result<()> {
    let one_rounding = largest(&exact.to_dtype(result.dtype())?, exact)?;
    let allowed = factor * largest(naive, exact)?.max(one_rounding);
    let error = largest(result, exact)?;
    assert!(error <= allowed, "{what}: error {error:e}, allowed {allowed:e}");
    Ok(())
}
