//! Exact attention: forward, backward, packed sequences and key-value caches, on the CPU and on AMD and NVIDIA GPUs.
//!
//! A safe face of the rocflash library. Tensors are borrowed views of your memory; nothing is copied, and on the CPU
//! nothing is allocated but scratch.
//!
//! ```
//! use rocflash::{forward, Options, Outputs, View, ViewMut};
//!
//! let shape = [1, 128, 8, 64]; // batch, queries, heads, head size
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
//! [`Executor`] has the functions, [`Options`] all that can be asked for, [`Cpu`] chooses threads and keeps
//! scratch memory, [`KvCache`] keeps keys and values between calls, and [`gpu`] has devices, buffers and streams.
//!
//! # Soundness
//!
//! No user of this crate needs `unsafe`. The argument for that:
//!
//! - **Memory.** A [`View`] or [`ViewMut`] can only be made if every index within its shape, with its strides,
//!   leads into the borrowed slice or buffer. That arithmetic is overflow-checked, in one file, and run under Miri. The
//!   library reads and writes elements of its tensors and nothing else; lengths, page numbers and indices within tensors
//!   are checked by the library before the first access, or on a GPU clamped by its kernels to what the tensors hold.
//! - **Aliasing.** Outputs are `&mut` borrows, inputs `&` borrows, for the whole call.
//! - **Values.** [`Element`] is sealed to types for which every bit pattern is a value.
//! - **Lifetime.** On the CPU a call returns when it is done. On a GPU a buffer belongs to one stream, all work on it is
//!   put into that stream in order, a view of another stream's buffer is refused, data is handed to the host only
//!   after the stream was waited for, and a buffer's memory is released only after that too.
//! - **Threads.** The library may be called from any thread at any time. [`Cpu`] is exclusively borrowed during a call, since
//!   it owns the scratch memory; a GPU stream locks its own.
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
mod view;

pub use dtype::{DType, Element};
pub use error::{Error, ErrorKind, Result};
pub use executor::{backward, combine, decode, forward, Backend, Cpu, Executor};
pub use info::{
    devices, drivers, limits, targets, version, DeviceInfo, DriverInfo, Limits, Platform, TargetInfo,
};
pub use kv_cache::KvCache;
pub use layout::{Layout, MAX_DIMS};
pub use options::{Append, Gradients, Options, Outputs};
pub use view::{View, ViewMut};
