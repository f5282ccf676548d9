//! The functions of candle-flash-attn 0.11: name by name, argument by argument. This file is the
//! contract; it fails to compile where the crate differs.
#![allow(clippy::type_complexity)] // written out, to be compared

use candle::{Result, Tensor};
use candle_flash_rocm::*;

type T<'a> = &'a Tensor;
type Size = Option<usize>;

#[test]
fn are_those_of_candle_flash_attn() {
    let _: fn(T, T, T, f32, bool) -> Result<Tensor> = flash_attn;
    let _: fn(T, T, T, f32, Size, Size) -> Result<Tensor> = flash_attn_windowed;
    let _: fn(T, T, T, T, f32, bool) -> Result<Tensor> = flash_attn_alibi;
    let _: fn(T, T, T, T, f32, Size, Size) -> Result<Tensor> = flash_attn_alibi_windowed;
    let _: fn(T, T, T, Option<T>, f32, Size, Size, f32) -> Result<Tensor> = flash_attn_alibi_windowed_softcap;
    let _: fn(T, T, T, T, T, usize, usize, f32, bool) -> Result<Tensor> = flash_attn_varlen;
    let _: fn(T, T, T, T, T, usize, usize, f32, Size, Size) -> Result<Tensor> = flash_attn_varlen_windowed;
    let _: fn(
        T,
        T,
        T,
        T,
        T,
        T,
        Option<T>,
        usize,
        usize,
        f32,
        Size,
        Size,
        usize,
        Option<f32>,
    ) -> Result<Tensor> = flash_attn_varlen_paged_windowed;
    let _: fn(T, T, T, T, T, T, usize, usize, f32, bool) -> Result<Tensor> = flash_attn_varlen_alibi;
    let _: fn(T, T, T, T, T, T, usize, usize, f32, Size, Size) -> Result<Tensor> =
        flash_attn_varlen_alibi_windowed;
    let _: fn(T, T, T, Option<T>, T, T, usize, usize, f32, Size, Size, f32) -> Result<Tensor> =
        flash_attn_varlen_alibi_windowed_softcap;
}

#[test]
fn are_those_of_other_servers() {
    let _: fn(T, T, T, f32, bool, bool) -> Result<Tensor> = v3::flash_attn;
    let _: fn(T, T, T, f32, Size, Size, bool) -> Result<Tensor> = v3::flash_attn_windowed;
    let _: fn(T, T, T, T, f32, Size, Size, bool) -> Result<Tensor> = v3::flash_attn_alibi_windowed;
    let _: fn(T, T, T, T, T, usize, usize, f32, Size, Size, bool) -> Result<Tensor> =
        v3::flash_attn_varlen_windowed;
    let _: fn(T, T, T, f32, Option<f32>, bool) -> Result<Tensor> = flash_attn_softcap;
    let _: fn(T, T, T, T, T, &Option<Tensor>, usize, usize, f32, Option<f32>, bool) -> Result<Tensor> =
        flash_attn_varlen_softcap;
    let _: fn(T, T, T, T, T, &Option<Tensor>, usize, usize, f32, Option<f32>, Size, Size) -> Result<Tensor> =
        flash_attn_varlen_windowed_softcap;
}

#[test]
fn may_be_used_from_any_thread() {
    fn sendable<S: Send + Sync>() {}
    sendable::<RocmAttention>();
    sendable::<KvCache>();
    sendable::<FlashAttn>();
    sendable::<RocmTensor>();
}
