//! From views and options to the C ABI: builds the structs, asks for the workspace, runs the call. The only
//! place where attention crosses the border.
use crate::error::{check, Error, Result};
use crate::options::{Append, Gradients, Options, Outputs};
use crate::view::{RawView, Residence, View, ViewMut};
use rocflash_sys as sys;

/// A call as whoever executes it sees it: it can be asked for its workspace, and run.
pub trait Call {
    /// # Safety
    /// Only [`Calls`] makes one, whose structs point to live tensors.
    unsafe fn workspace(
        &self,
        execution: &sys::rocflash_execution,
        bytes: &mut usize,
    ) -> sys::rocflash_status;
    /// # Safety
    /// As above, and the execution's stream and workspace are valid where the tensors are.
    unsafe fn run(&self, execution: &sys::rocflash_execution) -> sys::rocflash_status;
}

/// Executes calls on tensors of one residence. Sealed by living in a private module.
pub trait Execute {
    /// Where its tensors must lie.
    #[doc(hidden)]
    fn residence(&self) -> ResidenceOf;
    /// Asks for the workspace, which checks all that running the call checks, and writes nothing.
    #[doc(hidden)]
    fn query(&self, call: &dyn Call) -> Result<usize>;
    /// Asks, provides workspace and stream, runs.
    #[doc(hidden)]
    fn execute(&mut self, call: &dyn Call) -> Result<()>;
}

/// A [`Residence`] under a name that a public trait may use.
pub struct ResidenceOf(pub(crate) Residence);

/// The tensors of one call, in an order; their addresses are taken when all of them are there.
struct Tensors {
    residence: Residence,
    list: Vec<sys::DLTensor>,
}

/// A tensor's number, or none.
#[derive(Clone, Copy)]
struct Slot(Option<usize>);

impl Tensors {
    fn new(residence: Residence) -> Self {
        Self { residence, list: Vec::with_capacity(24) }
    }

    /// The view must outlive the call: what is kept here points into it.
    fn add(&mut self, name: &str, view: Option<&RawView>) -> Result<Slot> {
        let Some(view) = view else { return Ok(Slot(None)) };
        if view.residence() != self.residence {
            return Err(Error::invalid(format!(
                "{name}: lies in {}; this call runs on {}",
                view.residence(),
                self.residence
            )));
        }
        self.list.push(view.dlpack());
        Ok(Slot(Some(self.list.len() - 1)))
    }

    fn read(&mut self, name: &str, view: &Option<View>) -> Result<Slot> {
        self.add(name, view.as_ref().map(View::raw))
    }

    fn write(&mut self, name: &str, view: &Option<ViewMut>) -> Result<Slot> {
        self.add(name, view.as_ref().map(ViewMut::raw))
    }

    fn at(&self, slot: Slot) -> *const sys::DLTensor {
        slot.0.map_or(std::ptr::null(), |n| &raw const self.list[n])
    }
}

/// q, k, v and options as numbers of tensors, from which the struct is made when all are known.
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
            options,
        })
    }

    /// Points into `t` and into the options, which both must outlive it.
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
            ..Default::default()
        }
    }
}

/// The three outputs.
struct Out([Slot; 3]);

impl Out {
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

/// A call made of its two functions; they own or borrow all that they point to.
struct Calls<W, R> {
    workspace: W,
    run: R,
}

impl<W, R> Call for Calls<W, R>
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

// In the functions below: the views are borrowed until the end, so the tensors that point into them, the structs
// that point to those tensors, and the memory behind the addresses are all alive during the call. Outputs are
// exclusive borrows, so nobody else looks at what is written. The library keeps nothing.

pub(crate) fn forward<E: Execute + ?Sized>(
    executor: &mut E,
    [q, k, v]: [&View; 3],
    options: &Options,
    outputs: &mut Outputs,
) -> Result<()> {
    let mut t = Tensors::new(executor.residence().0);
    let problem = Problem::new(&mut t, [q.raw(), k.raw(), v.raw()], options)?;
    let out = Out::new(&mut t, outputs)?;
    let (problem, out) = (problem.raw(&t), out.raw(&t));
    executor.execute(&Calls {
        // SAFETY: see above.
        workspace: |e: &sys::rocflash_execution, bytes: &mut usize| unsafe {
            sys::rocflash_forward_workspace(&problem, &out, e, bytes)
        },
        // SAFETY: see above.
        run: |e: &sys::rocflash_execution| unsafe { sys::rocflash_forward(&problem, &out, e) },
    })
}

pub(crate) fn backward<E: Execute + ?Sized>(
    executor: &mut E,
    [q, k, v]: [&View; 3],
    options: &Options,
    gradients: &mut Gradients,
) -> Result<()> {
    let mut t = Tensors::new(executor.residence().0);
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
    ];
    let problem = problem.raw(&t);
    let [dout, out, lse, dq, dk, dv, dsinks, dbias, dalibi_slopes] = slots.map(|slot| t.at(slot));
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
        ..Default::default()
    };
    executor.execute(&Calls {
        // SAFETY: see above.
        workspace: |e: &sys::rocflash_execution, bytes: &mut usize| unsafe {
            sys::rocflash_backward_workspace(&problem, &tensors, e, bytes)
        },
        // SAFETY: see above.
        run: |e: &sys::rocflash_execution| unsafe { sys::rocflash_backward(&problem, &tensors, e) },
    })
}

/// Makes the call of decode and hands it to `then`, which runs it or only asks.
pub(crate) fn decode<E: Execute + ?Sized>(
    executor: &mut E,
    q: &View,
    [k, v]: [ViewMut; 2],
    append: &Append,
    options: &Options,
    outputs: &mut Outputs,
    then: impl FnOnce(&mut E, &dyn Call) -> Result<()>,
) -> Result<()> {
    let mut t = Tensors::new(executor.residence().0);
    let problem = Problem::new(&mut t, [q.raw(), k.raw(), v.raw()], options)?;
    let out = Out::new(&mut t, outputs)?;
    let (k_new, v_new) = append.new.unzip();
    let (cos, sin) = append.rotary.unzip();
    let slots = [
        t.read("k_new", &k_new)?,
        t.read("v_new", &v_new)?,
        t.read("cu_seqlens_k_new", &append.cu_seqlens_k_new)?,
        t.read("rotary_cos", &cos)?,
        t.read("rotary_sin", &sin)?,
        t.read("rotary_seqlens", &append.rotary_seqlens)?,
    ];
    let (problem, out) = (problem.raw(&t), out.raw(&t));
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
    let call = Calls {
        // SAFETY: see above.
        workspace: |e: &sys::rocflash_execution, bytes: &mut usize| unsafe {
            sys::rocflash_decode_workspace(&problem, &append, &out, e, bytes)
        },
        // SAFETY: see above.
        run: |e: &sys::rocflash_execution| unsafe { sys::rocflash_decode(&problem, &append, &out, e) },
    };
    then(executor, &call)
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
    executor.execute(&Calls {
        workspace: |_: &sys::rocflash_execution, bytes: &mut usize| {
            *bytes = 0;
            sys::ROCFLASH_OK
        },
        // SAFETY: see above.
        run: |e: &sys::rocflash_execution| unsafe {
            sys::rocflash_combine(out_partial, lse_partial, out, lse, e)
        },
    })
}

/// Asks a call for its workspace.
pub(crate) fn workspace(call: &dyn Call, execution: &sys::rocflash_execution) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: calls are made in this file only, with live tensors; a query reads no more than they are.
    check(unsafe { call.workspace(execution, &mut bytes) })?;
    Ok(bytes)
}

/// Runs a call.
///
/// # Safety
/// The execution's workspace must be valid and as large as it says, and its stream one of the tensors' device.
pub(crate) unsafe fn run(call: &dyn Call, execution: &sys::rocflash_execution) -> Result<()> {
    // SAFETY: calls are made in this file only, with live tensors; the rest is the caller's promise.
    check(unsafe { call.run(execution) })
}
