//! Calls that are validated and planned once and run many times.
use crate::call::{Attention, Call, Execute, Operation};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::options::{Append, Gradients, Options, Outputs};
use crate::view::{Residence, View, ViewMut};
use rocflash_sys as sys;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

/// The layout of a tensor: what a plan fixes besides its presence.
#[derive(Debug, PartialEq)]
struct TensorLayout {
    name: &'static str,
    dtype: (u8, u8, u16),
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl TensorLayout {
    fn new(name: &'static str, tensor: &sys::DLTensor) -> Self {
        let list = |first: *const i64| {
            // SAFETY: the tensor is that of a view, with `ndim` sizes and strides.
            unsafe { std::slice::from_raw_parts(first, tensor.ndim as usize) }.to_vec()
        };
        let t = tensor.dtype;
        let dtype = (t.code, t.bits, t.lanes);
        Self { name, dtype, shape: list(tensor.shape), strides: list(tensor.strides) }
    }

    fn matches(&self, tensor: &sys::DLTensor) -> bool {
        let list = |first: *const i64| {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(first, tensor.ndim as usize) }
        };
        let t = tensor.dtype;
        self.dtype == (t.code, t.bits, t.lanes)
            && self.shape == list(tensor.shape)
            && self.strides == list(tensor.strides)
    }
}

/// The options that a plan fixes, with the name of each.
fn numbers(call: &Attention) -> [(&'static str, f64); 13] {
    let p = &call.problem;
    // SAFETY: the pointers are null or point into the options of the call, which are alive.
    let (left, right, scale) = unsafe {
        let side = |n| if p.window.is_null() { f64::INFINITY } else { *p.window.add(n) as f64 };
        (side(0), side(1), p.softmax_scale.as_ref().map_or(f64::INFINITY, |s| f64::from(*s)))
    };
    let interleaved = match &call.operation {
        Operation::Decode(append, _) => append.rotary_interleaved,
        _ => 0,
    };
    [
        ("max_seqlen_q", p.max_seqlen_q as f64),
        ("max_seqlen_k", p.max_seqlen_k as f64),
        ("causal", f64::from(p.causal)),
        ("window to the left", left),
        ("window to the right", right),
        ("attention_chunk", p.attention_chunk as f64),
        ("softmax_scale", scale),
        ("softcap", f64::from(p.softcap)),
        ("dropout", f64::from(p.dropout_p)),
        ("deterministic", f64::from(p.deterministic)),
        ("num_splits", f64::from(p.num_splits)),
        ("rotary_interleaved", f64::from(interleaved)),
        ("operation", f64::from(operation_of(call))),
    ]
}

fn operation_of(call: &Attention) -> u8 {
    match call.operation {
        Operation::Forward(_) => 0,
        Operation::Backward(_) => 1,
        Operation::Decode(..) => 2,
    }
}

/// A call that is validated and planned once: the layouts of its tensors, its options and its
/// executor are fixed. A run gives it tensors, and dropout its seed and offset.
///
/// A run compares the layouts and options with those of the plan, and rejects what differs. Threads
/// may run one plan concurrently, each with an executor of its own.
#[derive(Debug)]
pub struct Plan {
    handle: NonNull<sys::rocflash_plan>,
    residence: Residence,
    backend: i32,
    num_threads: i32,
    tensors: Vec<TensorLayout>,
    numbers: [(&'static str, f64); 13],
}

// SAFETY: the library runs one plan in many threads; it is destroyed by its only owner.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created by the library, and no run borrows the plan any longer.
        unsafe { sys::rocflash_plan_destroy(self.handle.as_ptr()) };
    }
}

/// Creates a plan where other calls query their workspace: with the execution of an executor.
struct Creation<'a> {
    call: &'a Attention<'a>,
    plan: Cell<*mut sys::rocflash_plan>,
    execution: Cell<(i32, i32)>,
}

impl Call for Creation<'_> {
    unsafe fn workspace(&self, e: &sys::rocflash_execution, _: &mut usize) -> sys::rocflash_status {
        self.execution.set((e.backend, e.num_threads));
        let mut plan = std::ptr::null_mut();
        let status = self.call.create_plan(e, &mut plan);
        self.plan.set(plan);
        status
    }

    unsafe fn run(&self, _: &sys::rocflash_execution) -> sys::rocflash_status {
        sys::ROCFLASH_INTERNAL // a creation is only queried
    }
}

/// A run of a plan.
struct Run<'a> {
    plan: &'a Plan,
    arguments: sys::rocflash_plan_arguments,
    other_executor: Cell<bool>,
}

impl Call for Run<'_> {
    unsafe fn workspace(&self, e: &sys::rocflash_execution, bytes: &mut usize) -> sys::rocflash_status {
        if (e.backend, e.num_threads) != (self.plan.backend, self.plan.num_threads) {
            self.other_executor.set(true);
            return sys::ROCFLASH_INVALID_ARGUMENT;
        }
        // SAFETY: the handle is valid as long as the plan.
        unsafe { sys::rocflash_plan_workspace(self.plan.handle.as_ptr(), bytes) }
    }

    unsafe fn run(&self, e: &sys::rocflash_execution) -> sys::rocflash_status {
        let arguments = sys::rocflash_plan_arguments {
            stream: e.stream,
            workspace: e.workspace,
            workspace_size: e.workspace_size,
            ..self.arguments
        };
        // SAFETY: the addresses are those of borrowed views with the plan's layouts.
        unsafe { sys::rocflash_plan_run(self.plan.handle.as_ptr(), &arguments) }
    }
}

/// Sets the address of the tensor `name`.
fn set_address(a: &mut sys::rocflash_plan_arguments, name: &str, data: *mut c_void) {
    match name {
        "q" => a.q = data,
        "k" => a.k = data,
        "v" => a.v = data,
        "cu_seqlens_q" => a.cu_seqlens_q = data,
        "cu_seqlens_k" => a.cu_seqlens_k = data,
        "seqused_q" => a.seqused_q = data,
        "seqused_k" => a.seqused_k = data,
        "leftpad_k" => a.leftpad_k = data,
        "mask" => a.mask = data,
        "alibi_slopes" => a.alibi_slopes = data,
        "bias" => a.bias = data,
        "sinks" => a.sinks = data,
        "block_table" => a.block_table = data,
        "cache_batch_idx" => a.cache_batch_idx = data,
        "k_descale" => a.k_descale = data,
        "v_descale" => a.v_descale = data,
        "k_new" => a.k_new = data,
        "v_new" => a.v_new = data,
        "cu_seqlens_k_new" => a.cu_seqlens_k_new = data,
        "rotary_cos" => a.rotary_cos = data,
        "rotary_sin" => a.rotary_sin = data,
        "rotary_seqlens" => a.rotary_seqlens = data,
        "out" => a.out = data,
        "lse" => a.lse = data,
        "s_dmask" => a.s_dmask = data,
        "dout" => a.dout = data,
        "dq" => a.dq = data,
        "dk" => a.dk = data,
        "dv" => a.dv = data,
        "dsinks" => a.dsinks = data,
        "dbias" => a.dbias = data,
        "dalibi_slopes" => a.dalibi_slopes = data,
        "delta" => a.delta = data,
        "dlse" => a.dlse = data,
        _ => unreachable!("every tensor of a call has a field"),
    }
}

impl Plan {
    /// Plans [`Executor::forward`].
    ///
    /// # Errors
    /// As the call.
    pub fn forward<E: Executor + ?Sized>(
        executor: &E,
        q: &View,
        k: &View,
        v: &View,
        options: &Options,
        outputs: &Outputs,
    ) -> Result<Self> {
        let residence = executor.residence().0;
        Self::new(executor, &Attention::forward(residence, [q, k, v], options, outputs)?)
    }

    /// Plans [`Executor::backward`].
    ///
    /// # Errors
    /// As the call.
    pub fn backward<E: Executor + ?Sized>(
        executor: &E,
        q: &View,
        k: &View,
        v: &View,
        options: &Options,
        gradients: &Gradients,
    ) -> Result<Self> {
        let residence = executor.residence().0;
        Self::new(executor, &Attention::backward(residence, [q, k, v], options, gradients)?)
    }

    /// Plans [`Executor::decode`].
    ///
    /// # Errors
    /// As the call.
    pub fn decode<E: Executor + ?Sized>(
        executor: &E,
        q: &View,
        k_cache: &ViewMut,
        v_cache: &ViewMut,
        append: &Append,
        options: &Options,
        outputs: &Outputs,
    ) -> Result<Self> {
        let residence = executor.residence().0;
        let caches = [k_cache, v_cache];
        Self::new(executor, &Attention::decode(residence, q, caches, append, options, outputs)?)
    }

    /// Runs a plan of forward.
    ///
    /// # Errors
    /// A tensor, an option or an executor that differs from the plan's, and the errors of the call.
    pub fn run_forward<E: Executor + ?Sized>(
        &self,
        executor: &mut E,
        q: &View,
        k: &View,
        v: &View,
        options: &Options,
        outputs: Outputs,
    ) -> Result<()> {
        let residence = executor.residence().0;
        self.run(executor, &Attention::forward(residence, [q, k, v], options, &outputs)?)
    }

    /// Runs a plan of backward.
    ///
    /// # Errors
    /// As [`Plan::run_forward`].
    pub fn run_backward<E: Executor + ?Sized>(
        &self,
        executor: &mut E,
        q: &View,
        k: &View,
        v: &View,
        options: &Options,
        gradients: Gradients,
    ) -> Result<()> {
        let residence = executor.residence().0;
        self.run(executor, &Attention::backward(residence, [q, k, v], options, &gradients)?)
    }

    /// Runs a plan of decode.
    ///
    /// # Errors
    /// As [`Plan::run_forward`].
    #[allow(clippy::too_many_arguments)]
    pub fn run_decode<E: Executor + ?Sized>(
        &self,
        executor: &mut E,
        q: &View,
        k_cache: &mut ViewMut,
        v_cache: &mut ViewMut,
        append: &Append,
        options: &Options,
        outputs: Outputs,
    ) -> Result<()> {
        let residence = executor.residence().0;
        let caches = [&*k_cache, &*v_cache];
        self.run(executor, &Attention::decode(residence, q, caches, append, options, &outputs)?)
    }

    fn new<E: Execute + ?Sized>(executor: &E, call: &Attention) -> Result<Self> {
        let creation = Creation { call, plan: Cell::new(std::ptr::null_mut()), execution: Cell::new((0, 0)) };
        executor.query(&creation)?;
        let handle = NonNull::new(creation.plan.get()).expect("the library returns a plan or an error");
        let (backend, num_threads) = creation.execution.get();
        let tensors = call.tensors().map(|(name, tensor)| TensorLayout::new(name, tensor)).collect();
        let residence = executor.residence().0;
        Ok(Self { handle, residence, backend, num_threads, tensors, numbers: numbers(call) })
    }

    fn run<E: Execute + ?Sized>(&self, executor: &mut E, call: &Attention) -> Result<()> {
        let residence = executor.residence().0;
        if residence != self.residence {
            return Err(Error::invalid(format!(
                "the executor is {residence}; this plan was created for {}",
                self.residence
            )));
        }
        let mut arguments = sys::rocflash_plan_arguments::new();
        self.check(call, &mut arguments)?;
        arguments.dropout_seed = call.problem.dropout_seed;
        arguments.dropout_offset = call.problem.dropout_offset;
        let run = Run { plan: self, arguments, other_executor: Cell::new(false) };
        executor.execute(&run).map_err(|error| {
            if !run.other_executor.get() {
                return error;
            }
            Error::invalid("the executor has another backend or number of threads than this plan's")
        })
    }

    /// Compares a call with the plan's and takes its addresses.
    fn check(&self, call: &Attention, arguments: &mut sys::rocflash_plan_arguments) -> Result<()> {
        for (own, given) in self.numbers.iter().zip(numbers(call)) {
            if own.1 != given.1 {
                return Err(Error::invalid(format!("{} differs from that of this plan", own.0)));
            }
        }
        let mut planned = self.tensors.iter();
        for (name, tensor) in call.tensors() {
            let Some(own) = planned.next().filter(|own| own.name == name) else {
                return Err(self.other_tensors(call));
            };
            if !own.matches(tensor) {
                let given = TensorLayout::new(name, tensor);
                return Err(Error::invalid(format!(
                    "{name} has shape {:?} and strides {:?}; this plan was created for shape {:?}, strides {:?} and its dtype",
                    given.shape, given.strides, own.shape, own.strides
                )));
            }
            set_address(arguments, name, tensor.data);
        }
        planned.next().map_or(Ok(()), |_| Err(self.other_tensors(call)))
    }

    /// The error of a call with other tensors than the plan's.
    fn other_tensors(&self, call: &Attention) -> Error {
        let planned = |name: &str| self.tensors.iter().any(|own| own.name == name);
        let given = |name: &str| call.tensors().any(|(other, _)| other == name);
        if let Some((name, _)) = call.tensors().find(|(name, _)| !planned(name)) {
            return Error::invalid(format!("{name} is given; this plan was created without it"));
        }
        let missing = self.tensors.iter().find(|own| !given(own.name));
        let name = missing.map_or("a tensor", |own| own.name);
        Error::invalid(format!("{name} is missing; this plan was created with it"))
    }
}
