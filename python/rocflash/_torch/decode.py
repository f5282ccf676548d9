"""Attention over a KV cache with append, paging and rotary embedding, by rocflash_decode.

It maps flash_attn's conventions to that call, and messages use flash_attn's names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor

from .._c import abi, choice, shapes
from .._c.options import (
    APPENDED,
    AT,
    CALLERS_NAMES,
    NAMES,
    SCHEMA,
    Append,
    CacheCall,
    Options,
    appended,
    cache_options,
    renamed,
)
from ..errors import Error, InvalidArgument, Unsupported
from . import autograd, calls, capacity
from .options import check_options, check_tensor, real
from .plan import current_stream
from .route import OPERATOR, is_compiling, modes, route, transforms_active

# The callers' names of the arguments of append.
_APPENDED = tuple(CALLERS_NAMES.get(name, name) for name in APPENDED)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _max_head_dim() -> int:
    return int(abi.limits().max_head_dim)


def join_qv(q: Tensor, qv: Any, v: Tensor, softmax_scale: Optional[float]) -> tuple[Tensor, float]:
    """FA3's qv: scores q.k + qv.v are those of (qv, q) with (v, k), concatenated."""
    check_tensor("qv", qv)
    if q.dim() < 1 or v.dim() < 1:
        raise InvalidArgument(
            f"q has shape {tuple(q.shape)}, and v {tuple(v.shape)}; with qv both must have 3 or 4 "
            "dimensions"
        )
    shape = (*q.shape[:-1], v.shape[-1])
    if qv.shape != shape or qv.dtype is not q.dtype or qv.device != q.device:
        raise InvalidArgument(
            f"qv is {qv.dtype} of shape {tuple(qv.shape)}; it must be as q with the head dimension "
            f"of v, {q.dtype} of shape {shape}"
        )
    joined = q.shape[-1] + qv.shape[-1]
    most = _max_head_dim()
    if joined > most:
        raise Unsupported(
            f"qv has head dimension {qv.shape[-1]}, and q {q.shape[-1]}; together they must be at "
            f"most {most}"
        )
    return torch.cat((qv, q), dim=-1), joined**-0.5 if softmax_scale is None else softmax_scale


def side_by_side(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Values and keys concatenated in one row, for absorbed queries, and the values as its first
    columns.

    Each row is then read once for both products. Nothing is copied if k follows v in memory, as in
    the latent KV cache of MLA.
    """
    if k.shape[:-1] != v.shape[:-1] or k.dtype is not v.dtype or k.device != v.device:
        raise InvalidArgument(
            f"v is {v.dtype} of shape {tuple(v.shape)} on {v.device}; with qv it must be as "
            f"k but for the last size: {k.dtype} of shape {tuple(k.shape)} on {k.device}"
        )
    if v.dtype.itemsize == 1:
        raise Unsupported(
            f"qv is given and v has dtype {v.dtype}; quantized keys and values have a scale each, "
            "so it must be None"
        )
    columns = v.shape[-1]
    if _follows(k, v):
        rows = v.as_strided((*v.shape[:-1], columns + k.shape[-1]), v.stride())
    else:
        rows = torch.cat((v, k), dim=-1)
    return rows, rows[..., :columns]


def _follows(k: Tensor, v: Tensor) -> bool:
    """Whether each row of k follows that of v in memory."""
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


_ROWS = 256  # lengths per table


@lru_cache(maxsize=16)
def _table(device: torch.device, stream: int, columns: int, first: int) -> Tensor:
    """(_ROWS, columns): row n has the length first + n for every sequence. Never written to."""
    lengths = torch.arange(first, first + _ROWS, dtype=torch.int32, device=device)
    return lengths[:, None].expand(-1, columns).contiguous()


def _equal_lengths(length: int, batch: int, device: torch.device) -> Tensor:
    """One length for all sequences. On a GPU it is a row of a table, so that only every 256th
    length launches a kernel; each stream has its own tables, which no graph captures.
    """
    traced = is_compiling() or modes() or transforms_active()
    if device.type != "cuda" or traced or torch.cuda.is_current_stream_capturing():
        return torch.full((batch,), length, dtype=torch.int32, device=device)
    with torch.inference_mode(False):
        columns = max(-(-batch // 4) * 4, 4)  # rows aligned to 16 bytes
        table = _table(device, current_stream(device.index or 0), columns, length // _ROWS * _ROWS)
        return table[length % _ROWS, :batch]


def _lengths(cache_seqlens: Any, batch: int, device: torch.device) -> Optional[Tensor]:
    if cache_seqlens is None or isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    if isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool):
        if not 0 <= cache_seqlens < 2**31:
            raise InvalidArgument(f"cache_seqlens is {cache_seqlens}; it must be 0 to 2**31 - 1")
        return _equal_lengths(cache_seqlens, batch, device)
    raise TypeError(
        f"cache_seqlens has type {type(cache_seqlens).__name__}; it must be an int or an int32 "
        "tensor"
    )


def attention_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, **given: Any
) -> tuple[Tensor, Any]:
    """(out, lse), lse None unless requested. No gradients; a rejected call writes nothing.

    q is (b, sq, h, d), or packed with cu_seqlens_q; the caches are (b, length, hk, d) or, with a
    page table, (pages, page size, hk, d). `given` are fields of CacheCall (_c/options.py);
    cache_seqlens counts the keys before the new ones.
    """
    c = CacheCall(**given)
    check_tensor("q", q)
    check_tensor("k_cache", k_cache)
    check_tensor("v_cache", v_cache)
    append = appended(c)
    for name, x in zip(_APPENDED, append):
        if x is not None:
            check_tensor(name, x)
    if not isinstance(c.rotary_interleaved, (bool, int)):
        raise TypeError(f"rotary_interleaved is {c.rotary_interleaved!r}; it must be True or False")
    if c.cu_seqlens_q is not None:
        check_tensor("cu_seqlens_q", c.cu_seqlens_q)
        if c.cu_seqlens_q.dim() != 1:
            raise InvalidArgument(
                f"cu_seqlens_q has shape {tuple(c.cu_seqlens_q.shape)}; it must be (b + 1,)"
            )
    if q.dim() < 1:
        raise InvalidArgument(
            f"q has shape {tuple(q.shape)}; it must be (b, sq, heads, head dimension)"
        )
    batch = q.shape[0] if c.cu_seqlens_q is None else max(c.cu_seqlens_q.shape[0] - 1, 0)
    if c.page_table is None and c.cache_batch_idx is None and k_cache.dim() and v_cache.dim():
        # As in upstream, a cache with capacity for more sequences is used for the first ones.
        if k_cache.shape[0] > batch:
            k_cache = k_cache[:batch]
        if v_cache.shape[0] > batch:
            v_cache = v_cache[:batch]
    if c.softmax_scale is not None and type(c.softmax_scale) is not float:
        c = c._replace(softmax_scale=real("softmax_scale", c.softmax_scale))
    if c.alibi_slopes is not None:
        c = c._replace(alibi_slopes=_detached("alibi_slopes", c.alibi_slopes))
    lengths = _lengths(c.cache_seqlens, batch, q.device)
    options = cache_options(c, lengths, choice.for_operator())
    if _is_traced(q, k_cache, v_cache):
        check_options(options)
        of_operator = (*append, bool(c.rotary_interleaved), c.page_table_name)
        return _by_operator(q, k_cache, v_cache, c, options, of_operator)
    if options[-1] == choice.FROM_CONTEXT:
        options = (*options[:-1], choice.current())
    if q.is_cuda and c.page_table is not None:
        check_tensor("page_table", c.page_table)
        capacity.check(k_cache, c)
    try:
        if c.qv is None:
            return calls.decode(
                q, k_cache, v_cache, options, append, c.rotary_interleaved, c.out, c.want_lse
            )
        with torch.no_grad():
            o, new = Options(*options), Append(*append)
            check_options(o)
            return _decode_with_qv(q, c.qv, k_cache, v_cache, o, new, c.out)
    except Error as error:
        raise renamed(error, c.page_table_name) from None


# Operators for compilers, dispatch modes, tensor subclasses and meta tensors. There are two,
# because only append mutates the caches, and functionalization copies mutated tensors.

_INPUTS = f"Tensor? qv, {SCHEMA}, {', '.join(f'Tensor? {name}' for name in APPENDED)}"
_OTHERS = "bool rotary_interleaved, str page_table_name) -> (Tensor out, Tensor lse)"


def _is_traced(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> bool:
    return route(q, k_cache, v_cache) == OPERATOR or q.is_meta


def _by_operator(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    c: Any,
    options: tuple[Any, ...],
    given: tuple[Any, ...],
) -> tuple[Tensor, Any]:
    ops, out = torch.ops.rocflash, c.out
    operator = ops.decode if given[0] is None else ops.decode_append
    with torch.no_grad():
        found, lse = operator(q, k_cache, v_cache, c.qv, *options, *given)
        if out is not None:
            check_tensor("out", out)
            if (
                out.shape != found.shape
                or out.dtype is not found.dtype
                or out.device != found.device
            ):
                raise InvalidArgument(
                    f"out is {out.dtype} of shape {tuple(out.shape)} on {out.device}; it must be "
                    f"{found.dtype} of shape "
                    f"{tuple(found.shape)} on {found.device}"
                )
            found = out.copy_(found)
    return found, lse if c.want_lse else None


def _kernel(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, qv: Optional[Tensor], *rest: Any
) -> tuple[Tensor, Tensor]:
    options, append = autograd.with_a_backend(rest[: len(NAMES)]), rest[len(NAMES) : -2]
    try:
        if qv is None:
            return calls.decode(q, k_cache, v_cache, options, append, rest[-2])
        return _decode_with_qv(q, qv, k_cache, v_cache, Options(*options), Append(*append), None)
    except Error as error:
        raise renamed(error, rest[-1]) from None


def _fake(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, qv: Optional[Tensor], *rest: Any
) -> tuple[Tensor, Tensor]:
    shapes.check_ranks(
        q.shape, k_cache.shape, v_cache.shape, rest[AT["cu_seqlens_q"]] is not None, False
    )
    return (
        q.new_empty(shapes.out_shape(q.shape, v_cache.shape)),
        q.new_empty(shapes.lse_shape(q.shape), dtype=torch.float32),
    )


autograd.register_operator(
    autograd.library,
    f"decode(Tensor q, Tensor k_cache, Tensor v_cache, {_INPUTS}, {_OTHERS}",
    _kernel,
    _fake,
)
autograd.register_operator(
    autograd.library,
    f"decode_append(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, {_INPUTS}, {_OTHERS}",
    _kernel,
    _fake,
)


def _decode_with_qv(
    q: Tensor,
    qv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    o: Any,  # Options
    append: Any,  # Append
    out: Optional[Tensor],
) -> tuple[Tensor, Tensor]:
    """Appends in a separate call, since concatenated caches may be copies."""
    if append.rotary_cos is not None:
        raise Unsupported(
            "rotary_cos is given together with qv; it must be None; rotate q and k before the call"
        )
    joined_q, scale = join_qv(q, qv, v_cache, o.softmax_scale)
    if k_cache.shape[:-1] != v_cache.shape[:-1]:
        raise InvalidArgument(
            f"v has shape {tuple(v_cache.shape)}; but for its last size it must be k's"
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
