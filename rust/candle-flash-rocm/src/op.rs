//! The custom op: one `CustomOp3` for dense, varlen and paged attention, on the CPU or staged to a
//! GPU, with gradients.
use crate::check::{self, Dims};
use crate::prefix;
use crate::stage::{from_rocflash, Pending, Staged, Target};
use candle::{bail, CpuStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use rocflash::{Element, Gradients, Options, Outputs};
use std::sync::Mutex;

/// Varlen: the row where each sequence starts, the longest length, and the paged KV cache if there
/// is one.
#[derive(Clone, Debug)]
pub(crate) struct Varlen {
    pub(crate) seqlens_q: Tensor,
    pub(crate) seqlens_k: Tensor,
    pub(crate) max_seqlen_q: usize,
    pub(crate) max_seqlen_k: usize,
    pub(crate) pages: Option<Pages>,
}

/// A paged KV cache.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pub(crate) block_table: Tensor,
    pub(crate) mm_prefix_ranges: Option<Tensor>,
    pub(crate) page_block_size: usize,
}

/// The options of a call, independent of the device.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) softmax_scale: f32,
    pub(crate) alibi_slopes: Option<Tensor>,
    pub(crate) window_size_left: Option<usize>,
    pub(crate) window_size_right: Option<usize>,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: Option<Tensor>,
    pub(crate) varlen: Option<Varlen>,
}

impl Spec {
    pub(crate) fn name(&self) -> &'static str {
        if self.varlen.is_some() {
            "flash-attn-varlen"
        } else {
            "flash-attn"
        }
    }
}

/// The option tensors of a call, read from Candle.
struct Prepared {
    slopes: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    /// cu_seqlens and the longest length, each of q and k.
    cu_seqlens: Option<([Vec<i32>; 2], [usize; 2])>,
    table: Option<(Vec<i32>, [usize; 2])>,
    mask: Option<Vec<u8>>,
    window: [Option<usize>; 2],
}

impl Prepared {
    fn new(spec: &Spec, dims: &Dims, keys: usize) -> Result<Self> {
        let per_head = |name: &str, tensor: &Option<Tensor>| {
            tensor.as_ref().map(|t| check::per_head(name, t, dims.heads)).transpose()
        };
        let slopes = per_head("alibi_slopes", &spec.alibi_slopes)?;
        let sinks = per_head("sinks", &spec.sinks)?;
        let keys = spec.varlen.as_ref().map_or(keys, |varlen| varlen.max_seqlen_k);
        let mut window =
            [spec.window_size_left, spec.window_size_right].map(|size| check::window(size, keys));
        let (mut cu_seqlens, mut table, mut mask) = (None, None, None);
        if let Some(varlen) = &spec.varlen {
            let seqlens = check::seqlens(&varlen.seqlens_q, &varlen.seqlens_k)?;
            let batch = seqlens[0].len() - 1;
            let longest = [varlen.max_seqlen_q, varlen.max_seqlen_k];
            if let Some(pages) = &varlen.pages {
                let (rows, columns) = pages.block_table.dims2()?;
                table = Some((check::integers("block_table", &pages.block_table)?, [rows, columns]));
                if let Some(tensor) = &pages.mm_prefix_ranges {
                    let ranges = read_ranges(tensor, batch)?;
                    if window != [None, None] {
                        mask = Some(prefix::mask([&seqlens[0], &seqlens[1]], longest, window, &ranges)?);
                        window = [None, None];
                    }
                }
            }
            cu_seqlens = Some((seqlens, longest));
        }
        Ok(Self { slopes, sinks, cu_seqlens, table, mask, window })
    }

    fn stage(&self, target: &Target) -> Result<StagedOptions<'_>> {
        let mut staged = StagedOptions::default();
        if let Some(slopes) = &self.slopes {
            staged.slopes = Some(target.array(slopes, &[slopes.len()])?);
        }
        if let Some(sinks) = &self.sinks {
            staged.sinks = Some(target.array(sinks, &[sinks.len()])?);
        }
        if let Some(([q, k], _)) = &self.cu_seqlens {
            staged.cu_seqlens = Some([target.array(q, &[q.len()])?, target.array(k, &[k.len()])?]);
        }
        if let Some((table, shape)) = &self.table {
            staged.table = Some(target.array(table, shape)?);
        }
        if let (Some(mask), Some(([q, _], [max_q, max_k]))) = (&self.mask, &self.cu_seqlens) {
            staged.mask = Some(target.array(mask, &[q.len() - 1, 1, *max_q, *max_k])?);
        }
        Ok(staged)
    }

    fn options<'a>(&self, spec: &Spec, staged: &'a StagedOptions) -> Result<Options<'a>> {
        let mut options =
            Options::new().softmax_scale(spec.softmax_scale).softcap(spec.softcap.unwrap_or(0.0));
        if self.window != [None, None] {
            options = options.window(self.window[0], self.window[1]);
        }
        if let Some(slopes) = &staged.slopes {
            options = options.alibi_slopes(slopes.view()?);
        }
        if let Some(sinks) = &staged.sinks {
            options = options.sinks(sinks.view()?);
        }
        if let (Some([q, k]), Some((_, [max_q, max_k]))) = (&staged.cu_seqlens, &self.cu_seqlens) {
            options = options.packed(q.view()?, k.view()?).max_seqlens(*max_q, *max_k);
        }
        if let Some(table) = &staged.table {
            options = options.block_table(table.view()?);
        }
        if let Some(mask) = &staged.mask {
            options = options.mask(mask.view()?);
        }
        Ok(options)
    }
}

/// Calls `with` with the options of a call, staged to the target.
pub(crate) fn with_options<R>(
    spec: &Spec,
    dims: &Dims,
    keys: usize,
    target: &Target,
    with: impl FnOnce(&Options) -> Result<R>,
) -> Result<R> {
    let prepared = Prepared::new(spec, dims, keys)?;
    let staged = prepared.stage(target)?;
    with(&prepared.options(spec, &staged)?)
}

fn read_ranges(tensor: &Tensor, batch: usize) -> Result<Vec<i32>> {
    if tensor.dtype() != DType::I32 {
        bail!("mm_prefix_ranges must be i32, got {:?}", tensor.dtype())
    }
    let (rows, _, two) = tensor.dims3()?;
    if rows != batch || two != 2 {
        bail!("mm_prefix_ranges shape must be ({batch}, max_ranges, 2), got {:?}", tensor.shape())
    }
    check::integers("mm_prefix_ranges", tensor)
}

/// [`Prepared`], staged to the target.
#[derive(Default)]
struct StagedOptions<'a> {
    slopes: Option<Staged<'a>>,
    sinks: Option<Staged<'a>>,
    cu_seqlens: Option<[Staged<'a>; 2]>,
    table: Option<Staged<'a>>,
    mask: Option<Staged<'a>>,
}

/// The output of forward that backward needs, kept as long as Candle's graph.
#[derive(Debug)]
enum Saved {
    Nothing,
    Lse(Vec<f32>),
    /// The op was applied more than once, so backward cannot tell which lse belongs to it.
    Ambiguous,
}

/// Attention as a custom op.
#[derive(Debug)]
pub(crate) struct Attention {
    spec: Spec,
    target: Target,
    /// Whether an input tracks gradients.
    tracked: bool,
    saved: Mutex<Saved>,
}

impl Attention {
    pub(crate) fn new(spec: Spec, target: Target, tracked: bool) -> Self {
        Self { spec, target, tracked, saved: Mutex::new(Saved::Nothing) }
    }

    pub(crate) fn apply(spec: Spec, target: Target, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
            if !tensor.device().is_cpu() {
                bail!("{name} is on {:?}; candle-flash-rocm supports cpu tensors", tensor.device().location())
            }
        }
        if spec.sinks.as_ref().is_some_and(Tensor::track_op) {
            bail!("sinks is a variable; its gradient is not supported, detach it")
        }
        let tracked = q.track_op() || k.track_op() || v.track_op();
        q.apply_op3(k, v, Self::new(spec, target, tracked))
    }

    pub(crate) fn dims(spec: &Spec, q: &Layout, k: &Layout, v: &Layout) -> Result<Dims> {
        match &spec.varlen {
            None => check::dense(q, k, v),
            Some(varlen) => check::varlen(q, k, v, varlen.pages.as_ref().map(|pages| pages.page_block_size)),
        }
    }

    /// Returns out, and lse if requested.
    fn forward<T: Element>(
        &self,
        data: [&[T]; 3],
        layouts: [&Layout; 3],
        dims: &Dims,
        want_lse: bool,
    ) -> Result<(Vec<T>, Vec<f32>)> {
        let [q, k, v] = stage_all(&self.target, data, layouts)?;
        let mut out = Pending::<T>::new(&self.target, &dims.out)?;
        let mut lse = want_lse.then(|| Pending::<f32>::new(&self.target, &dims.lse)).transpose()?;
        let mut outputs = Outputs::new(out.view_mut()?);
        if let Some(lse) = &mut lse {
            outputs = outputs.lse(lse.view_mut()?);
        }
        let mut executor = self.target.executor();
        with_options(&self.spec, dims, layouts[1].dims()[1], &self.target, |options| {
            executor.forward(&q.view()?, &k.view()?, &v.view()?, options, outputs).map_err(from_rocflash)
        })?;
        let lse = lse.map(Pending::data).transpose()?;
        Ok((out.data()?, lse.unwrap_or_default()))
    }

    fn cpu_fwd_t<T: Element + WithDType>(
        &self,
        storages: [&CpuStorage; 3],
        layouts: [&Layout; 3],
    ) -> Result<(CpuStorage, Shape)> {
        let dims = Self::dims(&self.spec, layouts[0], layouts[1], layouts[2])?;
        let data = slices::<T>(storages)?;
        let (out, lse) = self.forward(data, layouts, &dims, self.tracked)?;
        if self.tracked {
            let mut saved = self.saved.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *saved = if matches!(*saved, Saved::Nothing) { Saved::Lse(lse) } else { Saved::Ambiguous };
        }
        Ok((T::to_cpu_storage_owned(out), Shape::from(dims.out)))
    }

    /// The gradients of the inputs that track them.
    fn bwd_t<T: Element + WithDType>(
        &self,
        inputs: [&Tensor; 3],
        res: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let guards = inputs.map(|tensor| tensor.storage_and_layout());
        let [q, k, v] = &guards;
        let layouts = [q.1, k.1, v.1];
        let data = slices::<T>([cpu(&q.0)?, cpu(&k.0)?, cpu(&v.0)?])?;
        let dims = Self::dims(&self.spec, layouts[0], layouts[1], layouts[2])?;
        // Forward wrote a contiguous output; its gradient may have any strides, also broadcast.
        let grad = if grad.stride().last() == Some(&1) { grad.clone() } else { grad.contiguous()? };
        let (res_guard, grad_guard) = (res.storage_and_layout(), grad.storage_and_layout());
        let out = self.target.tensor(T::cpu_storage_as_slice(cpu(&res_guard.0)?)?, res_guard.1)?;
        let dout = self.target.tensor(T::cpu_storage_as_slice(cpu(&grad_guard.0)?)?, grad_guard.1)?;

        let saved = self.saved.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let recomputed;
        let lse = match &*saved {
            Saved::Lse(lse) => lse,
            _ => {
                recomputed = self.forward(data, layouts, &dims, true)?.1;
                &recomputed
            }
        };
        let lse = self.target.array(lse, &dims.lse)?;
        let [q, k, v] = stage_all(&self.target, data, layouts)?;
        let mut results = [None, None, None];
        for (slot, tensor) in results.iter_mut().zip(inputs) {
            if tensor.track_op() {
                *slot = Some(Pending::<T>::new(&self.target, tensor.dims())?);
            }
        }
        let [dq, dk, dv] = &mut results;
        let mut gradients = Gradients::new(dout.view()?, out.view()?, lse.view()?);
        if let Some(dq) = dq {
            gradients = gradients.dq(dq.view_mut()?);
        }
        if let Some(dk) = dk {
            gradients = gradients.dk(dk.view_mut()?);
        }
        if let Some(dv) = dv {
            gradients = gradients.dv(dv.view_mut()?);
        }
        let mut executor = self.target.executor();
        with_options(&self.spec, &dims, layouts[1].dims()[1], &self.target, |options| {
            executor.backward(&q.view()?, &k.view()?, &v.view()?, options, gradients).map_err(from_rocflash)
        })?;
        let [dq, dk, dv] = results.map(|results| results.map(Pending::tensor).transpose());
        Ok([dq?, dk?, dv?])
    }
}

pub(crate) fn slices<T: WithDType>(storages: [&CpuStorage; 3]) -> Result<[&[T]; 3]> {
    let [q, k, v] = storages;
    Ok([T::cpu_storage_as_slice(q)?, T::cpu_storage_as_slice(k)?, T::cpu_storage_as_slice(v)?])
}

pub(crate) fn stage_all<'a, T: Element>(
    target: &Target,
    [q, k, v]: [&'a [T]; 3],
    layouts: [&Layout; 3],
) -> Result<[Staged<'a>; 3]> {
    Ok([target.tensor(q, layouts[0])?, target.tensor(k, layouts[1])?, target.tensor(v, layouts[2])?])
}

fn cpu(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => bail!("candle-flash-rocm supports cpu tensors"),
    }
}

pub(crate) fn unsupported(dtype: DType) -> candle::Error {
    candle::Error::msg(format!("flash-attn is only supported for f32/f16/bf16 ({dtype:?})"))
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        self.spec.name()
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (storages, layouts) = ([q, k, v], [q_l, k_l, v_l]);
        match q {
            CpuStorage::F32(_) => self.cpu_fwd_t::<f32>(storages, layouts),
            CpuStorage::F16(_) => self.cpu_fwd_t::<f16>(storages, layouts),
            CpuStorage::BF16(_) => self.cpu_fwd_t::<bf16>(storages, layouts),
            other => Err(unsupported(candle::backend::BackendStorage::dtype(other))),
        }
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let inputs = [q, k, v];
        let [dq, dk, dv] = match q.dtype() {
            DType::F32 => self.bwd_t::<f32>(inputs, res, grad_res)?,
            DType::F16 => self.bwd_t::<f16>(inputs, res, grad_res)?,
            DType::BF16 => self.bwd_t::<bf16>(inputs, res, grad_res)?,
            dtype => return Err(unsupported(dtype)),
        };
        Ok((dq, dk, dv))
    }
}
