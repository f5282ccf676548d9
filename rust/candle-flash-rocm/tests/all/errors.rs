//! Invalid arguments are rejected with candle-flash-attn's messages, or the library's.
use crate::naive::random;
use candle::{DType, Device, Result, Tensor};
use candle_flash_rocm::*;

#[track_caller]
fn rejected(result: Result<Tensor>, expected: &str) {
    let message = result.unwrap_err().to_string();
    assert!(message.contains(expected), "{message}\nexpected: {expected}");
}

#[test]
fn shapes_and_dtypes() -> Result<()> {
    let q = random(1, &[2, 5, 4, 8], DType::F32)?;
    let k = random(2, &[2, 7, 2, 8], DType::F32)?;
    let three = random(2, &[7, 2, 8], DType::F32)?;
    rejected(
        flash_attn(&q, &three, &three, 1.0, false),
        "flash-attn expects input tensors of rank 4 (q: 4, k: 3, v: 3",
    );
    let other = random(2, &[2, 7, 2, 16], DType::F32)?;
    rejected(flash_attn(&q, &other, &k, 1.0, false), "shape mismatch q [2, 5, 4, 8] and k [2, 7, 2, 16]");
    let shorter = k.narrow(1, 0, 6)?;
    rejected(flash_attn(&q, &k, &shorter, 1.0, false), "shape mismatch q [2, 5, 4, 8] and v [2, 6, 2, 8]");
    let heads = random(2, &[2, 7, 3, 8], DType::F32)?;
    rejected(
        flash_attn(&q, &heads, &heads, 1.0, false),
        "number of k/v heads 3 must divide number of heads in query 4",
    );
    let wide = random(2, &[1, 1, 1, 577], DType::F32)?;
    rejected(
        flash_attn(&wide, &wide, &wide, 1.0, false),
        "only supports head dimension at most 576 (got 577)",
    );
    let transposed = random(2, &[2, 5, 8, 4], DType::F32)?.transpose(2, 3)?;
    rejected(
        flash_attn(&transposed, &k, &k, 1.0, false),
        "the last dim of q must be contiguous [160, 32, 1, 4]",
    );
    let double = q.to_dtype(DType::F64)?;
    rejected(
        flash_attn(&double, &double, &double, 1.0, false),
        "flash-attn is only supported for f32/f16/bf16 (F64)",
    );
    rejected(flash_attn(&q, &k.to_dtype(DType::F16)?, &k, 1.0, false), "unexpected dtype");
    Ok(())
}

#[test]
fn options() -> Result<()> {
    let q = random(1, &[2, 5, 4, 8], DType::F32)?;
    let slopes = random(2, &[3], DType::F32)?;
    rejected(
        flash_attn_alibi(&q, &q, &q, &slopes, 1.0, false),
        "shape mismatch alibi_slopes [3], expected 4",
    );
    let slopes = random(2, &[4], DType::F16)?;
    rejected(
        flash_attn_alibi(&q, &q, &q, &slopes, 1.0, false),
        "DType mismatch alibi_slopes F16, expected F32",
    );
    rejected(flash_attn_alibi_windowed_softcap(&q, &q, &q, None, 1.0, None, None, -1.0), "softcap is -1");
    rejected(flash_attn(&q, &q, &q, f32::NAN, false), "softmax_scale is nan");
    Ok(())
}

#[test]
fn varlen() -> Result<()> {
    let x = random(1, &[9, 2, 8], DType::F32)?;
    let numbers = |x: &[u32]| Tensor::from_slice(x, x.len(), &Device::Cpu);
    let call = |x: &Tensor, q: &Tensor, k: &Tensor, longest: usize| {
        flash_attn_varlen(x, x, x, q, k, longest, longest, 1.0, false)
    };
    let good = numbers(&[0, 4, 9])?;
    assert!(call(&x, &good, &good, 5).is_ok());
    rejected(
        call(&x.unsqueeze(0)?, &good, &good, 5),
        "flash-attn-varlen expects input tensors of rank 3 (q: 4",
    );
    rejected(call(&x, &numbers(&[0])?, &good, 5), "seqlens_q should have a len >= 2 1");
    rejected(
        call(&x, &good, &numbers(&[0, 9])?, 9),
        "seqlens_q and seqlens_k should have the same number of elements 3 <> 2",
    );
    rejected(call(&x, &good.to_dtype(DType::I64)?, &good, 5), "seqlens_q must be u32 or i32, got I64");
    rejected(
        call(&x, &numbers(&[0, 1, u32::MAX])?, &good, 5),
        "seqlens_q is 4294967295; it must be at most 2147483647",
    );
    rejected(call(&x, &good, &good, 4), "max_seqlen_q is 4; ");
    rejected(call(&x, &numbers(&[0, 4, 10])?, &good, 6), "cu_seqlens_q");
    rejected(call(&x, &numbers(&[0, 5, 4])?, &good, 6), "cu_seqlens_q");
    Ok(())
}

#[test]
fn pages() -> Result<()> {
    let q = random(1, &[9, 2, 8], DType::F32)?;
    let pages = random(2, &[3, 4, 2, 8], DType::F32)?;
    let numbers = |x: &[u32]| Tensor::from_slice(x, x.len(), &Device::Cpu);
    let seqlens = numbers(&[0, 4, 9])?;
    let table = numbers(&[0, 1, 2, 1])?.reshape((2, 2))?;
    let call = |pages: &Tensor, table: &Tensor, ranges: Option<&Tensor>, page: usize| {
        flash_attn_varlen_paged_windowed(
            &q,
            pages,
            pages,
            &seqlens,
            &seqlens,
            table,
            ranges,
            5,
            5,
            1.0,
            None,
            Some(0),
            page,
            None,
        )
    };
    assert!(call(&pages, &table, None, 4).is_ok());
    rejected(call(&q, &table, None, 4), "flash-attn-varlen paged expects k/v tensors of rank 4 (k: 3, v: 3)");
    rejected(call(&pages, &table, None, 8), "page_block_size 8 does not match k shape [3, 4, 2, 8]");
    rejected(call(&pages, &table.to_dtype(DType::F32)?, None, 4), "block_table must be u32 or i32, got F32");
    let wrong = numbers(&[0, 1, 2, 3])?.reshape((2, 2))?;
    rejected(call(&pages, &wrong, None, 4), "block_table is 3 ");
    let short = numbers(&[0, 1])?.reshape((2, 1))?;
    rejected(
        call(&pages, &short, None, 4),
        "block_table has a capacity of 4 keys per sequence; sequence 1 has 5",
    );
    let ranges = numbers(&[0, 1])?.reshape((1, 1, 2))?;
    rejected(call(&pages, &table, Some(&ranges), 4), "mm_prefix_ranges must be i32, got U32");
    let ranges = ranges.to_dtype(DType::I32)?;
    rejected(
        call(&pages, &table, Some(&ranges), 4),
        "mm_prefix_ranges shape must be (2, max_ranges, 2), got [1, 1, 2]",
    );
    Ok(())
}
