"""`rocflash.decode`: attention over a key/value cache, for torch tensors and other arrays alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._c import choice
from ._c.options import CACHE_OPTIONS, packer, renamed, window_pair
from .attention import is_torch
from .errors import Error, InvalidArgument

_packed = packer(*(name for name in CACHE_OPTIONS if name != "seqused_k"))
_of_tensors: Callable[..., Any] | None = None


def _torch_side() -> Callable[..., Any]:
    global _of_tensors
    from ._torch.decode import attention_with_kvcache

    _of_tensors = attention_with_kvcache
    return attention_with_kvcache


def decode(
    q: Any, k_cache: Any, v_cache: Any, *, k: Any = None, v: Any = None, qv: Any = None, rotary_cos: Any = None,
    rotary_sin: Any = None, rotary_interleaved: bool = True, rotary_seqlens: Any = None,
    cache_seqlens: Any = None, cache_batch_idx: Any = None, cache_leftpad: Any = None, page_table: Any = None,
    page_table_name: str = "page_table", cu_seqlens_q: Any = None, cu_seqlens_k_new: Any = None,
    max_seqlen_q: int = 0, softmax_scale: float | None = None, causal: bool = False, window: Any = None,
    attention_chunk: int = 0, softcap: float = 0.0, alibi_slopes: Any = None, sinks: Any = None,
    num_splits: int = 0, num_threads: int = 0, out: Any = None, want_lse: bool = True,
) -> tuple[Any, Any]:
    """(out, lse), lse None unless wanted. No gradients; a call that is refused has written nothing.

    q is (b, sq, h, d), or packed with cu_seqlens_q; the caches are (b, length, hk, d) or, with a
    page table, (pages, page size, hk, d). They may have room for more sequences than q has.

    k, v: new keys and values, (b, new, hk, d) or packed with cu_seqlens_k_new, which are written into
    the caches behind the ``cache_seqlens`` keys that each sequence has (an int or int32 (b)).
    rotary_cos, rotary_sin: (positions, r / 2), turn the first r columns of q and k; the first position
    is the first new key's, or ``rotary_seqlens``. rotary_interleaved: pairs (0, 1), (2, 3), ...; else
    (0, r / 2), ... qv: torch only, scores get qv.v^T added. out: where the result goes, made unless given.
    page_table, cache_batch_idx, cache_leftpad: int32 (b, pages), (b) and (b), as block_table,
    cache_batch_idx and leftpad_k of `attention`, which describes the other options.
    """
    if is_torch(q):
        # By position: names take longer.
        return (_of_tensors or _torch_side())(
            q, k_cache, v_cache, k, v, qv, rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens,
            cache_seqlens, cache_batch_idx, cache_leftpad, page_table, page_table_name, cu_seqlens_q,
            cu_seqlens_k_new, max_seqlen_q, softmax_scale, causal, window, attention_chunk, softcap,
            alibi_slopes, sinks, num_splits, num_threads, out, want_lse,
        )
    from ._arrays.calls import decode_of_arrays

    if k is not None and cache_seqlens is None:
        raise InvalidArgument("cache_seqlens: is None, but k is given; it must say where k goes")
    if k is None and rotary_cos is not None:
        raise InvalidArgument("rotary_cos: is given, but k is None; it turns appended keys")
    left, right = window_pair(window, "window_size")
    options = _packed(
        cu_seqlens_q, cache_leftpad, alibi_slopes, sinks, page_table, cache_batch_idx, max_seqlen_q, causal,
        left, right, attention_chunk, softmax_scale, softcap, num_splits, num_threads, choice.current(),
    )
    append = (k, v, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_seqlens)
    try:
        return decode_of_arrays(
            q, k_cache, v_cache, options, append, cache_seqlens, rotary_interleaved, qv, out, want_lse,
        )
    except (Error, TypeError) as error:
        raise renamed(error, page_table_name) from None
