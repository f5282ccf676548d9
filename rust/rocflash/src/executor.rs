//! Who computes: the CPU, or the stream of a GPU, with the same functions on each.
use crate::call::{self, Call, Execute, ResidenceOf};
use crate::error::{Error, Result};
use crate::options::{Append, Gradients, Options, Outputs};
use crate::view::{Residence, View, ViewMut};
use rocflash_sys as sys;
use std::mem::MaybeUninit;

/// Executes attention: [`Cpu`], or a GPU's [`Stream`](crate::gpu::Stream).
///
/// b batch, h query heads, hk key heads (h a multiple of hk), sq and sk lengths, d and dv head sizes: q is
/// (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv), all f32, f16 or bf16, with any strides but a contiguous last
/// dimension. Everything is checked before anything is written.
pub trait Executor: Execute {
    /// Attention.
    fn forward(
        &mut self,
        q: &View,
        k: &View,
        v: &View,
        options: &Options,
        mut outputs: Outputs,
    ) -> Result<()> {
        call::forward(self, [q, k, v], options, &mut outputs)
    }

    /// The gradients of q, k, v and sinks, as far as they are asked for.
    fn backward(
        &mut self,
        q: &View,
        k: &View,
        v: &View,
        options: &Options,
        mut gradients: Gradients,
    ) -> Result<()> {
        call::backward(self, [q, k, v], options, &mut gradients)
    }

    /// Attention over a cache, into which new keys and values are written first. `options.seqused_k` says how many keys
    /// each sequence has before that.
    fn decode(
        &mut self,
        q: &View,
        k_cache: &mut ViewMut,
        v_cache: &mut ViewMut,
        append: &Append,
        options: &Options,
        mut outputs: Outputs,
    ) -> Result<()> {
        let caches = [k_cache.reborrow(), v_cache.reborrow()];
        call::decode(self, q, caches, append, options, &mut outputs, |executor, call| executor.execute(call))
    }

    /// Merges attention over parts of the keys: `out_partial` f32 (parts, b, sq, h, dv) and `lse_partial`
    /// f32 (parts, b, h, sq) into out (b, sq, h, dv) and lse f32 (b, h, sq).
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

/// Which of the library's backends computes on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The fast one.
    #[default]
    Auto,
    /// The definition, in double: the judge of all others. Also takes f64.
    Reference,
    /// Step by step in the dtype of q: the yardstick for errors.
    Plain,
    /// With all scores in memory: for comparisons of speed.
    Standard,
}

#[repr(align(64))]
struct Block(#[allow(dead_code)] MaybeUninit<[u8; 64]>);

/// The CPU: how many threads, which backend, and scratch memory that is kept from call to call.
///
/// Results have the same bits for any number of threads.
#[derive(Default)]
pub struct Cpu {
    threads: usize,
    backend: Backend,
    workspace: Vec<Block>,
}

impl Cpu {
    /// All CPUs that the process may use, or as many as `ROCFLASH_NUM_THREADS` says.
    pub fn new() -> Self {
        Self::default()
    }

    /// As many threads, the calling one among them; 0 is the default.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Another backend than the fast one.
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
    /// How the library is to execute a call, without workspace.
    fn execution(&self) -> Result<sys::rocflash_execution> {
        let backend = match self.backend {
            Backend::Auto => sys::ROCFLASH_BACKEND_AUTO,
            Backend::Reference => sys::ROCFLASH_BACKEND_REFERENCE,
            Backend::Plain => sys::ROCFLASH_BACKEND_PLAIN,
            Backend::Standard => sys::ROCFLASH_BACKEND_STANDARD,
        };
        Ok(sys::rocflash_execution {
            backend: i32::try_from(backend).expect("the constants of the header are small"),
            num_threads: i32::try_from(self.threads)
                .map_err(|_| Error::invalid(format!("threads: {}; 0 to {}", self.threads, i32::MAX)))?,
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
            Error::new(crate::ErrorKind::OutOfMemory, format!("a workspace of {bytes} bytes was refused"))
        })?;
        execution.workspace = self.workspace.as_mut_ptr().cast();
        execution.workspace_size = self.workspace.capacity() * size_of::<Block>();
        // SAFETY: the workspace is this many bytes, aligned by its type, and exclusively borrowed.
        unsafe { call::run(call, &execution) }
    }
}

/// [`Executor::forward`] on the CPU, with all its threads.
pub fn forward(q: &View, k: &View, v: &View, options: &Options, outputs: Outputs) -> Result<()> {
    Cpu::new().forward(q, k, v, options, outputs)
}

/// [`Executor::backward`] on the CPU, with all its threads.
pub fn backward(q: &View, k: &View, v: &View, options: &Options, gradients: Gradients) -> Result<()> {
    Cpu::new().backward(q, k, v, options, gradients)
}

/// [`Executor::decode`] on the CPU, with all its threads.
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
pub fn combine(
    out_partial: &View,
    lse_partial: &View,
    out: &mut ViewMut,
    lse: Option<&mut ViewMut>,
) -> Result<()> {
    Cpu::new().combine(out_partial, lse_partial, out, lse)
}
