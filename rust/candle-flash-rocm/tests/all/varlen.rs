//! Varlen, paged KV, and prefix ranges that override the window.
use crate::naive::{check_error, random, varlen_attention, Case};
use candle::{DType, Device, Result, Tensor};
use candle_flash_rocm::*;

const CU_SEQLENS_Q: [u32; 5] = [0, 7, 7, 8, 28];
const CU_SEQLENS_K: [u32; 5] = [0, 7, 12, 45, 60];
const LONGEST: [usize; 2] = [20, 33];

fn tensor(numbers: &[u32]) -> Result<Tensor> {
    Tensor::from_slice(numbers, numbers.len(), &Device::Cpu)
}

/// Calls the function that has the options of the case.
fn call([q, k, v]: [&Tensor; 3], case: &Case) -> Result<Tensor> {
    let (sq, sk) = (tensor(&CU_SEQLENS_Q)?, tensor(&CU_SEQLENS_K)?);
    let ([mq, mk], scale, [left, right]) = (LONGEST, case.scale, case.window);
    let causal = right == Some(0);
    match (&case.alibi, case.softcap, left) {
        (slopes, Some(cap), _) => flash_attn_varlen_alibi_windowed_softcap(
            q,
            k,
            v,
            slopes.as_ref(),
            &sq,
            &sk,
            mq,
            mk,
            scale,
            left,
            right,
            cap,
        ),
        (None, None, None) if causal || right.is_none() => {
            flash_attn_varlen(q, k, v, &sq, &sk, mq, mk, scale, causal)
        }
        (None, None, _) => flash_attn_varlen_windowed(q, k, v, &sq, &sk, mq, mk, scale, left, right),
        (Some(slopes), None, None) if causal || right.is_none() => {
            flash_attn_varlen_alibi(q, k, v, slopes, &sq, &sk, mq, mk, scale, causal)
        }
        (Some(slopes), None, _) => {
            flash_attn_varlen_alibi_windowed(q, k, v, slopes, &sq, &sk, mq, mk, scale, left, right)
        }
    }
}

fn inputs(seed: u64, dtype: DType) -> Result<[Tensor; 3]> {
    Ok([
        random(seed, &[28, 4, 24], dtype)?,
        random(seed + 100, &[60, 2, 24], dtype)?,
        random(seed + 200, &[60, 2, 24], dtype)?,
    ])
}

#[test]
fn crossed_options() -> Result<()> {
    let mut n = 0;
    for window in [[None, None], [None, Some(0)], [Some(3), Some(0)], [Some(5), Some(2)], [Some(4), None]] {
        for alibi in [false, true] {
            for softcap in [None, Some(2.0)] {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    n += 1;
                    let [q, k, v] = inputs(n, dtype)?;
                    let slopes = random(7, &[4], DType::F32)?.abs()?;
                    let case = Case {
                        scale: 0.2,
                        window,
                        alibi: alibi.then_some(slopes),
                        softcap,
                        ..Case::default()
                    };
                    let out = call([&q, &k, &v], &case)?;
                    let reference = |work, round| {
                        varlen_attention(
                            [&q, &k, &v],
                            [&CU_SEQLENS_Q, &CU_SEQLENS_K],
                            &vec![case.clone(); 4],
                            work,
                            round,
                        )
                    };
                    let (exact, naive) = (reference(DType::F64, None)?, reference(DType::F32, Some(dtype))?);
                    check_error(&format!("{case:?} {dtype:?}"), &out, &exact, &naive, 2.0)?;
                }
            }
        }
    }
    Ok(())
}

/// Scatters varlen keys over pages in a permuted order; returns the pages and the block table.
fn paged(packed: &Tensor, page: usize) -> Result<(Tensor, Tensor)> {
    let batch = CU_SEQLENS_K.len() - 1;
    let per_sequence = LONGEST[1].div_ceil(page);
    let pages = batch * per_sequence;
    let order = |n: usize| (n * 5 + 3) % pages;
    assert!(!pages.is_multiple_of(5), "the order must be a permutation");
    let table: Vec<u32> = (0..pages).map(|n| order(n) as u32).collect();
    let rows: Vec<Tensor> = {
        let unused = packed.narrow(0, 0, 1)?.ones_like()?.affine(f64::NAN, 0.0)?;
        let mut rows = vec![unused; pages * page];
        for n in 0..batch {
            for (r, from) in (CU_SEQLENS_K[n]..CU_SEQLENS_K[n + 1]).enumerate() {
                rows[order(n * per_sequence + r / page) * page + r % page] =
                    packed.narrow(0, from as usize, 1)?;
            }
        }
        rows
    };
    let (_, heads, d) = packed.dims3()?;
    let pool = Tensor::cat(&rows, 0)?.reshape((pages, page, heads, d))?;
    Ok((pool, Tensor::from_vec(table, (batch, per_sequence), &Device::Cpu)?))
}

#[test]
fn pages_of_any_size_and_ranges() -> Result<()> {
    let (sq, sk) = (tensor(&CU_SEQLENS_Q)?, tensor(&CU_SEQLENS_K)?);
    let ranges: [[i64; 2]; 8] = [[1, 5], [0, 0], [2, 4], [0, 0], [0, 0], [30, 33], [3, 9], [12, 14]];
    let ranges_tensor = Tensor::from_vec(
        ranges.iter().flatten().map(|x| *x as i32).collect::<Vec<_>>(),
        (4, 2, 2),
        &Device::Cpu,
    )?;
    for (n, page) in [32, 1, 5].into_iter().enumerate() {
        for window in [[None, None], [None, Some(0)], [Some(2), Some(0)], [Some(3), Some(1)]] {
            for with_ranges in [false, true] {
                let dtype = [DType::F32, DType::F16, DType::BF16][n];
                let [q, k, v] = inputs(n as u64, dtype)?;
                let ((k_pages, table), (v_pages, _)) = (paged(&k, page)?, paged(&v, page)?);
                let softcap = with_ranges.then_some(3.0);
                let out = flash_attn_varlen_paged_windowed(
                    &q,
                    &k_pages,
                    &v_pages,
                    &sq,
                    &sk,
                    &table,
                    with_ranges.then_some(&ranges_tensor),
                    LONGEST[0],
                    LONGEST[1],
                    0.2,
                    window[0],
                    window[1],
                    page,
                    softcap,
                )?;
                let cases: Vec<Case> = (0..4)
                    .map(|n| {
                        let ranges = if with_ranges { ranges[n * 2..][..2].to_vec() } else { vec![] };
                        Case { scale: 0.2, window, softcap, ranges, ..Case::default() }
                    })
                    .collect();
                let reference = |work, round| {
                    varlen_attention([&q, &k, &v], [&CU_SEQLENS_Q, &CU_SEQLENS_K], &cases, work, round)
                };
                let (exact, naive) = (reference(DType::F64, None)?, reference(DType::F32, Some(dtype))?);
                check_error(&format!("page {page}, {window:?}, {with_ranges}"), &out, &exact, &naive, 2.0)?;
            }
        }
    }
    Ok(())
}

#[test]
fn seqlens_may_be_u32_i32_or_strided() -> Result<()> {
    let [q, k, v] = inputs(1, DType::F32)?;
    let (sq, sk) = (tensor(&CU_SEQLENS_Q)?, tensor(&CU_SEQLENS_K)?);
    let call = |sq: &Tensor, sk: &Tensor| {
        flash_attn_varlen(&q, &k, &v, sq, sk, 20, 33, 0.2, true)?.flatten_all()?.to_vec1::<f32>()
    };
    let expected = call(&sq, &sk)?;
    assert_eq!(call(&sq.to_dtype(DType::I32)?, &sk.to_dtype(DType::I32)?)?, expected);
    // Every second element of a longer tensor.
    let twice = Tensor::stack(&[&sq, &sk], 1)?;
    let (strided_q, strided_k) = (twice.narrow(1, 0, 1)?.squeeze(1)?, twice.narrow(1, 1, 1)?.squeeze(1)?);
    assert!(!strided_q.is_contiguous());
    assert_eq!(call(&strided_q, &strided_k)?, expected);
    Ok(())
}
