//! What a call is given beside q, k and v: options, outputs, gradients, and what is appended to a cache.
use crate::view::{View, ViewMut};

/// How attention is to be done. Everything is off until it is asked for; an option that cannot be honoured is
/// refused by the call. The library's `docs/semantics.md` defines each of them.
///
/// ```
/// let options = rocflash::Options::new().causal().softcap(30.0).softmax_scale(0.125);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    pub(crate) cu_seqlens_q: Option<View<'a>>,
    pub(crate) cu_seqlens_k: Option<View<'a>>,
    pub(crate) seqused_q: Option<View<'a>>,
    pub(crate) seqused_k: Option<View<'a>>,
    pub(crate) leftpad_k: Option<View<'a>>,
    pub(crate) max_seqlen_q: i64,
    pub(crate) max_seqlen_k: i64,
    pub(crate) causal: bool,
    pub(crate) window: Option<[i64; 2]>,
    pub(crate) attention_chunk: i64,
    pub(crate) mask: Option<View<'a>>,
    pub(crate) softmax_scale: Option<f32>,
    pub(crate) softcap: f32,
    pub(crate) alibi_slopes: Option<View<'a>>,
    pub(crate) bias: Option<View<'a>>,
    pub(crate) sinks: Option<View<'a>>,
    pub(crate) dropout: Option<(f32, u64, u64)>,
    pub(crate) deterministic: bool,
    pub(crate) num_splits: i32,
    pub(crate) block_table: Option<View<'a>>,
    pub(crate) cache_batch_idx: Option<View<'a>>,
}

/// A number for the library, which counts in 63 bits; more than that is more than any tensor has.
fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl<'a> Options<'a> {
    /// Nothing asked for: plain attention.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sequences of q, k and v one after the other without padding: i32 (b + 1), the row where each begins. q is then
    /// (total_q, h, d), and k and v are (total_k, hk, d).
    pub fn packed(self, cu_seqlens_q: View<'a>, cu_seqlens_k: View<'a>) -> Self {
        Self { cu_seqlens_q: Some(cu_seqlens_q), cu_seqlens_k: Some(cu_seqlens_k), ..self }
    }

    /// Packed queries over keys that are not packed, or lie in a cache.
    pub fn packed_queries(self, cu_seqlens_q: View<'a>) -> Self {
        Self { cu_seqlens_q: Some(cu_seqlens_q), ..self }
    }

    /// No packed sequence is longer; 0 has it found. Bias, mask and weights have these sizes.
    pub fn max_seqlens(self, q: usize, k: usize) -> Self {
        Self { max_seqlen_q: count(q), max_seqlen_k: count(k), ..self }
    }

    /// i32 (b): rows of q in use, counted from each sequence's begin.
    pub fn seqused_q(self, used: View<'a>) -> Self {
        Self { seqused_q: Some(used), ..self }
    }

    /// i32 (b): rows of k and v in use, counted from each sequence's begin.
    pub fn seqused_k(self, used: View<'a>) -> Self {
        Self { seqused_k: Some(used), ..self }
    }

    /// i32 (b): keys to skip at each sequence's begin; `seqused_k` counts them.
    pub fn leftpad_k(self, pad: View<'a>) -> Self {
        Self { leftpad_k: Some(pad), ..self }
    }

    /// No key after the query's own place, where the last query stands at the last key.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// At most so many keys before and after the query's place; `None` is no bound.
    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Self { window: Some([left.map_or(-1, count), right.map_or(-1, count)]), ..self }
    }

    /// Only keys of the chunk of this many keys that the query's place lies in.
    pub fn attention_chunk(self, keys: usize) -> Self {
        Self { attention_chunk: count(keys), ..self }
    }

    /// u8 (b|1, h|1, sq|1, sk|1): nonzero sees. See also [`View::mask`].
    pub fn mask(self, mask: View<'a>) -> Self {
        Self { mask: Some(mask), ..self }
    }

    /// What q·k is multiplied by, instead of 1 / √d.
    pub fn softmax_scale(self, scale: f32) -> Self {
        Self { softmax_scale: Some(scale), ..self }
    }

    /// Scores become cap · tanh(score / cap); 0 is off.
    pub fn softcap(self, cap: f32) -> Self {
        Self { softcap: cap, ..self }
    }

    /// f32 (h) or (b, h): a score loses slope · distance.
    pub fn alibi_slopes(self, slopes: View<'a>) -> Self {
        Self { alibi_slopes: Some(slopes), ..self }
    }

    /// f32 or the dtype of q, (b|1, h|1, sq|1, sk|1): added to scores; −∞ hides the key.
    pub fn bias(self, bias: View<'a>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// f32 or the dtype of q, (h): one more logit per head that takes weight but has no value.
    pub fn sinks(self, sinks: View<'a>) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// Drops weights with probability `p` and scales the others by 1 / (1 − p). The pattern is a function of
    /// seed, offset and position alone, the same on every device.
    pub fn dropout(self, p: f32, seed: u64, offset: u64) -> Self {
        Self { dropout: Some((p, seed, offset)), ..self }
    }

    /// Bit-equal results on every run, even where that costs time.
    pub fn deterministic(self) -> Self {
        Self { deterministic: true, ..self }
    }

    /// With few queries, parts that their keys are split into; 0 leaves the choice to the library.
    pub fn num_splits(self, splits: u32) -> Self {
        Self { num_splits: i32::try_from(splits).unwrap_or(i32::MAX), ..self }
    }

    /// i32 (b, pages): k and v are (num_pages, page, hk, d), and this says which pages hold a sequence.
    pub fn block_table(self, table: View<'a>) -> Self {
        Self { block_table: Some(table), ..self }
    }

    /// i32 (b): the batch entry of k and v that each sequence uses.
    pub fn cache_batch_idx(self, index: View<'a>) -> Self {
        Self { cache_batch_idx: Some(index), ..self }
    }
}

/// What forward and decode write.
#[derive(Debug)]
pub struct Outputs<'a> {
    pub(crate) out: ViewMut<'a>,
    pub(crate) lse: Option<ViewMut<'a>>,
    pub(crate) s_dmask: Option<ViewMut<'a>>,
}

impl<'a> Outputs<'a> {
    /// The output: as q, with the head size of v.
    pub fn new(out: ViewMut<'a>) -> Self {
        Self { out, lse: None, s_dmask: None }
    }

    /// The same for a shorter time, so that one set of outputs can serve several calls.
    pub fn reborrow(&mut self) -> Outputs<'_> {
        Outputs {
            out: self.out.reborrow(),
            lse: self.lse.as_mut().map(ViewMut::reborrow),
            s_dmask: self.s_dmask.as_mut().map(ViewMut::reborrow),
        }
    }

    /// f32 (b, h, sq), packed (h, total_q): the logarithm of the sum of exponentials. Backward needs it.
    pub fn lse(self, lse: ViewMut<'a>) -> Self {
        Self { lse: Some(lse), ..self }
    }

    /// f32 or the dtype of q, (b, h, sq, sk), packed (b, h, max_q, max_k): the weights, negative where dropped.
    pub fn s_dmask(self, weights: ViewMut<'a>) -> Self {
        Self { s_dmask: Some(weights), ..self }
    }
}

/// What backward reads beside the problem, and the gradients that it writes; those not given are not computed.
#[derive(Debug)]
pub struct Gradients<'a> {
    pub(crate) dout: View<'a>,
    pub(crate) out: View<'a>,
    pub(crate) lse: View<'a>,
    pub(crate) dq: Option<ViewMut<'a>>,
    pub(crate) dk: Option<ViewMut<'a>>,
    pub(crate) dv: Option<ViewMut<'a>>,
    pub(crate) dsinks: Option<ViewMut<'a>>,
    pub(crate) dbias: Option<ViewMut<'a>>,
    pub(crate) dalibi_slopes: Option<ViewMut<'a>>,
}

impl<'a> Gradients<'a> {
    /// The gradient of out, and out and lse as forward wrote them.
    pub fn new(dout: View<'a>, out: View<'a>, lse: View<'a>) -> Self {
        let (dq, dk, dv, dsinks, dbias, dalibi_slopes) = (None, None, None, None, None, None);
        Self { dout, out, lse, dq, dk, dv, dsinks, dbias, dalibi_slopes }
    }

    /// The gradient of q.
    pub fn dq(self, dq: ViewMut<'a>) -> Self {
        Self { dq: Some(dq), ..self }
    }

    /// The gradient of k.
    pub fn dk(self, dk: ViewMut<'a>) -> Self {
        Self { dk: Some(dk), ..self }
    }

    /// The gradient of v.
    pub fn dv(self, dv: ViewMut<'a>) -> Self {
        Self { dv: Some(dv), ..self }
    }

    /// The gradient of the sinks, f32 (h).
    pub fn dsinks(self, dsinks: ViewMut<'a>) -> Self {
        Self { dsinks: Some(dsinks), ..self }
    }

    /// The gradient of the bias: its shape and dtype, summed over the dimensions in which that has size 1.
    pub fn dbias(self, dbias: ViewMut<'a>) -> Self {
        Self { dbias: Some(dbias), ..self }
    }

    /// The gradient of ALiBi's slopes: f32, their shape.
    pub fn dalibi_slopes(self, dalibi_slopes: ViewMut<'a>) -> Self {
        Self { dalibi_slopes: Some(dalibi_slopes), ..self }
    }
}

/// New keys and values on their way into a cache, and rotary embedding. All of it is optional.
#[derive(Clone, Copy, Debug, Default)]
pub struct Append<'a> {
    pub(crate) new: Option<(View<'a>, View<'a>)>,
    pub(crate) cu_seqlens_k_new: Option<View<'a>>,
    pub(crate) rotary: Option<(View<'a>, View<'a>)>,
    pub(crate) rotary_seqlens: Option<View<'a>>,
    pub(crate) rotary_interleaved: bool,
}

impl<'a> Append<'a> {
    /// Nothing: decode then only computes.
    pub fn none() -> Self {
        Self::default()
    }

    /// Keys (b, s_new, hk, d) and values (b, s_new, hk, dv), written behind those that `seqused_k` counts.
    pub fn new(k_new: View<'a>, v_new: View<'a>) -> Self {
        Self { new: Some((k_new, v_new)), ..Self::default() }
    }

    /// The new rows are packed, (total_new, hk, d): i32 (b + 1), the row where each sequence begins.
    pub fn packed(self, cu_seqlens_k_new: View<'a>) -> Self {
        Self { cu_seqlens_k_new: Some(cu_seqlens_k_new), ..self }
    }

    /// Rotates the first r columns of queries and new keys: cosines and sines (positions, r / 2), f32 or the dtype
    /// of q. `interleaved` pairs columns (0, 1), (2, 3) …, otherwise (0, r/2), (1, r/2 + 1) ….
    pub fn rotary(self, cos: View<'a>, sin: View<'a>, interleaved: bool) -> Self {
        Self { rotary: Some((cos, sin)), rotary_interleaved: interleaved, ..self }
    }

    /// i32 (b): the first position, instead of the row where the new keys go.
    pub fn rotary_seqlens(self, positions: View<'a>) -> Self {
        Self { rotary_seqlens: Some(positions), ..self }
    }
}
