"""`rocflash.attention`: the whole C ABI by keyword, for torch tensors and DLPack arrays alike."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._c import choice
from ._c.options import window_pair
from .errors import InvalidArgument

if TYPE_CHECKING:
    import torch


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


_of_tensors: Callable[..., Any] | None = None


def _load_torch_side() -> None:
    global _of_tensors
    from ._torch.attention import attention_of_tensors

    _of_tensors = attention_of_tensors


def attention(
    q: Any, k: Any, v: Any, *, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, seqused_q: Any = None,
    seqused_k: Any = None, leftpad_k: Any = None, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, causal: bool = False, window: Any = None, attention_chunk: int = 0,
    mask: Any = None, softmax_scale: float | None = None, softcap: float = 0.0, alibi_slopes: Any = None,
    bias: Any = None, sinks: Any = None, block_table: Any = None, cache_batch_idx: Any = None,
    dropout_p: float = 0.0, rng_state: Any = None, generator: torch.Generator | None = None,
    deterministic: bool = False, return_lse: bool = False, return_weights: bool = False, num_splits: int = 0,
    num_threads: int = 0, backend: str | None = None,
) -> Any:
    """Exact attention: ``softmax(softcap(scale * q k^T) + alibi + bias, masked) v``.

    q is (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv), h a multiple of hk; or packed
    (total, heads, size) with ``cu_seqlens_q`` and ``cu_seqlens_k``. f32, f16 or bf16.

    cu_seqlens_q, cu_seqlens_k: int32 (b + 1), where each packed sequence begins.
    seqused_q, seqused_k: int32 (b), rows in use of each sequence.
    leftpad_k: int32 (b), keys to skip at each sequence's begin.
    max_seqlen_q, max_seqlen_k: packed only, a bound on the lengths; found if not given, which on a
    GPU waits for it.
    causal: query i sees keys up to i + sk - sq.
    window: (left, right), so many keys before and after that place; -1 for no bound.
    attention_chunk: only keys of the same chunk of this many keys.
    mask: bool (b|1, h|1, sq|1, sk|1), True sees.
    softmax_scale: 1 / sqrt(d) unless given. softcap: 0, or s becomes softcap * tanh(s / softcap).
    alibi_slopes: f32 (h) or (b, h). bias: (b|1, h|1, sq|1, sk|1), added to the scores.
    sinks: (h), one more logit per head that takes weight but has no value.
    All three have gradients, as q, k and v do.
    block_table: int32 (b, pages), where k and v are pages (num_pages, page, hk, d); no gradients.
    cache_batch_idx: int32 (b), which batch of k and v each sequence uses; no gradients.
    dropout_p: in [0, 1). rng_state: int64 (2,), seed and offset; drawn from ``generator`` or
    torch's default one unless given, and needed where torch is not used.
    deterministic: bit-equal results on every run, even where that costs time.
    num_splits: for few queries, parts that their keys are split into; 0 chooses.
    num_threads: CPU only; 0 follows torch, or ROCFLASH_NUM_THREADS. backend: see rocflash.backend.

    Returns out (as q with dv columns); with ``return_lse`` also lse, f32 (b, h, sq) or (h, total_q);
    with ``return_weights`` also the normalised weights, f32 (b, h, sq, sk), negative where dropped.
    """
    left, right = (-1, -1) if window is None else window_pair(window)
    number = choice.for_operator() if backend is None else choice.number_of(backend)
    # All there are, in the order of their list.
    options = (
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, mask, alibi_slopes, bias, sinks,
        block_table, cache_batch_idx, rng_state, max_seqlen_q or 0, max_seqlen_k or 0, causal, left, right,
        attention_chunk, softmax_scale, softcap, dropout_p, deterministic, num_splits, num_threads, number,
    )
    if is_torch(q):
        if _of_tensors is None:
            _load_torch_side()
        results = _of_tensors(q, k, v, options, generator, return_lse, return_weights)
    else:
        from ._arrays.calls import attention_of_arrays

        if generator is not None:
            raise InvalidArgument("generator: is given, but q is no torch tensor; pass rng_state")
        results = attention_of_arrays(q, k, v, options, return_lse, return_weights)
    if not return_lse and not return_weights:
        return results[0]
    out, lse, weights = results
    return (out, *([lse] if return_lse else []), *([weights] if return_weights else []))
