//! Exact attention: forward, backward, varlen and KV caches, on the CPU and on AMD and NVIDIA GPUs.
//!
//! A safe wrapper of the rocflash library. Tensors are borrowed views of the caller's memory.
//! Nothing is copied, and the CPU allocates only workspace.
//!
//! ```
//! use rocflash::{forward, Options, Outputs, View, ViewMut};
//!
//! let shape = [1, 128, 8, 64]; // batch, queries, heads, head dim
//! let q = vec![0.5f32; 128 * 8 * 64];
//! let (k, v) = (q.clone(), q.clone());
//! let mut out = vec![0.0f32; q.len()];
//! forward(
//!     &View::new(&q, &shape)?,
//!     &View::new(&k, &shape)?,
//!     &View::new(&v, &shape)?,
//!     &Options::new().causal(),
//!     Outputs::new(ViewMut::new(&mut out, &shape)?),
//! )?;
//! assert!((out[0] - 0.5).abs() < 1e-6);
//! # Ok::<(), rocflash::Error>(())
//! ```
//!
//! [`Executor`] has the functions and [`Options`] the options. [`Cpu`] sets the number of threads
//! and reuses the workspace. [`Plan`] validates and plans a call once and runs it many times.
//! [`KvCache`] keeps keys and values between calls. [`gpu`] has devices, buffers and streams.
//!
//! # Soundness
//!
//! The crate needs no `unsafe` in the code of its users, for these reasons:
//!
//! - **Memory.** A constructor of [`View`] or [`ViewMut`] checks that every index within the shape,
//!   with its strides, is inside the borrowed slice or buffer. That arithmetic is overflow-checked,
//!   is in one file and is tested under Miri. The library accesses only elements of its tensors. It
//!   validates lengths, page numbers and indices that are stored in tensors before the first
//!   access; GPU kernels clamp them to the tensors' sizes.
//! - **Aliasing.** Outputs are `&mut` borrows, inputs `&` borrows, for the whole call.
//! - **Values.** [`Element`] is sealed to types for which every bit pattern is a value.
//! - **Lifetime.** A CPU call returns when it has completed. A GPU buffer belongs to one stream,
//!   which orders all work on it. A call rejects a view of another stream's buffer. The host reads
//!   data, and memory is freed, only after a synchronization with the stream.
//! - **Threads.** Every function may be called from any thread. A call borrows [`Cpu`] exclusively,
//!   because [`Cpu`] owns the workspace. A GPU stream locks its workspace.
#![warn(missing_docs)]

mod call;
mod dtype;
mod error;
mod executor;
pub mod gpu;
mod info;
mod kv_cache;
mod layout;
mod options;
mod plan;
mod view;

pub use dtype::{DType, E4m3fn, E4m3fnuz, E5m2, E5m2fnuz, Element};
pub use error::{Error, ErrorKind, Result};
pub use executor::{backward, combine, decode, forward, Backend, Cpu, Executor};
pub use info::{
    devices, drivers, limits, targets, version, DeviceInfo, DriverInfo, Limits, Platform, TargetInfo,
};
pub use kv_cache::KvCache;
pub use layout::{Layout, MAX_DIMS};
pub use options::{Append, Gradients, Options, Outputs};
pub use plan::Plan;
pub use view::{View, ViewMut};
