//! Flash attention for [Candle](https://github.com/huggingface/candle) on CPUs and AMD GPUs, with gradients.
//!
//! The functions of candle-flash-attn, by the same names and with the same arguments. To change over, replace the
//! dependency and the `use`:
//!
//! ```
//! use candle::{Device, Tensor};
//! use candle_flash_rocm::flash_attn;
//!
//! let q = Tensor::randn(0f32, 1., (1, 128, 8, 64), &Device::Cpu)?; // batch, queries, heads, head size
//! let k = Tensor::randn(0f32, 1., (1, 128, 2, 64), &Device::Cpu)?;
//! let v = Tensor::randn(0f32, 1., (1, 128, 2, 64), &Device::Cpu)?;
//! let out = flash_attn(&q, &k, &v, 0.125, true)?;
//! assert_eq!(out.dims(), [1, 128, 8, 64]);
//! # Ok::<(), candle::Error>(())
//! ```
//!
//! Beyond candle-flash-attn: it runs on the CPU; f32 as well as f16 and bf16; any head size up to 576, also one for v
//! alone; any page size; gradients for q, k and v ([`candle::Tensor::backward`]) everywhere but through pages and caches.
//! Strided inputs are taken as they are as long as the last dimension is contiguous.
//!
//! [`RocmAttention`] has the same functions on an AMD GPU, [`on_device`] has them for tensors that stay there ([`RocmTensor`]), and
//! [`KvCache`] keeps keys and values between calls, in host memory or on the GPU. [`v3`] spells them as candle-flash-attn-v3 does.
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
