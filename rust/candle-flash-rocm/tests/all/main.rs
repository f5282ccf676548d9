//! Everything held to plain Candle operations. One program, since linking Candle takes longer than the tests.
mod dense;
mod errors;
mod gradients;
mod kv_cache;
mod plain;
mod rocm;
mod signatures;
mod varlen;
