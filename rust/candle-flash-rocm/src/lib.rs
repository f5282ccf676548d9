//! Flash attention for [Candle](https://github.com/huggingface/candle) on CPUs and AMD GPUs, with
//! gradients.
//!
//! The functions of candle-flash-attn, with the same names and arguments. To migrate, replace the
//! dependency and the `use`:
//!
//! ```
//! use candle::{Device, Tensor};
//! use candle_flash_rocm::flash_attn;
//!
//! // batch, queries, heads, head dim
//! let q = Tensor::randn(0f32, 1., (1, 128, 8, 64), &Device::Cpu)?;
//! let k = Tensor::randn(0f32, 1., (1, 128, 2, 64), &Device::Cpu)?;
//! let v = Tensor::randn(0f32, 1., (1, 128, 2, 64), &Device::Cpu)?;
//! let out = flash_attn(&q, &k, &v, 0.125, true)?;
//! assert_eq!(out.dims(), [1, 128, 8, 64]);
//! # Ok::<(), candle::Error>(())
//! ```
//!
//! Beyond candle-flash-attn: the CPU; f32 besides f16 and bf16; head dims up to 576, with another
//! one for v; any page size; gradients for q, k and v ([`candle::Tensor::backward`]), except
//! through paged KV and caches. Strided inputs are not copied if the last dimension is contiguous.
//!
//! [`RocmAttention`] has the same functions on an AMD GPU, and [`on_device`] has them for tensors
//! in GPU memory ([`RocmTensor`]). [`KvCache`] keeps keys and values between calls, in host memory
//! or on the GPU. [`v3`] has the signatures of candle-flash-attn-v3.
#![warn(missing_docs)]
#![cfg_attr(not(feature = "rocm"), forbid(unsafe_code))]

mod check;
mod functions;
mod kv_cache;
mod op;
mod prefix;
mod rocm;
#[cfg(feature = "rocm")]
pub mod rocm_device;
mod rocm_tensor;
mod stage;

pub use functions::*;
pub use kv_cache::{DeviceCache, KvCache};
pub use rocm::{new_rocm, RocmAttention};
pub use rocm_tensor::RocmTensor;
