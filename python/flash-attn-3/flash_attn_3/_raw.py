"""FlashAttention-3's raw calls: what its functions and its operators both end in.

In eager mode a call goes straight to the library. Where something watches (a compiler, a
dispatch mode, a meta tensor), it goes through operators that have fakes: rocflash's own, and those
of the namespace rocflash_fa3 below for what rocflash has none for.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from rocflash import dropin
from rocflash.dropin import (
    GRADIENTS,
    InvalidArgument,
    Options,
    Unsupported,
    attention_of_tensors,
    attention_with_kvcache,
    check_hint,
    check_options,
    check_pack_gqa,
    check_tensor,
    define,
    is_watched,
    join_qv,
    lse_shape,
    options_of,
    out_shape,
    register_fake,
    side_by_side,
    whole,
    window_pair,
)

# The arguments of a raw call, all of them, by the names of its operator's schema.
RawCall = dict[str, Any]

# Messages about the page table name it as FA3 does, and as the library and FA2 do.
_PAGE_TABLE = "page_table (block_table)"


def check_descales(*descales: Optional[Tensor]) -> None:
    """Descales scale fp8 inputs. With others they are unused, as upstream's; servers always pass
    them. fp8 itself the library refuses by its dtype."""
    for name, x in zip(("q_descale", "k_descale", "v_descale"), descales):
        if x is not None:
            check_tensor(name, x)


def check_schedule(pack_gqa: Any, sm_margin: Any) -> None:
    check_pack_gqa(pack_gqa)
    check_hint("sm_margin", sm_margin)


def check_metadata(x: Optional[Tensor], q: Tensor) -> None:
    """Only dtype, rank and device: looking at the values would wait for a GPU, and servers pass
    slices of a buffer of their own into which they copied the metadata."""
    if x is None:
        return
    check_tensor("scheduler_metadata", x)
    if x.dtype is not torch.int32 or x.dim() != 1 or x.device != q.device:
        raise InvalidArgument(
            f"scheduler_metadata: {x.dtype} of shape {tuple(x.shape)} on {x.device}; it must be "
            f"what get_scheduler_metadata returns, int32 of one dimension on {q.device}"
        )


def _write(name: str, into: Tensor, found: Tensor) -> Tensor:
    """copy_ alone would broadcast and convert."""
    if into.shape != found.shape or into.dtype is not found.dtype or into.device != found.device:
        raise InvalidArgument(
            f"{name}: {into.dtype} of shape {tuple(into.shape)} on {into.device}; it must be "
            f"{found.dtype} of shape {tuple(found.shape)} on {found.device}"
        )
    return into.copy_(found)


# Attention over a cache.

_CACHE = (
    ", Tensor? k_new, Tensor? v_new, Tensor? qv, Tensor? rotary_cos, Tensor? rotary_sin"
    ", Tensor? rotary_seqlens, Tensor? cache_seqlens, Tensor? cache_batch_idx"
    ", Tensor? cache_leftpad, Tensor? page_table, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k_new"
    ", Tensor? sinks, bool rotary_interleaved, SymInt max_seqlen_q, float? softmax_scale"
    ", bool causal, SymInt window_left, SymInt window_right, SymInt attention_chunk"
    ", float softcap, SymInt num_splits) -> (Tensor, Tensor)"
)

_library = torch.library.Library("rocflash_fa3", "FRAGMENT")
# Two operators, since only appending writes to the caches, and a compiler may copy what is written.
define(_library, "read_cache(Tensor q, Tensor k, Tensor v" + _CACHE)
define(_library, "append_to_cache(Tensor q, Tensor(a!) k, Tensor(b!) v" + _CACHE)
define(
    _library,
    "combine(Tensor out_partial, Tensor lse_partial, ScalarType dtype) -> (Tensor, Tensor)",
)


def _cache_kernel(
    q: Tensor, k: Tensor, v: Tensor, k_new: Optional[Tensor], v_new: Optional[Tensor], qv: Optional[Tensor],
    rotary_cos: Optional[Tensor], rotary_sin: Optional[Tensor], rotary_seqlens: Optional[Tensor],
    cache_seqlens: Any, cache_batch_idx: Optional[Tensor], cache_leftpad: Optional[Tensor],
    page_table: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_k_new: Optional[Tensor],
    sinks: Optional[Tensor], rotary_interleaved: bool, max_seqlen_q: int, softmax_scale: Optional[float],
    causal: bool, window_left: int, window_right: int, attention_chunk: int, softcap: float, num_splits: int,
    out: Optional[Tensor] = None, want_lse: bool = True,
) -> tuple[Tensor, Any]:
    if page_table is not None and cache_batch_idx is not None:
        page_table = _rows_of(page_table, cache_batch_idx)
        cache_batch_idx = None
    return attention_with_kvcache(
        q,
        k,
        v,
        k=k_new,
        v=v_new,
        qv=qv,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        # Without rotary_cos nothing is turned, and upstream's tests pass these all the same.
        rotary_seqlens=None if rotary_cos is None else rotary_seqlens,
        rotary_interleaved=rotary_interleaved,
        cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        page_table=page_table,
        page_table_name=_PAGE_TABLE,
        cu_seqlens_q=cu_seqlens_q,
        # Without new keys there is nothing to pack, and SGLang says their lengths all the same.
        cu_seqlens_k_new=None if k_new is None else cu_seqlens_k_new,
        max_seqlen_q=max_seqlen_q,
        softmax_scale=softmax_scale,
        causal=causal,
        window=(window_left, window_right),
        attention_chunk=attention_chunk,
        softcap=softcap,
        sinks=sinks,
        num_splits=num_splits,
        out=out,
        want_lse=want_lse,
    )


def _rows_of(page_table: Tensor, cache_batch_idx: Tensor) -> Tensor:
    """FA3 lets cache_batch_idx say which row of the page table each sequence has."""
    check_tensor("page_table", page_table)
    check_tensor("cache_batch_idx", cache_batch_idx)
    if cache_batch_idx.dim() != 1 or cache_batch_idx.dtype is not torch.int32:
        raise InvalidArgument(
            f"cache_batch_idx: {cache_batch_idx.dtype} of shape {tuple(cache_batch_idx.shape)}; "
            "it must be int32 of shape (b,)"
        )
    if page_table.dim() != 2:
        raise InvalidArgument(
            f"page_table: shape {tuple(page_table.shape)}; it must be (rows, pages)"
        )
    try:
        return page_table.index_select(0, cache_batch_idx)
    except IndexError as error:
        raise InvalidArgument(
            f"cache_batch_idx: {cache_batch_idx.tolist()}; with page_table, of "
            f"{page_table.shape[0]} rows, each must be 0 to {page_table.shape[0] - 1}"
        ) from error


def _cache_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return (
        q.new_empty(out_shape(q.shape, v.shape)),
        q.new_empty(lse_shape(q.shape), dtype=torch.float32),
    )


def over_cache(
    q: Tensor, k: Tensor, v: Tensor, k_new: Optional[Tensor], *rest: Any, out: Optional[Tensor] = None,
    want_lse: bool = True,
) -> tuple[Tensor, Any]:
    """(out, lse) of attention over a cache, appended to first. No gradients.

    `rest` is that of _cache_kernel; cache_seqlens may also be an int.
    """
    for name, x in (("q", q), ("k_cache", k), ("v_cache", v)):
        check_tensor(name, x)
    if rest[4] is not None:
        check_tensor("rotary_seqlens", rest[4])
    if not is_watched(q, k, v):
        return _cache_kernel(q, k, v, k_new, *rest, out, want_lse)
    rest_ = list(rest)
    if isinstance(rest_[5], int):
        cu_seqlens_q = rest_[9]
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        rest_[5] = torch.full((batch,), rest_[5], dtype=torch.int32, device=q.device)
    ops = torch.ops.rocflash_fa3
    operator = ops.read_cache if k_new is None else ops.append_to_cache
    with torch.no_grad():
        found, lse = operator(q, k, v, k_new, *rest_)
        return found if out is None else _write("out", out, found), lse


# Parts of attention, combined.


def check_parts(out_partial: Tensor, lse_partial: Tensor) -> None:
    check_tensor("out_partial", out_partial)
    check_tensor("lse_partial", lse_partial)
    if out_partial.dim() not in (4, 5) or lse_partial.shape != out_partial.shape[:-1]:
        raise InvalidArgument(
            f"lse_partial: shape {tuple(lse_partial.shape)}; it must be that of out_partial, "
            f"{tuple(out_partial.shape)}, without the last size"
        )
    for name, x in (("out_partial", out_partial), ("lse_partial", lse_partial)):
        if x.dtype is not torch.float32:
            raise InvalidArgument(f"{name}: dtype {x.dtype}; it must be float32")
    if out_partial.shape[0] < 1:
        raise InvalidArgument(f"out_partial: shape {tuple(out_partial.shape)}; it has no split")


def _combine_into(out_partial: Tensor, lse_partial: Tensor, out: Tensor) -> Tensor:
    lse = lse_partial.new_empty(lse_partial.shape[1:])
    if out_partial.dim() == 4:
        parts, lses, outs, totals = out_partial[:, None], lse_partial[:, None], out[None], lse[None]
    else:
        parts, lses, outs, totals = out_partial, lse_partial, out, lse
    dropin.combine(parts, lses.transpose(-1, -2), outs, totals.transpose(-1, -2))
    return lse


def _combine_kernel(
    out_partial: Tensor, lse_partial: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    out = out_partial.new_empty(out_partial.shape[1:], dtype=dtype)
    return out, _combine_into(out_partial, lse_partial, out)


def _combine_fake(
    out_partial: Tensor, lse_partial: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return (
        out_partial.new_empty(out_partial.shape[1:], dtype=dtype),
        lse_partial.new_empty(lse_partial.shape[1:]),
    )


def combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of the results of splits over keys. No gradients."""
    check_parts(out_partial, lse_partial)
    if out is not None:
        check_tensor("out", out)
    dtype = out_dtype or (out.dtype if out is not None else out_partial.dtype)
    shape = out_partial.shape[1:]
    if out is not None and (out.shape != shape or out.dtype is not dtype):
        raise InvalidArgument(
            f"out: {out.dtype} of shape {tuple(out.shape)}; it must be {dtype} of shape "
            f"{tuple(shape)}"
        )
    with torch.no_grad():
        if is_watched(out_partial, lse_partial, out_partial if out is None else out):
            found, lse = torch.ops.rocflash_fa3.combine(out_partial, lse_partial, dtype)
            return found if out is None else _write("out", out, found), lse
        if out is None:
            return _combine_kernel(out_partial, lse_partial, dtype)
        return out, _combine_into(out_partial, lse_partial, out)


for _key in ("CPU", "CUDA"):
    _library.impl("read_cache", _cache_kernel, _key)
    _library.impl("append_to_cache", _cache_kernel, _key)
    _library.impl("combine", _combine_kernel, _key)
register_fake("rocflash_fa3::read_cache", _cache_fake)
register_fake("rocflash_fa3::append_to_cache", _cache_fake)
register_fake("rocflash_fa3::combine", _combine_fake)


# Forward and backward without a cache.


def _attend(
    q: Tensor, k: Tensor, v: Tensor, options: Options, out: Optional[Tensor]
) -> tuple[Tensor, Tensor]:
    """(out, lse), with gradients unless `out` is given."""
    watched = is_watched(q, k, v)
    if out is None:
        if q.is_meta:  # no device, so nothing that the library could be asked
            return torch.ops.rocflash.forward(q, k, v, *options, False)[:2]
        return attention_of_tensors(q, k, v, tuple(options))[:2]
    with torch.no_grad():
        if not watched:
            return dropin.forward(q, k, v, options, out=out)[:2]
        found, lse, _ = torch.ops.rocflash.forward(q, k, v, *options, False)
        return _write("out", out, found), lse


def _options(call: RawCall, **more: Any) -> Options:
    """What forward and backward have in common, and what only one of them has."""
    options = options_of(
        cu_seqlens_q=call["cu_seqlens_q"], cu_seqlens_k=call["cu_seqlens_k"], seqused_q=call["seqused_q"],
        seqused_k=call["seqused_k"], max_seqlen_q=whole("max_seqlen_q", call["max_seqlen_q"]),
        max_seqlen_k=whole("max_seqlen_k", call["max_seqlen_k"]), causal=call["is_causal"],
        window_left=call["window_size_left"], window_right=call["window_size_right"],
        softmax_scale=call["softmax_scale"], softcap=call["softcap"], **more,
    )
    check_options(options)
    return options


_ONLY_CACHE = ("k_new", "v_new", "cu_seqlens_k_new", "rotary_cos", "rotary_sin", "kv_batch_idx")


def forward(call: RawCall, sinks: Optional[Tensor] = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, softmax_lse, out_accum, softmax_lse_accum); the last two are upstream's split
    partials, of which there are none here: they are empty.

    What belongs to a cache (k_new, rotary, page_table, kv_batch_idx) has no gradients. `sinks` is
    apart because upstream's operator has no such argument.
    """
    q, k, v = call["q"], call["k"], call["v"]
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    check_descales(call["q_descale"], call["k_descale"], call["v_descale"])
    check_schedule(call["pack_gqa"], call["sm_margin"])
    check_metadata(call["scheduler_metadata"], q)
    if call["out"] is not None:
        check_tensor("out", call["out"])
    if call["q_v"] is not None and call["softmax_scale"] is None and q.dim():
        call["softmax_scale"] = q.shape[-1] ** -0.5  # the raw call's scale knows nothing of q_v
    given = [name for name in _ONLY_CACHE if call[name] is not None]
    if given or (
        call["page_table"] is not None
        and call["cu_seqlens_k"] is None
        and call["seqused_q"] is None
    ):
        for name in ("cu_seqlens_k", "seqused_q"):
            if call[name] is not None:
                raise Unsupported(
                    f"{name}: is given together with {given[0]}, which belongs to a cache; there "
                    "it must be None"
                )
        found = over_cache(
            q, k, v, call["k_new"], call["v_new"], call["q_v"], call["rotary_cos"], call["rotary_sin"],
            call["seqlens_rotary"], call["seqused_k"], call["kv_batch_idx"], call["leftpad_k"],
            call["page_table"], call["cu_seqlens_q"], call["cu_seqlens_k_new"], sinks,
            call["is_rotary_interleaved"], whole("max_seqlen_q", call["max_seqlen_q"]), call["softmax_scale"],
            call["is_causal"], call["window_size_left"], call["window_size_right"], call["attention_chunk"],
            call["softcap"], call["num_splits"], out=call["out"],
        )
    else:
        if call["seqlens_rotary"] is not None:
            check_tensor("seqlens_rotary", call["seqlens_rotary"])
        options = _options(
            call, leftpad_k=call["leftpad_k"], block_table=call["page_table"], num_splits=call["num_splits"],
            attention_chunk=call["attention_chunk"], sinks=sinks,
        )
        if call["q_v"] is not None:
            q, _ = join_qv(q, call["q_v"], v, call["softmax_scale"])
            k, v = side_by_side(k, v)
        found = _attend(q, k, v, options, call["out"])
    result, lse = found
    return result, lse, result.new_empty(0, dtype=torch.float32), lse.new_empty(0)


def backward(call: RawCall) -> tuple[Tensor, ...]:
    """(dq, dk, dv, softmax_d, softmax_lse_log2, dq_accum, dk_accum, dv_accum).

    Gradients go into dq, dk and dv where given. The last four are upstream's scratch memory, of
    which there is none here: they are empty.
    """
    check_hint("sm_margin", call["sm_margin"])
    tensors = [call[name] for name in ("dout", "q", "k", "v", "out", "softmax_lse")]
    dout, q, k, v, out, softmax_lse = tensors
    for name, x in zip(("dout", "q", "k", "v", "out", "softmax_lse"), tensors):
        check_tensor(name, x)
    into = {name: call[name] for name in ("dq", "dk", "dv")}
    for name, given in into.items():
        if given is not None:
            check_tensor(name, given)
    options = _options(call, deterministic=call["deterministic"])
    with torch.no_grad():
        if is_watched(q, k, v) or is_watched(dout, out, softmax_lse):
            wanted = [name in into for name in GRADIENTS]
            found = torch.ops.rocflash.backward(*tensors, *options, wanted)
            dq, dk, dv = (
                x if given is None else _write(name, given, x)
                for x, (name, given) in zip(found, into.items())
            )
        else:
            dq, dk, dv = (
                torch.empty_like(x) if given is None else given
                for x, given in zip((q, k, v), into.values())
            )
            dropin.backward(*tensors, options, into=(dq, dk, dv))
        softmax_d = (dout.float() * out.float()).sum(-1).transpose(-1, -2).contiguous()
        none = [softmax_d.new_empty(0) for _ in range(4)]
    return dq, dk, dv, softmax_d, *none


_COUNTS = (
    "batch_size",
    "max_seqlen_q",
    "max_seqlen_k",
    "num_heads",
    "num_heads_k",
    "headdim",
    "headdim_v",
    "page_size",
    "max_seqlen_k_new",
    "attention_chunk",
    "num_splits",
)


def scheduler_metadata(call: RawCall) -> Tensor:
    """int32 (1,). The library plans each call itself, which takes microseconds, so no call reads
    what this returns."""
    seqused_k, batch_size = call["seqused_k"], call["batch_size"]
    check_tensor("seqused_k", seqused_k)
    for name in _COUNTS:
        check_hint(name, whole(name, call[name]))
    check_schedule(call["pack_gqa"], call["sm_margin"])
    window_pair((call["window_size_left"], call["window_size_right"]), "window_size")
    if seqused_k.dtype is not torch.int32 or seqused_k.shape != (batch_size,):
        raise InvalidArgument(
            f"seqused_k: {seqused_k.dtype} of shape {tuple(seqused_k.shape)}; it must be int32 of "
            f"shape ({batch_size},)"
        )
    return seqused_k.new_zeros(1)
