//! The arguments of a call besides q, k and v: options, outputs, gradients, and the rows appended
//! to a KV cache.
use crate::view::{View, ViewMut};

/// Options of attention. The default is dense attention without any of them. A call rejects an
/// option that it does not support. The library's `docs/reference/semantics.md` defines every
/// option.
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
    pub(crate) k_descale: Option<View<'a>>,
    pub(crate) v_descale: Option<View<'a>>,
}

/// Converts to the library's i64; a larger value saturates, which is beyond any tensor's size.
fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl<'a> Options<'a> {
    /// Dense attention without masks or score modifiers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Varlen: the sequences of q, k and v are concatenated without padding. i32 (b + 1): the row
    /// where each sequence starts. q is then (total_q, h, d), and k and v are (total_k, hk, d).
    pub fn packed(self, cu_seqlens_q: View<'a>, cu_seqlens_k: View<'a>) -> Self {
        Self { cu_seqlens_q: Some(cu_seqlens_q), cu_seqlens_k: Some(cu_seqlens_k), ..self }
    }

    /// Varlen queries over keys that are padded or in a KV cache.
    pub fn packed_queries(self, cu_seqlens_q: View<'a>) -> Self {
        Self { cu_seqlens_q: Some(cu_seqlens_q), ..self }
    }

    /// The longest varlen sequence; 0 lets the library compute it. Bias, mask and weights have
    /// these sizes.
    pub fn max_seqlens(self, q: usize, k: usize) -> Self {
        Self { max_seqlen_q: count(q), max_seqlen_k: count(k), ..self }
    }

    /// i32 (b): the number of rows of q in use, from the start of each sequence.
    pub fn seqused_q(self, used: View<'a>) -> Self {
        Self { seqused_q: Some(used), ..self }
    }

    /// i32 (b): the number of rows of k and v in use, from the start of each sequence.
    pub fn seqused_k(self, used: View<'a>) -> Self {
        Self { seqused_k: Some(used), ..self }
    }

    /// i32 (b): the number of keys to skip at the start of each sequence; `seqused_k` includes
    /// them.
    pub fn leftpad_k(self, pad: View<'a>) -> Self {
        Self { leftpad_k: Some(pad), ..self }
    }

    /// Causal mask, bottom-right aligned: query i attends to keys up to i + sk − sq.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// Sliding window: at most `left` keys before and `right` keys after the query position; `None`
    /// is unbounded.
    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Self { window: Some([left.map_or(-1, count), right.map_or(-1, count)]), ..self }
    }

    /// Chunked attention: only keys of the query position's chunk, each `keys` long.
    pub fn attention_chunk(self, keys: usize) -> Self {
        Self { attention_chunk: count(keys), ..self }
    }

    /// u8 (b|1, h|1, sq|1, sk|1): nonzero attends. See also [`View::mask`].
    pub fn mask(self, mask: View<'a>) -> Self {
        Self { mask: Some(mask), ..self }
    }

    /// Sets the scale of q·kᵀ; the default is 1 / √d.
    pub fn softmax_scale(self, scale: f32) -> Self {
        Self { softmax_scale: Some(scale), ..self }
    }

    /// Sets softcap: scores become cap · tanh(score / cap); 0 is off.
    pub fn softcap(self, cap: f32) -> Self {
        Self { softcap: cap, ..self }
    }

    /// ALiBi: f32 (h) or (b, h); subtracts slope · distance from each score.
    pub fn alibi_slopes(self, slopes: View<'a>) -> Self {
        Self { alibi_slopes: Some(slopes), ..self }
    }

    /// f32 or the dtype of q, (b|1, h|1, sq|1, sk|1): added to the scores; −∞ masks the key.
    pub fn bias(self, bias: View<'a>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// f32 or the dtype of q, (h): one extra logit per head that adds to the softmax's sum but has
    /// no value.
    pub fn sinks(self, sinks: View<'a>) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// Drops weights with probability `p` and scales the others by 1 / (1 − p). The mask is a
    /// function of seed, offset and position only, and identical on every device.
    pub fn dropout(self, p: f32, seed: u64, offset: u64) -> Self {
        Self { dropout: Some((p, seed, offset)), ..self }
    }

    /// Makes results bit-identical on every run, possibly at the cost of speed.
    pub fn deterministic(self) -> Self {
        Self { deterministic: true, ..self }
    }

    /// The number of splits of split-KV decode; 0 selects it by the heuristic.
    pub fn num_splits(self, splits: u32) -> Self {
        Self { num_splits: i32::try_from(splits).unwrap_or(i32::MAX), ..self }
    }

    /// i32 (b, pages): k and v are (num_pages, page, hk, d), and the table has the pages of each
    /// sequence.
    pub fn block_table(self, table: View<'a>) -> Self {
        Self { block_table: Some(table), ..self }
    }

    /// i32 (b): the batch entry of k and v that each sequence uses.
    pub fn cache_batch_idx(self, index: View<'a>) -> Self {
        Self { cache_batch_idx: Some(index), ..self }
    }

    /// f32: the scales of quantized k and v; value = stored · scale. One element, (b|1, hk|1), or
    /// the shape of k without columns, in which any size may be 1.
    pub fn descales(self, k: View<'a>, v: View<'a>) -> Self {
        Self { k_descale: Some(k), v_descale: Some(v), ..self }
    }
}

/// The outputs of forward and decode.
#[derive(Debug)]
pub struct Outputs<'a> {
    pub(crate) out: ViewMut<'a>,
    pub(crate) lse: Option<ViewMut<'a>>,
    pub(crate) s_dmask: Option<ViewMut<'a>>,
}

impl<'a> Outputs<'a> {
    /// The output: the shape of q, with the head dim of v.
    pub fn new(out: ViewMut<'a>) -> Self {
        Self { out, lse: None, s_dmask: None }
    }

    /// Reborrows the outputs, so that several calls can use them.
    pub fn reborrow(&mut self) -> Outputs<'_> {
        Outputs {
            out: self.out.reborrow(),
            lse: self.lse.as_mut().map(ViewMut::reborrow),
            s_dmask: self.s_dmask.as_mut().map(ViewMut::reborrow),
        }
    }

    /// f32 (b, h, sq), varlen (h, total_q): the log-sum-exp of each row, an input of backward.
    pub fn lse(self, lse: ViewMut<'a>) -> Self {
        Self { lse: Some(lse), ..self }
    }

    /// f32 or the dtype of q, (b, h, sq, sk), varlen (b, h, max_q, max_k): the weights, negative
    /// where dropped.
    pub fn s_dmask(self, weights: ViewMut<'a>) -> Self {
        Self { s_dmask: Some(weights), ..self }
    }
}

/// The inputs of backward besides the problem, and the gradients to compute. A gradient without an
/// output is not computed.
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
    pub(crate) delta: Option<ViewMut<'a>>,
    pub(crate) dlse: Option<View<'a>>,
}

impl<'a> Gradients<'a> {
    /// Sets the gradient of out, and out and lse of the forward call.
    pub fn new(dout: View<'a>, out: View<'a>, lse: View<'a>) -> Self {
        let (dq, dk, dv, dsinks, dbias) = (None, None, None, None, None);
        let (dalibi_slopes, delta, dlse) = (None, None, None);
        Self { dout, out, lse, dq, dk, dv, dsinks, dbias, dalibi_slopes, delta, dlse }
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

    /// The gradient of the bias: the shape and dtype of the bias, summed over its dimensions of
    /// size 1.
    pub fn dbias(self, dbias: ViewMut<'a>) -> Self {
        Self { dbias: Some(dbias), ..self }
    }

    /// The gradient of ALiBi's slopes: f32, the shape of the slopes.
    pub fn dalibi_slopes(self, dalibi_slopes: ViewMut<'a>) -> Self {
        Self { dalibi_slopes: Some(dalibi_slopes), ..self }
    }

    /// The row sums of dout times out, minus the gradient of lse, times 1 - the probability of
    /// dropout: f32 (b, h, sq), packed (h, total_q), with a last stride of 1.
    pub fn delta(self, delta: ViewMut<'a>) -> Self {
        Self { delta: Some(delta), ..self }
    }

    /// An input: the gradient of lse, f32 (b, h, sq), packed (h, total_q).
    pub fn dlse(self, dlse: View<'a>) -> Self {
        Self { dlse: Some(dlse), ..self }
    }
}

/// The keys and values that decode appends to a KV cache, and the rotary embedding. All of it is
/// optional.
#[derive(Clone, Copy, Debug, Default)]
pub struct Append<'a> {
    pub(crate) new: Option<(View<'a>, View<'a>)>,
    pub(crate) cu_seqlens_k_new: Option<View<'a>>,
    pub(crate) rotary: Option<(View<'a>, View<'a>)>,
    pub(crate) rotary_seqlens: Option<View<'a>>,
    pub(crate) rotary_interleaved: bool,
}

impl<'a> Append<'a> {
    /// Appends nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Keys (b, s_new, hk, d) and values (b, s_new, hk, dv), appended after the first `seqused_k`
    /// rows.
    pub fn new(k_new: View<'a>, v_new: View<'a>) -> Self {
        Self { new: Some((k_new, v_new)), ..Self::default() }
    }

    /// Varlen new rows, (total_new, hk, d): i32 (b + 1), the row where each sequence starts.
    pub fn packed(self, cu_seqlens_k_new: View<'a>) -> Self {
        Self { cu_seqlens_k_new: Some(cu_seqlens_k_new), ..self }
    }

    /// Applies rotary embedding to the first r columns of queries and new keys: cosines and sines
    /// (positions, r / 2), f32 or the dtype of q. `interleaved` pairs columns (0, 1), (2, 3) …,
    /// otherwise (0, r/2), (1, r/2 + 1) ….
    pub fn rotary(self, cos: View<'a>, sin: View<'a>, interleaved: bool) -> Self {
        Self { rotary: Some((cos, sin)), rotary_interleaved: interleaved, ..self }
    }

    /// i32 (b): the position of the first new row; the default is the row that it is appended at.
    pub fn rotary_seqlens(self, positions: View<'a>) -> Self {
        Self { rotary_seqlens: Some(positions), ..self }
    }
}
