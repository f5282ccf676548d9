"""`rocflash.decode`: attention over a KV cache, for torch tensors and other arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._c.options import CacheCall, renamed
from .attention import is_torch
from .errors import Error

_of_tensors: Callable[..., Any] | None = None


def _torch_side() -> Callable[..., Any]:
    global _of_tensors
    from ._torch.decode import attention_with_kvcache

    _of_tensors = attention_with_kvcache
    return attention_with_kvcache


def decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    k: Any = None,
    v: Any = None,
    qv: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = True,
    rotary_seqlens: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: Any = None,
    page_table_name: str = "page_table",
    k_descale: Any = None,
    v_descale: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int = 0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: Any = None,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    num_splits: int = 0,
    num_threads: int = 0,
    out: Any = None,
    want_lse: bool = True,
) -> tuple[Any, Any]:
    """Attention over a KV cache, after an append. No gradients; a rejected call writes nothing.

    q: (b, sq, h, d), or packed with cu_seqlens_q.
    k_cache, v_cache: (b, length, hk, d) or, with a page table, (pages, page size, hk, d). They may
    have capacity for more sequences than q has.
    k, v: keys and values to append, (b, new, hk, d) or packed with cu_seqlens_k_new, after the keys
    that cache_seqlens counts.
    qv: torch only, adds qv.v^T to the scores.
    rotary_cos, rotary_sin: (positions, r / 2), rotate the first r columns of q and k.
    rotary_interleaved: rotates pairs (0, 1), (2, 3), ...; else (0, r / 2), (1, r / 2 + 1), ...
    rotary_seqlens: int32 (b), the first position; that of the first new key unless given.
    cache_seqlens: an int or int32 (b), the keys of each sequence before the new ones.
    cache_batch_idx: int32 (b), the entry of the caches of each sequence.
    cache_leftpad: int32 (b), keys to skip at each sequence's begin.
    page_table: int32 (b, pages), the pages of each sequence.
    page_table_name: the name of page_table in messages.
    k_descale, v_descale: the scales of quantized caches, as of `attention`. k and v to append are
    of q's dtype and quantized with these scales, or of the caches' and copied.
    cu_seqlens_q, cu_seqlens_k_new: int32 (b + 1), the begins of varlen sequences of q and of k.
    max_seqlen_q: with cu_seqlens_q, a bound on the lengths of the queries.
    softmax_scale, causal, window, attention_chunk, softcap, alibi_slopes, sinks: as of `attention`.
    num_splits, num_threads: as of `attention`.
    out: the tensor for the result; allocated unless given.
    want_lse: whether lse is computed.

    Returns (out, lse), lse None unless wanted.
    """
    given = locals()  # the arguments by name; test_source.py compares them with CacheCall
    if is_torch(q):
        return (_of_tensors or _torch_side())(**given)
    return _of_arrays(**given)


def _of_arrays(q: Any, k_cache: Any, v_cache: Any, **given: Any) -> tuple[Any, Any]:
    from ._arrays.calls import decode_of_arrays

    call = CacheCall(**given)
    try:
        return decode_of_arrays(q, k_cache, v_cache, call)
    except (Error, TypeError) as error:
        raise renamed(error, call.page_table_name) from None
