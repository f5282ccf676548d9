//! The functions of candle-flash-attn, with the same names and arguments. Each is declared once and
//! generated as a free function, for tensors in GPU memory ([`on_device`]), as a method of
//! [`RocmAttention`] and, if dense, of [`KvCache`].
use crate::kv_cache::{DeviceCache, KvCache};
use crate::op::{Attention, Pages, Spec, Varlen};
use crate::rocm::{self, RocmAttention};
use crate::rocm_tensor::RocmTensor;
use candle::{Result, Tensor};

/// A causal mask is a window that ends at the query position.
fn causal_window(causal: bool) -> Option<usize> {
    causal.then_some(0)
}

/// Declares free functions, the same for tensors on a GPU, and methods of [`RocmAttention`].
macro_rules! functions {
    (by $k:ident in $module:ident; $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $spec:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// A shape, dtype or option is invalid or not supported; the message names it.
            #[allow(clippy::too_many_arguments)]
            pub fn $name(q: &Tensor, $k: &Tensor, v: &Tensor, $($argument: $type),*) -> Result<Tensor> {
                Attention::apply($spec, rocm::default_target(), q, $k, v)
            }
        )*
        mod $module {
            use super::*;
            $(
                #[doc = concat!(
                    "[`", stringify!($name), "`](crate::", stringify!($name), ") for tensors in GPU memory, on their stream."
                )]
                ///
                /// # Errors
                /// A shape, dtype or option is invalid or not supported; the message names it.
                #[allow(clippy::too_many_arguments)]
                pub fn $name(
                    q: &RocmTensor, $k: &RocmTensor, v: &RocmTensor, $($argument: $type),*
                ) -> Result<RocmTensor> {
                    RocmTensor::attend($spec, [q, $k, v])
                }
            )*
        }
        impl RocmAttention {
            $(
                #[doc = concat!("[`", stringify!($name), "`](crate::", stringify!($name), ") on this GPU.")]
                ///
                /// # Errors
                /// A shape, dtype or option is invalid or not supported; the message names it.
                #[allow(clippy::too_many_arguments)]
                pub fn $name(&self, q: &Tensor, $k: &Tensor, v: &Tensor, $($argument: $type),*) -> Result<Tensor> {
                    Attention::apply($spec, self.target(), q, $k, v)
                }
            )*
        }
    };
}

/// As `functions!`, plus methods of [`KvCache`].
macro_rules! functions_with_cache {
    (by $k:ident in $module:ident; $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $spec:block)*) => {
        functions! { by $k in $module; $($(#[$doc])* $name($($argument: $type),*) $spec)* }
        impl DeviceCache<'_> {
            $(
                #[doc = concat!(
                    "As [`KvCache::", stringify!($name), "`], for tensors on the cache's stream."
                )]
                ///
                /// # Errors
                /// A shape, dtype or option is invalid or not supported; the message names it.
                #[allow(clippy::too_many_arguments)]
                pub fn $name(
                    &mut self, q: &RocmTensor, k: &RocmTensor, v: &RocmTensor, $($argument: $type),*
                ) -> Result<RocmTensor> {
                    self.attend($spec, q, k, v)
                }
            )*
        }
        impl KvCache {
            $(
                #[doc = concat!(
                    "Appends `k` and `v`, then runs [`", stringify!($name), "`](crate::", stringify!($name),
                    ") over all cached keys."
                )]
                ///
                /// # Errors
                /// A shape, dtype or option is invalid or not supported; the message names it.
                #[allow(clippy::too_many_arguments)]
                pub fn $name(&mut self, q: &Tensor, k: &Tensor, v: &Tensor, $($argument: $type),*) -> Result<Tensor> {
                    self.attend($spec, q, k, v)
                }
            )*
        }
    };
}

fn dense(
    softmax_scale: f32,
    alibi_slopes: Option<&Tensor>,
    [window_size_left, window_size_right]: [Option<usize>; 2],
    softcap: Option<f32>,
) -> Spec {
    let alibi_slopes = alibi_slopes.cloned();
    Spec {
        softmax_scale,
        alibi_slopes,
        window_size_left,
        window_size_right,
        softcap,
        sinks: None,
        varlen: None,
    }
}

fn with_sinks(sinks: &Tensor, spec: Spec) -> Spec {
    Spec { sinks: Some(sinks.clone()), ..spec }
}

/// The paged KV cache of a block table; the page size is the second dimension of k.
fn pages(k: &impl HasDims, block_table: &Option<Tensor>) -> Option<Pages> {
    block_table.as_ref().map(|table| Pages {
        block_table: table.clone(),
        mm_prefix_ranges: None,
        page_block_size: k.sizes().get(1).copied().unwrap_or(0),
    })
}

/// Candle's tensors and tensors in GPU memory.
trait HasDims {
    fn sizes(&self) -> &[usize];
}
impl HasDims for Tensor {
    fn sizes(&self) -> &[usize] {
        self.dims()
    }
}
impl HasDims for RocmTensor {
    fn sizes(&self) -> &[usize] {
        self.dims()
    }
}

fn varlen(seqlens: [&Tensor; 2], longest: [usize; 2], pages: Option<Pages>, spec: Spec) -> Spec {
    let [seqlens_q, seqlens_k] = seqlens.map(Tensor::clone);
    let [max_seqlen_q, max_seqlen_k] = longest;
    Spec { varlen: Some(Varlen { seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k, pages }), ..spec }
}

functions_with_cache! { by k in dense_on_device;
    /// Attention: softmax(q kᵀ · `softmax_scale`) v.
    ///
    /// q is (batch, seqlen_q, heads, head dim), k and v are (batch, seqlen_k, kv heads, head dim).
    /// heads is a multiple of kv heads. v may have another head dim. Dtypes are f32, f16 and bf16,
    /// head dims at most 576. Strides are arbitrary, but the last dimension is contiguous. The
    /// causal mask is bottom-right aligned. Returns (batch, seqlen_q, heads, head dim of v), with
    /// gradients for q, k and v.
    flash_attn(softmax_scale: f32, causal: bool) {
        dense(softmax_scale, None, [None, causal_window(causal)], None)
    }

    /// [`flash_attn`] with a sliding window: at most this many keys before and after the query
    /// position. `None` and numbers above seqlen_k are unbounded. (`None`, `Some(0)`) is causal.
    flash_attn_windowed(
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        dense(softmax_scale, None, [window_size_left, window_size_right], None)
    }

    /// [`flash_attn`] with ALiBi: subtracts slope · distance from each score. `alibi_slopes` is f32
    /// (heads).
    flash_attn_alibi(alibi_slopes: &Tensor, softmax_scale: f32, causal: bool) {
        dense(softmax_scale, Some(alibi_slopes), [None, causal_window(causal)], None)
    }

    /// [`flash_attn_windowed`] with ALiBi.
    flash_attn_alibi_windowed(
        alibi_slopes: &Tensor, softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        dense(softmax_scale, Some(alibi_slopes), [window_size_left, window_size_right], None)
    }

    /// [`flash_attn_windowed`] with softcap and optional ALiBi. Softcap replaces a scaled score s
    /// by softcap · tanh(s / softcap) before ALiBi; 0 is off.
    flash_attn_alibi_windowed_softcap(
        alibi_slopes: Option<&Tensor>, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, softcap: f32
    ) {
        dense(softmax_scale, alibi_slopes, [window_size_left, window_size_right], Some(softcap))
    }

    /// [`flash_attn`] with softcap, as in [`flash_attn_alibi_windowed_softcap`].
    flash_attn_softcap(softmax_scale: f32, softcap: Option<f32>, causal: bool) {
        dense(softmax_scale, None, [None, causal_window(causal)], softcap)
    }

    /// [`flash_attn_windowed`] with sinks: f32 (heads), one extra logit per head that adds to the
    /// softmax's sum but has no value.
    flash_attn_windowed_sinks(
        sinks: &Tensor, softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        with_sinks(sinks, dense(softmax_scale, None, [window_size_left, window_size_right], None))
    }
}

functions! { by k in varlen_on_device;
    /// Varlen attention: sequences of different lengths, concatenated without padding.
    ///
    /// q is (total_q, heads, head dim), k and v are (total_k, kv heads, head dim). `seqlens_q` and
    /// `seqlens_k`, u32 or i32 (batch + 1), have the row where each sequence starts: 0, length 1,
    /// length 1 + length 2 and so on. No sequence may be longer than `max_seqlen_q` and
    /// `max_seqlen_k`. Everything else is as in [`flash_attn`]. Rows outside all sequences become
    /// zero.
    flash_attn_varlen(
        seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32, causal: bool
    ) {
        let spec = dense(softmax_scale, None, [None, causal_window(causal)], None);
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen`] with a window, as in [`flash_attn_windowed`]; a number above
    /// `max_seqlen_k` is unbounded.
    flash_attn_varlen_windowed(
        seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32,
        window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        let spec = dense(softmax_scale, None, [window_size_left, window_size_right], None);
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen_windowed`] with a paged KV cache.
    ///
    /// k and v are (pages, page_block_size, kv heads, head dim), with any page size. `block_table`,
    /// u32 or i32 (batch, pages of the longest), has the pages of each sequence in order.
    /// `mm_prefix_ranges`, i32 (batch, ranges, 2), has ranges [start, end) of positions that attend
    /// to each other regardless of the window; an empty range is ignored. Gradients are not
    /// supported.
    flash_attn_varlen_paged_windowed(
        seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: &Tensor, mm_prefix_ranges: Option<&Tensor>,
        max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, page_block_size: usize, softcap: Option<f32>
    ) {
        let spec = dense(softmax_scale, None, [window_size_left, window_size_right], softcap);
        let (block_table, mm_prefix_ranges) = (block_table.clone(), mm_prefix_ranges.cloned());
        let pages = Pages { block_table, mm_prefix_ranges, page_block_size };
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], Some(pages), spec)
    }

    /// [`flash_attn_varlen`] with ALiBi: `alibi_slopes` is f32 (heads).
    flash_attn_varlen_alibi(
        alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, causal: bool
    ) {
        let spec = dense(softmax_scale, Some(alibi_slopes), [None, causal_window(causal)], None);
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen_windowed`] with ALiBi.
    flash_attn_varlen_alibi_windowed(
        alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        let spec = dense(softmax_scale, Some(alibi_slopes), [window_size_left, window_size_right], None);
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen_windowed`] with softcap and optional ALiBi; softcap 0 is off.
    flash_attn_varlen_alibi_windowed_softcap(
        alibi_slopes: Option<&Tensor>, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>, softcap: f32
    ) {
        let spec = dense(softmax_scale, alibi_slopes, [window_size_left, window_size_right], Some(softcap));
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen_windowed`] with sinks, as in [`flash_attn_windowed_sinks`].
    flash_attn_varlen_windowed_sinks(
        sinks: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        let spec = with_sinks(sinks, dense(softmax_scale, None, [window_size_left, window_size_right], None));
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }
}

functions! { by k in paged_on_device;
    /// [`flash_attn_varlen`] with softcap and, if `block_table` is given, a paged KV cache: the
    /// signature of candle-vllm. The page size is the second dimension of k.
    flash_attn_varlen_softcap(
        seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: &Option<Tensor>, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, softcap: Option<f32>, causal: bool
    ) {
        let spec = dense(softmax_scale, None, [None, causal_window(causal)], softcap);
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], pages(k, block_table), spec)
    }

    /// [`flash_attn_varlen_softcap`] with a window.
    flash_attn_varlen_windowed_softcap(
        seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: &Option<Tensor>, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, softcap: Option<f32>, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        let spec = dense(softmax_scale, None, [window_size_left, window_size_right], softcap);
        varlen([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], pages(k, block_table), spec)
    }
}

/// The functions of this crate for tensors in GPU memory.
///
/// A result refers to its inputs: [`RocmTensor::gradients`].
pub mod on_device {
    pub use super::dense_on_device::*;
    pub use super::paged_on_device::*;
    pub use super::varlen_on_device::*;
}

/// The functions of candle-flash-attn-v3, whose last argument selects GQA packing: the query heads
/// of a KV head in one tile. This library selects that itself, and the argument has no effect on
/// results.
pub mod v3 {
    use super::*;

    macro_rules! with_packing {
        ($($name:ident($($argument:ident: $type:ty),*))*) => {
            $(
                #[doc = concat!("[`", stringify!($name), "`](crate::", stringify!($name), "), with the signature of candle-flash-attn-v3.")]
                ///
                /// # Errors
                /// A shape, dtype or option is invalid or not supported; the message names it.
                #[allow(clippy::too_many_arguments)]
                pub fn $name(
                    q: &Tensor, k: &Tensor, v: &Tensor, $($argument: $type,)* _use_gqa_packing: bool
                ) -> Result<Tensor> {
                    super::$name(q, k, v, $($argument),*)
                }
            )*
        };
    }
    with_packing! {
        flash_attn(softmax_scale: f32, causal: bool)
        flash_attn_windowed(softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>)
        flash_attn_alibi(alibi_slopes: &Tensor, softmax_scale: f32, causal: bool)
        flash_attn_alibi_windowed(
            alibi_slopes: &Tensor, softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
        )
        flash_attn_varlen(
            seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32,
            causal: bool
        )
        flash_attn_varlen_windowed(
            seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32,
            window_size_left: Option<usize>, window_size_right: Option<usize>
        )
        flash_attn_varlen_alibi(
            alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
            softmax_scale: f32, causal: bool
        )
        flash_attn_varlen_alibi_windowed(
            alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
            softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
        )
    }
}

/// Dense attention as a custom op: `q.apply_op3(&k, &v, FlashAttn { .. })`. The functions of this
/// crate apply such an op.
#[derive(Clone, Debug)]
pub struct FlashAttn {
    /// The scale of q·kᵀ.
    pub softmax_scale: f32,
    /// f32 (heads).
    pub alibi_slopes: Option<Tensor>,
    /// The window before the query position; `None` is unbounded.
    pub window_size_left: Option<usize>,
    /// The window after the query position; `None` is unbounded.
    pub window_size_right: Option<usize>,
    /// Scores s become cap · tanh(s / cap).
    pub softcap: Option<f32>,
}

impl FlashAttn {
    pub(crate) fn spec(&self) -> Spec {
        let windows = [self.window_size_left, self.window_size_right];
        dense(self.softmax_scale, self.alibi_slopes.as_ref(), windows, self.softcap)
    }

    /// The op may be applied many times, so forward saves nothing for backward.
    fn attention(&self) -> Attention {
        Attention::new(self.spec(), rocm::default_target(), false)
    }
}

impl candle::CustomOp3 for FlashAttn {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(
        &self,
        q: &candle::CpuStorage,
        q_l: &candle::Layout,
        k: &candle::CpuStorage,
        k_l: &candle::Layout,
        v: &candle::CpuStorage,
        v_l: &candle::Layout,
    ) -> Result<(candle::CpuStorage, candle::Shape)> {
        self.attention().cpu_fwd(q, q_l, k, k_l, v, v_l)
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.attention().bwd(q, k, v, res, grad_res)
    }
}
