"""Attention over a key/value cache: append, pages and rotary embedding, all by rocflash_decode.

What is here turns flash_attn's habits into that one call, and its names back into messages.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from .._c import abi, choice
from .._c.options import (
    APPENDED,
    CACHE_OPTIONS,
    CALLERS_NAMES,
    Append,
    Options,
    packer,
    renamed,
    window_pair,
)
from ..errors import Error, InvalidArgument, Unsupported
from . import calls
from .options import check_options, check_tensor, real

# How callers name what is appended.
_APPENDED = tuple(CALLERS_NAMES.get(name, name) for name in APPENDED)
_NOTHING: tuple[Optional[Tensor], ...] = (None,) * len(APPENDED)


def join_qv(q: Tensor, qv: Any, v: Tensor, softmax_scale: Optional[float]) -> tuple[Tensor, float]:
    """FA3's qv: scores q.k + qv.v are those of (qv, q) with (v, k), laid side by side."""
    check_tensor("qv", qv)
    if q.dim() < 1 or v.dim() < 1:
        raise InvalidArgument(
            f"q: shape {tuple(q.shape)}; with v {tuple(v.shape)} and qv it is too flat"
        )
    shape = (*q.shape[:-1], v.shape[-1])
    if qv.shape != shape or qv.dtype is not q.dtype or qv.device != q.device:
        raise InvalidArgument(
            f"qv: {qv.dtype} of shape {tuple(qv.shape)}; it must be as q with the head size of v, "
            f"{q.dtype} of shape {shape}"
        )
    joined = q.shape[-1] + qv.shape[-1]
    most = abi.limits().max_head_dim
    if joined > most:
        raise Unsupported(
            f"qv: head sizes {q.shape[-1]} of q and {qv.shape[-1]} of qv; together they must be at "
            f"most {most}"
        )
    return torch.cat((qv, q), dim=-1), joined**-0.5 if softmax_scale is None else softmax_scale


def side_by_side(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Values and keys in one row, for queries that meet both, and the values as its first columns.

    Each row is then read once for both products. Nothing is copied where k lies behind v already, as
    models with latent attention keep them.
    """
    if k.shape[:-1] != v.shape[:-1] or k.dtype is not v.dtype or k.device != v.device:
        raise InvalidArgument(
            f"v: {v.dtype} of shape {tuple(v.shape)} on {v.device}; with qv it must be as "
            f"k but for the last size: {k.dtype} of shape {tuple(k.shape)} on {k.device}"
        )
    columns = v.shape[-1]
    if _follows(k, v):
        rows = v.as_strided((*v.shape[:-1], columns + k.shape[-1]), v.stride())
    else:
        rows = torch.cat((v, k), dim=-1)
    return rows, rows[..., :columns]


def _follows(k: Tensor, v: Tensor) -> bool:
    """Whether each row of k lies right behind that of v."""
    if torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
        return False
    return (
        k.stride() == v.stride()
        and v.stride(-1) == 1
        and k.storage_offset() == v.storage_offset() + v.shape[-1]
        and k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    )


def _lengths(cache_seqlens: Any, batch: int, device: torch.device) -> Optional[Tensor]:
    if cache_seqlens is None or isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    if isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool):
        if not 0 <= cache_seqlens < 2**31:
            raise InvalidArgument(f"cache_seqlens: {cache_seqlens}; it must be 0 to 2**31 - 1")
        return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=device)
    raise TypeError(
        f"cache_seqlens: {type(cache_seqlens).__name__}; it must be an int or an int32 tensor"
    )


_packed = packer(*CACHE_OPTIONS)


def attention_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
    rotary_interleaved: bool = True, rotary_seqlens: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None, cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None, page_table: Optional[Tensor] = None,
    page_table_name: str = "page_table", cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None, max_seqlen_q: int = 0, softmax_scale: Optional[float] = None,
    causal: bool = False, window: Any = None, attention_chunk: int = 0, softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None, sinks: Optional[Tensor] = None, num_splits: int = 0,
    num_threads: int = 0, out: Optional[Tensor] = None, want_lse: bool = True,
) -> tuple[Tensor, Any]:
    """(out, lse), lse None unless wanted. No gradients; a call that is refused has written nothing.

    q is (b, sq, h, d), or packed with cu_seqlens_q; the caches are (b, length, hk, d) or, with a
    page table, (pages, page size, hk, d). cache_seqlens counts the keys before the new ones.
    """
    check_tensor("q", q)
    check_tensor("k_cache", k_cache)
    check_tensor("v_cache", v_cache)
    append = _NOTHING
    if not (k is v is cu_seqlens_k_new is rotary_cos is rotary_sin is rotary_seqlens is None):
        append = (k, v, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_seqlens)
        for name, x in zip(_APPENDED, append):
            if x is not None:
                check_tensor(name, x)
        if k is not None and cache_seqlens is None:
            raise InvalidArgument(
                "cache_seqlens: is None, but k is given; it must say where k goes"
            )
        if k is None and rotary_cos is not None:
            raise InvalidArgument("rotary_cos: is given, but k is None; it turns appended keys")
    if not isinstance(rotary_interleaved, (bool, int)):
        raise TypeError(f"rotary_interleaved: {rotary_interleaved!r}; it must be True or False")
    if cu_seqlens_q is not None:
        check_tensor("cu_seqlens_q", cu_seqlens_q)
    if q.dim() < 1:
        raise InvalidArgument(f"q: shape {tuple(q.shape)}; it must be (b, sq, heads, head size)")
    if cu_seqlens_q is not None and cu_seqlens_q.dim() != 1:
        raise InvalidArgument(
            f"cu_seqlens_q: shape {tuple(cu_seqlens_q.shape)}; it must be (b + 1,)"
        )
    batch = q.shape[0] if cu_seqlens_q is None else max(cu_seqlens_q.shape[0] - 1, 0)
    if page_table is None and cache_batch_idx is None and k_cache.dim() and v_cache.dim():
        # As upstream: a cache with room for more sequences serves the first ones.
        if k_cache.shape[0] > batch:
            k_cache = k_cache[:batch]
        if v_cache.shape[0] > batch:
            v_cache = v_cache[:batch]
    left, right = (-1, -1) if window is None else window_pair(window, "window_size")
    if softmax_scale is not None and type(softmax_scale) is not float:
        softmax_scale = real("softmax_scale", softmax_scale)
    options = _packed(
        cu_seqlens_q, _lengths(cache_seqlens, batch, q.device), cache_leftpad,
        None if alibi_slopes is None else _detached("alibi_slopes", alibi_slopes), sinks, page_table,
        cache_batch_idx, max_seqlen_q, causal, left, right, attention_chunk, softmax_scale, softcap, num_splits,
        num_threads, choice.current(),
    )
    try:
        if qv is None:
            return calls.decode(
                q, k_cache, v_cache, options, append, rotary_interleaved, out, want_lse
            )
        with torch.no_grad():
            o, new = Options(*options), Append(*append)
            check_options(o)
            return _decode_with_qv(q, qv, k_cache, v_cache, o, new, out)
    except Error as error:
        raise renamed(error, page_table_name) from None


def _decode_with_qv(
    q: Tensor,
    qv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    o: Any,  # Options
    append: Any,  # Append
    out: Optional[Tensor],
) -> tuple[Tensor, Tensor]:
    """Appends first, in a call of its own, since joined caches may be copies."""
    if append.rotary_cos is not None:
        raise Unsupported(
            "rotary_cos: is given together with qv; turn q and k beforehand, it must be None"
        )
    joined_q, scale = join_qv(q, qv, v_cache, o.softmax_scale)
    if k_cache.shape[:-1] != v_cache.shape[:-1]:
        raise InvalidArgument(
            f"v: shape {tuple(v_cache.shape)}; but for its last size it must be k's"
        )
    if append.k_new is not None:
        calls.decode(q, k_cache, v_cache, o, append, False)
        new = append.k_new.shape[1]
        if append.cu_seqlens_k_new is not None:
            new = append.cu_seqlens_k_new.diff()
        assert o.seqused_k is not None
        o = o._replace(seqused_k=(o.seqused_k + new).to(torch.int32))
    rows, values = side_by_side(k_cache, v_cache)
    o = o._replace(softmax_scale=scale)
    return calls.decode(joined_q, rows, values, o, Append(), False, out)


def _detached(name: str, x: Any) -> Tensor:
    check_tensor(name, x)
    return x.detach()
