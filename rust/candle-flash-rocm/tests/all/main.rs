//! Everything held to plain Candle operations. One program, since linking Candle takes longer than the tests.
#[path = "../../../rocflash/tests/common/mod.rs"]
mod common;
mod dense;
mod errors;
mod gradients;
mod kv_cache;
mod plain;
mod rocm;
mod signatures;
mod varlen;
