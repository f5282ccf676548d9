//! Converts views and options into the structs of the C ABI, queries the workspace size and runs
//! the call. Attention crosses the FFI boundary only here.
use crate::error::{check, Error, Result};
use crate::options::{Append, Gradients, Options, Outputs};
use crate::view::{RawView, Residence, View, ViewMut};
use rocflash_sys as sys;
use std::marker::PhantomData;

/// A call as an [`Execute`] implementation uses it: query its workspace size, then run it.
pub trait Call {
    /// # Safety
    /// The structs of the call point to live tensors; only this crate implements this trait.
    unsafe fn workspace(
        &self,
        execution: &sys::rocflash_execution,
        bytes: &mut usize,
    ) -> sys::rocflash_status;
    /// # Safety
    /// The structs of the call point to live tensors. The stream and the workspace of `execution`
    /// are valid on their device.
    unsafe fn run(&self, execution: &sys::rocflash_execution) -> sys::rocflash_status;
}

/// Executes calls on tensors of one residence. Sealed: the module is private.
pub trait Execute {
    /// Where the tensors of a call must be.
    #[doc(hidden)]
    fn residence(&self) -> ResidenceOf;
    /// Returns the workspace size in bytes. Validates everything that running the call validates;
    /// writes nothing.
    #[doc(hidden)]
    fn query(&self, call: &dyn Call) -> Result<usize>;
    /// Queries the workspace, provides workspace and stream, and runs the call.
    #[doc(hidden)]
    fn execute(&mut self, call: &dyn Call) -> Result<()>;
}

/// A [`Residence`] in a type that a public trait may name.
pub struct ResidenceOf(pub(crate) Residence);

/// The tensors of one call. Their addresses are taken after the last one was added, when the list
/// no longer moves.
struct Tensors {
    residence: Residence,
    list: Vec<sys::DLTensor>,
    names: Vec<&'static str>,
}

/// An index into [`Tensors`], or none for an optional tensor that is absent.
#[derive(Clone, Copy)]
struct Slot(Option<usize>);

impl Tensors {
    fn new(residence: Residence) -> Self {
        Self { residence, list: Vec::with_capacity(24), names: Vec::with_capacity(24) }
    }

    /// The view must outlive the call: the `DLTensor` points into it.
    fn add(&mut self, name: &'static str, view: Option<&RawView>) -> Result<Slot> {
        let Some(view) = view else { return Ok(Slot(None)) };
        if view.residence() != self.residence {
            return Err(Error::invalid(format!(
                "{name} is in {}; this call runs on {}",
                view.residence(),
                self.residence
            )));
        }
        self.list.push(view.dlpack());
        self.names.push(name);
        Ok(Slot(Some(self.list.len() - 1)))
    }

    fn read(&mut self, name: &'static str, view: &Option<View>) -> Result<Slot> {
        self.add(name, view.as_ref().map(View::raw))
    }

    fn write(&mut self, name: &'static str, view: &Option<ViewMut>) -> Result<Slot> {
        self.add(name, view.as_ref().map(ViewMut::raw))
    }

    fn at(&self, slot: Slot) -> *const sys::DLTensor {
        slot.0.map_or(std::ptr::null(), |n| &raw const self.list[n])
    }
}

/// q, k, v and the options as slots, from which the C struct is built after all tensors were added.
struct Problem<'a> {
    options: &'a Options<'a>,
    q: Slot,
    k: Slot,
    v: Slot,
    cu_seqlens_q: Slot,
    cu_seqlens_k: Slot,
    seqused_q: Slot,
    seqused_k: Slot,
    leftpad_k: Slot,
    mask: Slot,
    alibi_slopes: Slot,
    bias: Slot,
    sinks: Slot,
    block_table: Slot,
    cache_batch_idx: Slot,
    k_descale: Slot,
    v_descale: Slot,
}

impl<'a> Problem<'a> {
    fn new(t: &mut Tensors, [q, k, v]: [&RawView; 3], options: &'a Options<'a>) -> Result<Self> {
        Ok(Self {
            q: t.add("q", Some(q))?,
            k: t.add("k", Some(k))?,
            v: t.add("v", Some(v))?,
            cu_seqlens_q: t.read("cu_seqlens_q", &options.cu_seqlens_q)?,
            cu_seqlens_k: t.read("cu_seqlens_k", &options.cu_seqlens_k)?,
            seqused_q: t.read("seqused_q", &options.seqused_q)?,
            seqused_k: t.read("seqused_k", &options.seqused_k)?,
            leftpad_k: t.read("leftpad_k", &options.leftpad_k)?,
            mask: t.read("mask", &options.mask)?,
            alibi_slopes: t.read("alibi_slopes", &options.alibi_slopes)?,
            bias: t.read("bias", &options.bias)?,
            sinks: t.read("sinks", &options.sinks)?,
            block_table: t.read("block_table", &options.block_table)?,
            cache_batch_idx: t.read("cache_batch_idx", &options.cache_batch_idx)?,
            k_descale: t.read("k_descale", &options.k_descale)?,
            v_descale: t.read("v_descale", &options.v_descale)?,
            options,
        })
    }

    /// Builds the C struct. It points into `t` and into the options, which both must outlive it.
    fn raw(&self, t: &Tensors) -> sys::rocflash_problem {
        let o = self.options;
        let (dropout_p, dropout_seed, dropout_offset) = o.dropout.unwrap_or_default();
        sys::rocflash_problem {
            q: t.at(self.q),
            k: t.at(self.k),
            v: t.at(self.v),
            cu_seqlens_q: t.at(self.cu_seqlens_q),
            cu_seqlens_k: t.at(self.cu_seqlens_k),
            seqused_q: t.at(self.seqused_q),
            seqused_k: t.at(self.seqused_k),
            leftpad_k: t.at(self.leftpad_k),
            max_seqlen_q: o.max_seqlen_q,
            max_seqlen_k: o.max_seqlen_k,
            causal: i32::from(o.causal),
            window: o.window.as_ref().map_or(std::ptr::null(), |w| w.as_ptr()),
            attention_chunk: o.attention_chunk,
            mask: t.at(self.mask),
            softmax_scale: o.softmax_scale.as_ref().map_or(std::ptr::null(), |s| &raw const *s),
            softcap: o.softcap,
            alibi_slopes: t.at(self.alibi_slopes),
            bias: t.at(self.bias),
            sinks: t.at(self.sinks),
            dropout_p,
            dropout_seed,
            dropout_offset,
            deterministic: i32::from(o.deterministic),
            num_splits: o.num_splits,
            block_table: t.at(self.block_table),
            cache_batch_idx: t.at(self.cache_batch_idx),
            k_descale: t.at(self.k_descale),
            v_descale: t.at(self.v_descale),
            ..Default::default()
        }
    }
}

/// The outputs of forward: out, lse, s_dmask.
struct OutputSlots([Slot; 3]);

impl OutputSlots {
    fn new(t: &mut Tensors, outputs: &Outputs) -> Result<Self> {
        Ok(Self([
            t.add("out", Some(outputs.out.raw()))?,
            t.write("lse", &outputs.lse)?,
            t.write("s_dmask", &outputs.s_dmask)?,
        ]))
    }

    fn raw(&self, t: &Tensors) -> sys::rocflash_forward_outputs {
        let [out, lse, s_dmask] = self.0.map(|slot| t.at(slot));
        sys::rocflash_forward_outputs { out, lse, s_dmask, ..Default::default() }
    }
}

/// A call that consists of two closures, which own or borrow everything they point to.
struct PreparedCall<W, R> {
    workspace: W,
    run: R,
}

impl<W, R> Call for PreparedCall<W, R>
where
    W: Fn(&sys::rocflash_execution, &mut usize) -> sys::rocflash_status,
    R: Fn(&sys::rocflash_execution) -> sys::rocflash_status,
{
    unsafe fn workspace(
        &self,
        execution: &sys::rocflash_execution,
        bytes: &mut usize,
    ) -> sys::rocflash_status {
        (self.workspace)(execution, bytes)
    }

    unsafe fn run(&self, execution: &sys::rocflash_execution) -> sys::rocflash_status {
        (self.run)(execution)
    }
}

/// The structs of one operation besides the problem.
pub(crate) enum Operation {
    Forward(sys::rocflash_forward_outputs),
    Backward(sys::rocflash_backward_tensors),
    Decode(sys::rocflash_append, sys::rocflash_forward_outputs),
}

/// A call of forward, backward or decode. Its structs point into `tensors` and into the options.
pub(crate) struct Attention<'a> {
    tensors: Tensors,
    pub(crate) problem: sys::rocflash_problem,
    pub(crate) operation: Operation,
    borrowed: PhantomData<&'a ()>,
}

// SAFETY of the calls below: the views are borrowed until the end of the call. So the tensors that
// point into them, the structs that point to those tensors, and the elements are alive during the
// call. Outputs are exclusive borrows, so no other code accesses the written elements. The library
// keeps no pointer after the call.
impl Call for Attention<'_> {
    unsafe fn workspace(
        &self,
        execution: &sys::rocflash_execution,
        bytes: &mut usize,
    ) -> sys::rocflash_status {
        let p = &self.problem;
        // SAFETY: see above.
        unsafe {
            match &self.operation {
                Operation::Forward(o) => sys::rocflash_forward_workspace(p, o, execution, bytes),
                Operation::Backward(t) => sys::rocflash_backward_workspace(p, t, execution, bytes),
                Operation::Decode(a, o) => sys::rocflash_decode_workspace(p, a, o, execution, bytes),
            }
        }
    }

    unsafe fn run(&self, execution: &sys::rocflash_execution) -> sys::rocflash_status {
        let p = &self.problem;
        // SAFETY: see above.
        unsafe {
            match &self.operation {
                Operation::Forward(o) => sys::rocflash_forward(p, o, execution),
                Operation::Backward(t) => sys::rocflash_backward(p, t, execution),
                Operation::Decode(a, o) => sys::rocflash_decode(p, a, o, execution),
            }
        }
    }
}

impl<'a> Attention<'a> {
    pub(crate) fn forward(
        residence: Residence,
        [q, k, v]: [&'a View; 3],
        options: &'a Options,
        outputs: &'a Outputs,
    ) -> Result<Self> {
        let mut tensors = Tensors::new(residence);
        let problem = Problem::new(&mut tensors, [q.raw(), k.raw(), v.raw()], options)?;
        let outputs = OutputSlots::new(&mut tensors, outputs)?;
        let (problem, outputs) = (problem.raw(&tensors), outputs.raw(&tensors));
        Ok(Self { tensors, problem, operation: Operation::Forward(outputs), borrowed: PhantomData })
    }

    pub(crate) fn backward(
        residence: Residence,
        [q, k, v]: [&'a View; 3],
        options: &'a Options,
        gradients: &'a Gradients,
    ) -> Result<Self> {
        let mut t = Tensors::new(residence);
        let problem = Problem::new(&mut t, [q.raw(), k.raw(), v.raw()], options)?;
        let slots = [
            t.add("dout", Some(gradients.dout.raw()))?,
            t.add("out", Some(gradients.out.raw()))?,
            t.add("lse", Some(gradients.lse.raw()))?,
            t.write("dq", &gradients.dq)?,
            t.write("dk", &gradients.dk)?,
            t.write("dv", &gradients.dv)?,
            t.write("dsinks", &gradients.dsinks)?,
            t.write("dbias", &gradients.dbias)?,
            t.write("dalibi_slopes", &gradients.dalibi_slopes)?,
            t.write("delta", &gradients.delta)?,
            t.read("dlse", &gradients.dlse)?,
        ];
        let problem = problem.raw(&t);
        let [dout, out, lse, dq, dk, dv, dsinks, dbias, dalibi_slopes, delta, dlse] =
            slots.map(|slot| t.at(slot));
        let tensors = sys::rocflash_backward_tensors {
            dout,
            out,
            lse,
            dq,
            dk,
            dv,
            dsinks,
            dbias,
            dalibi_slopes,
            delta,
            dlse,
            ..Default::default()
        };
        let operation = Operation::Backward(tensors);
        Ok(Self { tensors: t, problem, operation, borrowed: PhantomData })
    }

    pub(crate) fn decode(
        residence: Residence,
        q: &'a View,
        [k, v]: [&'a ViewMut; 2],
        append: &'a Append,
        options: &'a Options,
        outputs: &'a Outputs,
    ) -> Result<Self> {
        let mut t = Tensors::new(residence);
        let problem = Problem::new(&mut t, [q.raw(), k.raw(), v.raw()], options)?;
        let outputs = OutputSlots::new(&mut t, outputs)?;
        // References into `append`: tensors point into the views.
        let (k_new, v_new) = append.new.as_ref().map(|(k, v)| (k.raw(), v.raw())).unzip();
        let (cos, sin) = append.rotary.as_ref().map(|(cos, sin)| (cos.raw(), sin.raw())).unzip();
        let slots = [
            t.add("k_new", k_new)?,
            t.add("v_new", v_new)?,
            t.read("cu_seqlens_k_new", &append.cu_seqlens_k_new)?,
            t.add("rotary_cos", cos)?,
            t.add("rotary_sin", sin)?,
            t.read("rotary_seqlens", &append.rotary_seqlens)?,
        ];
        let (problem, outputs) = (problem.raw(&t), outputs.raw(&t));
        let [k_new, v_new, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_seqlens] =
            slots.map(|slot| t.at(slot));
        let append = sys::rocflash_append {
            k_new,
            v_new,
            cu_seqlens_k_new,
            rotary_cos,
            rotary_sin,
            rotary_seqlens,
            rotary_interleaved: i32::from(append.rotary_interleaved),
            ..Default::default()
        };
        let operation = Operation::Decode(append, outputs);
        Ok(Self { tensors: t, problem, operation, borrowed: PhantomData })
    }

    /// The tensors by name, in the order in which they were added.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&'static str, &sys::DLTensor)> {
        self.tensors.names.iter().copied().zip(&self.tensors.list)
    }

    /// Creates a plan of the call.
    pub(crate) fn create_plan(
        &self,
        execution: &sys::rocflash_execution,
        plan: &mut *mut sys::rocflash_plan,
    ) -> sys::rocflash_status {
        let p = &self.problem;
        // SAFETY: see above; the library writes the handle.
        unsafe {
            match &self.operation {
                Operation::Forward(o) => sys::rocflash_plan_create_forward(p, o, execution, plan),
                Operation::Backward(t) => sys::rocflash_plan_create_backward(p, t, execution, plan),
                Operation::Decode(a, o) => sys::rocflash_plan_create_decode(p, a, o, execution, plan),
            }
        }
    }
}

pub(crate) fn combine<E: Execute + ?Sized>(
    executor: &mut E,
    out_partial: &View,
    lse_partial: &View,
    out: &mut ViewMut,
    lse: Option<&mut ViewMut>,
) -> Result<()> {
    let mut t = Tensors::new(executor.residence().0);
    let slots = [
        t.add("out_partial", Some(out_partial.raw()))?,
        t.add("lse_partial", Some(lse_partial.raw()))?,
        t.add("out", Some(out.raw()))?,
        t.add("lse", lse.map(|lse| lse.raw()))?,
    ];
    let [out_partial, lse_partial, out, lse] = slots.map(|slot| t.at(slot));
    executor.execute(&PreparedCall {
        workspace: |_: &sys::rocflash_execution, bytes: &mut usize| {
            *bytes = 0;
            sys::ROCFLASH_OK
        },
        // SAFETY: the views are borrowed until the end of the call, outputs exclusively.
        run: |e: &sys::rocflash_execution| unsafe {
            sys::rocflash_combine(out_partial, lse_partial, out, lse, e)
        },
    })
}

/// Queries the workspace size of a call in bytes.
pub(crate) fn workspace(call: &dyn Call, execution: &sys::rocflash_execution) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: only this file builds calls, with live tensors; a query only reads the structs.
    check(unsafe { call.workspace(execution, &mut bytes) })?;
    Ok(bytes)
}

/// Runs a call.
///
/// # Safety
/// The workspace of `execution` is valid and as large as stated, and its stream is on the tensors'
/// device.
pub(crate) unsafe fn run(call: &dyn Call, execution: &sys::rocflash_execution) -> Result<()> {
    // SAFETY: only this file builds calls, with live tensors; the caller guarantees the rest.
    check(unsafe { call.run(execution) })
}
