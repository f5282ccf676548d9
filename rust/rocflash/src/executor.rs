//! Executors: the CPU or a stream of a GPU, with the same functions on each.
use crate::call::{self, Attention, Call, Execute, ResidenceOf};
use crate::error::{Error, Result};
use crate::options::{Append, Gradients, Options, Outputs};
use crate::view::{Residence, View, ViewMut};
use rocflash_sys as sys;
use std::mem::MaybeUninit;

/// Executes attention: [`Cpu`], or a GPU's [`Stream`](crate::gpu::Stream).
///
/// Shapes: q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv), where b is the batch size, h the
/// query heads, hk the KV heads (h is a multiple of hk), sq and sk the sequence lengths, d and dv
/// the head dims. All are f32, f16 or bf16, with any strides but a contiguous last dimension. A
/// call validates everything before it writes anything.
pub trait Executor: Execute {
    /// Computes attention.
    ///
    /// # Errors
    /// An invalid or unsupported argument, which the message names, missing memory, or a failure of
    /// the device.
    fn forward(&mut self, q: &View, k: &View, v: &View, options: &Options, outputs: Outputs) -> Result<()> {
        let call = Attention::forward(self.residence().0, [q, k, v], options, &outputs)?;
        self.execute(&call)
    }

    /// Computes the gradients that `gradients` has outputs for.
    ///
    /// # Errors
    /// As [`Executor::forward`].
    fn backward(
        &mut self,
        q: &View,
        k: &View,
        v: &View,
        options: &Options,
        gradients: Gradients,
    ) -> Result<()> {
        let call = Attention::backward(self.residence().0, [q, k, v], options, &gradients)?;
        self.execute(&call)
    }

    /// Appends new keys and values to a KV cache and attends to it. `options.seqused_k` has the
    /// number of keys of each sequence before the append.
    ///
    /// # Errors
    /// As [`Executor::forward`].
    fn decode(
        &mut self,
        q: &View,
        k_cache: &mut ViewMut,
        v_cache: &mut ViewMut,
        append: &Append,
        options: &Options,
        outputs: Outputs,
    ) -> Result<()> {
        let caches = [&*k_cache, &*v_cache];
        let call = Attention::decode(self.residence().0, q, caches, append, options, &outputs)?;
        self.execute(&call)
    }

    /// Combines the partial results of split-KV attention: `out_partial` f32 (splits, b, sq, h, dv)
    /// and `lse_partial` f32 (splits, b, h, sq) into out (b, sq, h, dv) and lse f32 (b, h, sq).
    ///
    /// # Errors
    /// As [`Executor::forward`].
    fn combine(
        &mut self,
        out_partial: &View,
        lse_partial: &View,
        out: &mut ViewMut,
        lse: Option<&mut ViewMut>,
    ) -> Result<()> {
        call::combine(self, out_partial, lse_partial, out, lse)
    }
}

impl<E: Execute + ?Sized> Executor for E {}

/// The backend that computes on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The tiled, vectorized, threaded backend.
    #[default]
    Auto,
    /// The double-precision reference implementation. Also supports f64.
    Reference,
    /// Naive attention in the dtype of q: the baseline of the error bound.
    Plain,
    /// Naive attention, vectorized and threaded: the baseline of speed comparisons.
    Standard,
}

#[repr(align(64))]
struct Block(#[allow(dead_code)] MaybeUninit<[u8; 64]>);

/// The CPU: number of threads, backend, and a workspace that calls reuse.
///
/// Results are bit-identical for any number of threads.
#[derive(Default)]
pub struct Cpu {
    threads: usize,
    backend: Backend,
    workspace: Vec<Block>,
}

impl Cpu {
    /// Uses all CPUs that the process may use, or `ROCFLASH_NUM_THREADS` threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of threads, including the calling one; 0 is the default.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets the backend.
    pub fn backend(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu").field("threads", &self.threads).field("backend", &self.backend).finish()
    }
}

impl Cpu {
    /// The execution struct without a workspace.
    fn execution(&self) -> Result<sys::rocflash_execution> {
        let backend = match self.backend {
            Backend::Auto => sys::ROCFLASH_BACKEND_AUTO,
            Backend::Reference => sys::ROCFLASH_BACKEND_REFERENCE,
            Backend::Plain => sys::ROCFLASH_BACKEND_PLAIN,
            Backend::Standard => sys::ROCFLASH_BACKEND_STANDARD,
        };
        Ok(sys::rocflash_execution {
            backend: i32::try_from(backend).expect("the header's constants fit into i32"),
            num_threads: i32::try_from(self.threads).map_err(|_| {
                Error::invalid(format!("threads is {}; it must be 0 to {}", self.threads, i32::MAX))
            })?,
            ..Default::default()
        })
    }
}

impl Execute for Cpu {
    fn residence(&self) -> ResidenceOf {
        ResidenceOf(Residence::Host)
    }

    fn query(&self, call: &dyn Call) -> Result<usize> {
        call::workspace(call, &self.execution()?)
    }

    fn execute(&mut self, call: &dyn Call) -> Result<()> {
        let mut execution = self.execution()?;
        let bytes = call::workspace(call, &execution)?;
        self.workspace.clear();
        self.workspace.try_reserve(bytes.div_ceil(size_of::<Block>())).map_err(|_| {
            Error::new(
                crate::ErrorKind::OutOfMemory,
                format!("could not allocate a workspace of {bytes} bytes"),
            )
        })?;
        execution.workspace = self.workspace.as_mut_ptr().cast();
        execution.workspace_size = self.workspace.capacity() * size_of::<Block>();
        // SAFETY: the workspace has this size, is aligned by its element type, and is exclusively
        // borrowed.
        unsafe { call::run(call, &execution) }
    }
}

/// [`Executor::forward`] on the CPU, with the default number of threads.
///
/// # Errors
/// As [`Executor::forward`].
pub fn forward(q: &View, k: &View, v: &View, options: &Options, outputs: Outputs) -> Result<()> {
    Cpu::new().forward(q, k, v, options, outputs)
}

/// [`Executor::backward`] on the CPU, with the default number of threads.
///
/// # Errors
/// As [`Executor::forward`].
pub fn backward(q: &View, k: &View, v: &View, options: &Options, gradients: Gradients) -> Result<()> {
    Cpu::new().backward(q, k, v, options, gradients)
}

/// [`Executor::decode`] on the CPU, with the default number of threads.
///
/// # Errors
/// As [`Executor::forward`].
pub fn decode(
    q: &View,
    k_cache: &mut ViewMut,
    v_cache: &mut ViewMut,
    append: &Append,
    options: &Options,
    outputs: Outputs,
) -> Result<()> {
    Cpu::new().decode(q, k_cache, v_cache, append, options, outputs)
}

/// [`Executor::combine`] on the CPU.
///
/// # Errors
/// As [`Executor::forward`].
pub fn combine(
    out_partial: &View,
    lse_partial: &View,
    out: &mut ViewMut,
    lse: Option<&mut ViewMut>,
) -> Result<()> {
    Cpu::new().combine(out_partial, lse_partial, out, lse)
}
