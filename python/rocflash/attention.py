"""`rocflash.attention`: the C ABI with keyword arguments, for torch tensors and DLPack arrays."""

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
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    leftpad_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    window: Any = None,
    attention_chunk: int = 0,
    mask: Any = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    bias: Any = None,
    sinks: Any = None,
    block_table: Any = None,
    cache_batch_idx: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    dropout_p: float = 0.0,
    rng_state: Any = None,
    generator: torch.Generator | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    return_weights: bool = False,
    num_splits: int = 0,
    num_threads: int = 0,
    backend: str | None = None,
) -> Any:
    """Exact attention: ``softmax(softcap(scale * q k^T) + alibi + bias, masked) v``.

    q: (b, sq, h, d), f32, f16 or bf16; or packed (total_q, h, d) with ``cu_seqlens_q``.
    k, v: (b, sk, hk, d) and (b, sk, hk, dv), h a multiple of hk; or packed with ``cu_seqlens_k``.
    cu_seqlens_q, cu_seqlens_k: int32 (b + 1), the begins of varlen sequences.
    seqused_q, seqused_k: int32 (b), used rows of each sequence.
    leftpad_k: int32 (b), keys to skip at each sequence's begin.
    max_seqlen_q, max_seqlen_k: packed only, a bound on the lengths; if absent it is computed, which
    synchronizes with a GPU.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window: (left, right), the number of keys before and after that position; -1 for no bound.
    attention_chunk: only keys of the same chunk of this many keys.
    mask: bool (b|1, h|1, sq|1, sk|1), True attends.
    softmax_scale: 1 / sqrt(d) unless given.
    softcap: 0, or s becomes softcap * tanh(s / softcap).
    alibi_slopes: f32 (h) or (b, h). It, bias and sinks have gradients, like q, k and v.
    bias: (b|1, h|1, sq|1, sk|1), added to the scores.
    sinks: (h), one more logit per head that has weight but no value.
    block_table: int32 (b, pages), for paged k and v, (num_pages, page, hk, d); no gradients.
    cache_batch_idx: int32 (b), the batch entry of k and v of each sequence; no gradients.
    k_descale, v_descale: f32, the scales of quantized k and v (torch.float8_* or int8; no
    gradients), value = stored * scale: one element, (b|1, hk|1), or the shape of k without its
    last dimension, in which any size may be 1; packed k count as (1, total_k, hk, d).
    dropout_p: in [0, 1), the probability to drop a weight.
    rng_state: int64 (2,), seed and offset; drawn from ``generator`` if absent, and required without
    torch.
    generator: torch's default generator unless given.
    deterministic: bitwise equal results on every run, possibly slower.
    num_splits: number of splits of the keys in decode; 0: heuristic.
    num_threads: CPU only; 0: as torch, or ROCFLASH_NUM_THREADS.
    backend: see rocflash.backend.
    return_lse: also return lse, f32 (b, h, sq) or (h, total_q). It has gradients, like out.
    return_weights: also return the normalized weights, f32 (b, h, sq, sk), negative where dropped.

    Returns out, as q with dv columns, or a tuple of out and what is requested.
    """
    left, right = (-1, -1) if window is None else window_pair(window)
    number = choice.for_operator() if backend is None else choice.number_of(backend)
    # All options, in the order of their list.
    options = (
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_q,
        seqused_k,
        leftpad_k,
        mask,
        alibi_slopes,
        bias,
        sinks,
        block_table,
        cache_batch_idx,
        k_descale,
        v_descale,
        rng_state,
        max_seqlen_q or 0,
        max_seqlen_k or 0,
        causal,
        left,
        right,
        attention_chunk,
        softmax_scale,
        softcap,
        dropout_p,
        deterministic,
        num_splits,
        num_threads,
        number,
    )
    if is_torch(q):
        if _of_tensors is None:
            _load_torch_side()
        assert _of_tensors is not None
        results = _of_tensors(q, k, v, options, generator, return_lse, return_weights)
    else:
        from ._arrays.calls import attention_of_arrays

        if generator is not None:
            raise InvalidArgument(
                "generator is given, but q is not a torch tensor; it must be None: pass rng_state"
            )
        results = attention_of_arrays(q, k, v, options, return_lse, return_weights)
    if not return_lse and not return_weights:
        return results[0]
    out, lse, weights = results
    return (out, *([lse] if return_lse else []), *([weights] if return_weights else []))
