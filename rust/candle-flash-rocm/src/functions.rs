//! The functions of candle-flash-attn, by the same names and with the same arguments: free ones, the same for tensors that stay
//! on a GPU ([`on_device`]), and as methods of [`RocmAttention`] and, as far as they fit, of [`KvCache`]. Declared once, below.
use crate::kv_cache::{DeviceCache, KvCache};
use crate::op::{Attention, Packed, Pages, Spec};
use crate::rocm::{self, RocmAttention};
use crate::rocm_tensor::RocmTensor;
use candle::{Result, Tensor};

/// Causal is a window that ends at the query's own place.
fn causal_window(causal: bool) -> Option<usize> {
    causal.then_some(0)
}

/// Declares functions of this crate, the same for tensors on a GPU, and as methods of [`RocmAttention`].
macro_rules! functions {
    (by $k:ident in $module:ident; $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $spec:block)*) => {
        $(
            $(#[$doc])*
            #[allow(clippy::too_many_arguments)]
            pub fn $name(q: &Tensor, $k: &Tensor, v: &Tensor, $($argument: $type),*) -> Result<Tensor> {
                Attention::apply($spec, rocm::default_target(), q, $k, v)
            }
        )*
        mod $module {
            use super::*;
            $(
                #[doc = concat!(
                    "[`", stringify!($name), "`](crate::", stringify!($name), ") where the tensors are, on their stream."
                )]
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
                #[allow(clippy::too_many_arguments)]
                pub fn $name(&self, q: &Tensor, $k: &Tensor, v: &Tensor, $($argument: $type),*) -> Result<Tensor> {
                    Attention::apply($spec, self.target(), q, $k, v)
                }
            )*
        }
    };
}

/// The same, and methods of [`KvCache`] too.
macro_rules! functions_with_cache {
    (by $k:ident in $module:ident; $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $spec:block)*) => {
        functions! { by $k in $module; $($(#[$doc])* $name($($argument: $type),*) $spec)* }
        impl DeviceCache<'_> {
            $(
                #[doc = concat!(
                    "As [`KvCache::", stringify!($name), "`], of tensors that are on the cache's stream already."
                )]
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
                    "Appends `k` and `v`, and attends as [`", stringify!($name), "`](crate::", stringify!($name),
                    ") does over all keys that are there then."
                )]
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
        packed: None,
    }
}

fn with_sinks(sinks: &Tensor, spec: Spec) -> Spec {
    Spec { sinks: Some(sinks.clone()), ..spec }
}

/// Keys and values in pages as long as the second dimension of k says, if there is a table.
fn pages(k: &impl HasDims, block_table: &Option<Tensor>) -> Option<Pages> {
    block_table.as_ref().map(|table| Pages {
        block_table: table.clone(),
        mm_prefix_ranges: None,
        page_block_size: k.sizes().get(1).copied().unwrap_or(0),
    })
}

/// Tensors of either kind.
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

fn packed(seqlens: [&Tensor; 2], longest: [usize; 2], pages: Option<Pages>, spec: Spec) -> Spec {
    let [seqlens_q, seqlens_k] = seqlens.map(Tensor::clone);
    let [max_seqlen_q, max_seqlen_k] = longest;
    Spec { packed: Some(Packed { seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k, pages }), ..spec }
}

functions_with_cache! { by k in dense_on_device;
    /// Attention: softmax(q kᵀ · `softmax_scale`) v.
    ///
    /// q is (batch, seqlen_q, heads, head size), k and v are (batch, seqlen_k, kv heads, head size), where kv heads
    /// divides heads; v may have a head size of its own. f32, f16 or bf16, head sizes up to 576, any strides as long as
    /// the last dimension is contiguous. With `causal` a query sees no key after its own place, and the last query stands
    /// at the last key. Gives (batch, seqlen_q, heads, head size of v), with gradients for q, k and v.
    flash_attn(softmax_scale: f32, causal: bool) {
        dense(softmax_scale, None, [None, causal_window(causal)], None)
    }

    /// [`flash_attn`] where a query sees at most so many keys to the left and right of its place; `None` is no bound, and
    /// so is a number above seqlen_k. (`None`, `Some(0)`) is causal.
    flash_attn_windowed(
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        dense(softmax_scale, None, [window_size_left, window_size_right], None)
    }

    /// [`flash_attn`] with ALiBi: a score loses slope · distance. `alibi_slopes` is f32 (heads).
    flash_attn_alibi(alibi_slopes: &Tensor, softmax_scale: f32, causal: bool) {
        dense(softmax_scale, Some(alibi_slopes), [None, causal_window(causal)], None)
    }

    /// [`flash_attn_windowed`] with ALiBi.
    flash_attn_alibi_windowed(
        alibi_slopes: &Tensor, softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        dense(softmax_scale, Some(alibi_slopes), [window_size_left, window_size_right], None)
    }

    /// [`flash_attn_windowed`] with ALiBi if slopes are given, and scaled scores s replaced by
    /// softcap · tanh(s / softcap) before that; 0 leaves them.
    flash_attn_alibi_windowed_softcap(
        alibi_slopes: Option<&Tensor>, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, softcap: f32
    ) {
        dense(softmax_scale, alibi_slopes, [window_size_left, window_size_right], Some(softcap))
    }

    /// [`flash_attn`] with a softcap, as in [`flash_attn_alibi_windowed_softcap`].
    flash_attn_softcap(softmax_scale: f32, softcap: Option<f32>, causal: bool) {
        dense(softmax_scale, None, [None, causal_window(causal)], softcap)
    }

    /// [`flash_attn_windowed`] with sinks: f32 (heads), one more logit per head that takes weight but has no value.
    flash_attn_windowed_sinks(
        sinks: &Tensor, softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        with_sinks(sinks, dense(softmax_scale, None, [window_size_left, window_size_right], None))
    }
}

functions! { by k in packed_on_device;
    /// Attention over sequences of different lengths, packed one after the other.
    ///
    /// q is (total_q, heads, head size), k and v are (total_k, kv heads, head size). `seqlens_q` and `seqlens_k`, u32 or
    /// i32 (batch + 1), say at which row each sequence begins: 0, length 1, length 1 + length 2 and so on. No sequence
    /// may be longer than `max_seqlen_q` and `max_seqlen_k`. Otherwise as [`flash_attn`]. Rows that belong to no sequence give zeros.
    flash_attn_varlen(
        seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32, causal: bool
    ) {
        let spec = dense(softmax_scale, None, [None, causal_window(causal)], None);
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen`] with a window, as in [`flash_attn_windowed`]; a number above `max_seqlen_k` is no bound.
    flash_attn_varlen_windowed(
        seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32,
        window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        let spec = dense(softmax_scale, None, [window_size_left, window_size_right], None);
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen_windowed`] over keys and values that lie in pages.
    ///
    /// k and v are (pages, page_block_size, kv heads, head size), and `block_table`, u32 or i32 (batch, pages of the longest),
    /// names the pages of each sequence in order. Any page size will do. `mm_prefix_ranges`, i32 (batch, ranges, 2), has
    /// ranges of places [start, end) within which all see each other whatever the window says; an empty range is none. There
    /// is no gradient.
    flash_attn_varlen_paged_windowed(
        seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: &Tensor, mm_prefix_ranges: Option<&Tensor>,
        max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, page_block_size: usize, softcap: Option<f32>
    ) {
        let spec = dense(softmax_scale, None, [window_size_left, window_size_right], softcap);
        let (block_table, mm_prefix_ranges) = (block_table.clone(), mm_prefix_ranges.cloned());
        let pages = Pages { block_table, mm_prefix_ranges, page_block_size };
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], Some(pages), spec)
    }

    /// [`flash_attn_varlen`] with ALiBi: `alibi_slopes` is f32 (heads).
    flash_attn_varlen_alibi(
        alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, causal: bool
    ) {
        let spec = dense(softmax_scale, Some(alibi_slopes), [None, causal_window(causal)], None);
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen_windowed`] with ALiBi.
    flash_attn_varlen_alibi_windowed(
        alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        let spec = dense(softmax_scale, Some(alibi_slopes), [window_size_left, window_size_right], None);
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen_windowed`] with ALiBi if slopes are given, and a softcap; 0 is none.
    flash_attn_varlen_alibi_windowed_softcap(
        alibi_slopes: Option<&Tensor>, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>, softcap: f32
    ) {
        let spec = dense(softmax_scale, alibi_slopes, [window_size_left, window_size_right], Some(softcap));
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }

    /// [`flash_attn_varlen_windowed`] with sinks, as in [`flash_attn_windowed_sinks`].
    flash_attn_varlen_windowed_sinks(
        sinks: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        let spec = with_sinks(sinks, dense(softmax_scale, None, [window_size_left, window_size_right], None));
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], None, spec)
    }
}

functions! { by k in paged_on_device;
    /// [`flash_attn_varlen`] with a softcap, over keys and values in pages where a table is given: candle-vllm's spelling. Pages are
    /// as long as the second dimension of k.
    flash_attn_varlen_softcap(
        seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: &Option<Tensor>, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, softcap: Option<f32>, causal: bool
    ) {
        let spec = dense(softmax_scale, None, [None, causal_window(causal)], softcap);
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], pages(k, block_table), spec)
    }

    /// [`flash_attn_varlen_softcap`] with a window.
    flash_attn_varlen_windowed_softcap(
        seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: &Option<Tensor>, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, softcap: Option<f32>, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) {
        let spec = dense(softmax_scale, None, [window_size_left, window_size_right], softcap);
        packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k], pages(k, block_table), spec)
    }
}

/// The functions of this crate for tensors that stay on a GPU.
///
/// Results know what they were computed from: [`RocmTensor::gradients`].
pub mod on_device {
    pub use super::dense_on_device::*;
    pub use super::packed_on_device::*;
    pub use super::paged_on_device::*;
}

/// The functions of candle-flash-attn-v3, which are told whether to pack the query heads of a group into one tile. This library
/// decides that by itself: results are the same either way.
pub mod v3 {
    use super::*;

    macro_rules! with_packing {
        ($($name:ident($($argument:ident: $type:ty),*))*) => {
            $(
                #[doc = concat!("[`", stringify!($name), "`](crate::", stringify!($name), "), spelled as version 3 does.")]
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

/// Dense attention as an operation that Candle applies: `q.apply_op3(&k, &v, FlashAttn { .. })`. The functions of this
/// crate do that.
#[derive(Clone, Debug)]
pub struct FlashAttn {
    /// What q·k is multiplied by.
    pub softmax_scale: f32,
    /// f32 (heads).
    pub alibi_slopes: Option<Tensor>,
    /// Keys seen before the query's place; `None` is no bound.
    pub window_size_left: Option<usize>,
    /// Keys seen after the query's place; `None` is no bound.
    pub window_size_right: Option<usize>,
    /// Scores s become cap · tanh(s / cap).
    pub softcap: Option<f32>,
}

impl FlashAttn {
    pub(crate) fn spec(&self) -> Spec {
        let windows = [self.window_size_left, self.window_size_right];
        dense(self.softmax_scale, self.alibi_slopes.as_ref(), windows, self.softcap)
    }

    /// It may be applied many times, so nothing is kept between forward and backward.
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
