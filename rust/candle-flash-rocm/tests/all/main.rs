//! Tests against naive attention in Candle operations. One program, because linking Candle takes
//! longer than the tests.
#[path = "../../../rocflash/tests/common/mod.rs"]
mod common;
mod dense;
mod errors;
mod gradients;
mod kv_cache;
mod naive;
mod rocm;
mod signatures;
mod varlen;
