"""FlashAttention-3's raw calls, which implement its functions and its operators.

In eager mode they call the library directly. Under a compiler, a dispatch mode or with meta
tensors they call operators with fake implementations: those of rocflash, and those of the namespace
rocflash_fa3 below.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from rocflash import dropin
from rocflash.dropin import (
    RESULTS,
    InvalidArgument,
    Options,
    Unsupported,
    as_int,
    attention_of_tensors,
    attention_with_kvcache,
    check_hint,
    check_options,
    check_pack_gqa,
    check_tensor,
    define,
    join_qv,
    needs_operator,
    options_of,
    register_fake,
    side_by_side,
    window_pair,
)

# All arguments of a raw call, by the names of its operator's schema.
RawCall = dict[str, Any]

# Messages name the page table as in FA3, and as in the library and FA2.
_PAGE_TABLE = "page_table (block_table)"


def used_descales(q: Any, k: Any, v: Any, *descales: Optional[Tensor]) -> dict[str, Any]:
    """k_descale and v_descale of quantized k and v. With other dtypes they are unused, as in
    upstream; servers always pass them. Quantized q are not supported.
    """
    for name, x in zip(("q_descale", "k_descale", "v_descale"), descales):
        if x is not None:
            check_tensor(name, x)
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    if q.dtype.itemsize == 1:
        raise InvalidArgument(
            f"q has dtype {q.dtype}; it must be float32, float16 or bfloat16 (only k and v may be "
            "quantized)"
        )
    return {
        name: x if of.dtype.itemsize == 1 else None
        for name, of, x in zip(("k_descale", "v_descale"), (k, v), descales[1:])
    }


def check_schedule(pack_gqa: Any, sm_margin: Any) -> None:
    check_pack_gqa(pack_gqa)
    check_hint("sm_margin", sm_margin)


def check_metadata(x: Optional[Tensor], q: Tensor) -> None:
    """Checks only dtype, rank and device: reading values would synchronize with a GPU, and servers
    pass slices of a buffer into which they copied the metadata."""
    if x is None:
        return
    check_tensor("scheduler_metadata", x)
    if x.dtype is not torch.int32 or x.dim() != 1 or x.device != q.device:
        raise InvalidArgument(
            f"scheduler_metadata is {x.dtype} of shape {tuple(x.shape)} on {x.device}; it must be "
            f"what get_scheduler_metadata returns, int32 of one dimension on {q.device}"
        )


def _write(name: str, into: Tensor, found: Tensor) -> Tensor:
    """Copies without the broadcasts and conversions of copy_."""
    if into.shape != found.shape or into.dtype is not found.dtype or into.device != found.device:
        raise InvalidArgument(
            f"{name} is {into.dtype} of shape {tuple(into.shape)} on {into.device}; it must be "
            f"{found.dtype} of shape {tuple(found.shape)} on {found.device}"
        )
    return into.copy_(found)


# Attention over a KV cache.

_library = torch.library.Library("rocflash_fa3", "FRAGMENT")
define(
    _library,
    "combine(Tensor out_partial, Tensor lse_partial, ScalarType dtype) -> (Tensor, Tensor)",
)


def _rows_of(page_table: Tensor, cache_batch_idx: Tensor) -> Tensor:
    """The page table rows of cache_batch_idx: in FA3 it indexes the page table."""
    check_tensor("page_table", page_table)
    check_tensor("cache_batch_idx", cache_batch_idx)
    if cache_batch_idx.dim() != 1 or cache_batch_idx.dtype is not torch.int32:
        raise InvalidArgument(
            f"cache_batch_idx is {cache_batch_idx.dtype} of shape {tuple(cache_batch_idx.shape)}; "
            "it must be int32 of shape (b,)"
        )
    if page_table.dim() != 2:
        raise InvalidArgument(
            f"page_table has shape {tuple(page_table.shape)}; it must be (rows, pages)"
        )
    try:
        return page_table.index_select(0, cache_batch_idx)
    except IndexError as error:
        raise InvalidArgument(
            f"cache_batch_idx is {cache_batch_idx.tolist()}; with page_table, of "
            f"{page_table.shape[0]} rows, each must be 0 to {page_table.shape[0] - 1}"
        ) from error


def over_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, **given: Any) -> tuple[Tensor, Any]:
    """(out, lse) of attention over a KV cache after an append. No gradients.

    `given` are arguments of rocflash's cache call; here cache_batch_idx may index a page table.
    """
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, x)
    if given.get("rotary_seqlens") is not None:
        check_tensor("rotary_seqlens", given["rotary_seqlens"])
    if given.get("page_table") is not None and given.get("cache_batch_idx") is not None:
        given["page_table"] = _rows_of(given["page_table"], given.pop("cache_batch_idx"))
    if given.get("rotary_cos") is None:  # it is unused then, but upstream's tests pass it
        given["rotary_seqlens"] = None
    if given.get("k") is None:  # it is unused then, but SGLang passes it
        given["cu_seqlens_k_new"] = None
    return attention_with_kvcache(q, k_cache, v_cache, page_table_name=_PAGE_TABLE, **given)


# Combine.


def check_parts(out_partial: Tensor, lse_partial: Tensor) -> None:
    check_tensor("out_partial", out_partial)
    check_tensor("lse_partial", lse_partial)
    if out_partial.dim() not in (4, 5) or lse_partial.shape != out_partial.shape[:-1]:
        raise InvalidArgument(
            f"lse_partial has shape {tuple(lse_partial.shape)}; it must be that of out_partial, "
            f"{tuple(out_partial.shape)}, without the last size"
        )
    for name, x in (("out_partial", out_partial), ("lse_partial", lse_partial)):
        if x.dtype is not torch.float32:
            raise InvalidArgument(f"{name} has dtype {x.dtype}; it must be float32")
    if out_partial.shape[0] < 1:
        raise InvalidArgument(
            f"out_partial has shape {tuple(out_partial.shape)}; it must have at least one split"
        )


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
            f"out is {out.dtype} of shape {tuple(out.shape)}; it must be {dtype} of shape "
            f"{tuple(shape)}"
        )
    with torch.no_grad():
        if needs_operator(out_partial, lse_partial, out_partial if out is None else out):
            found, lse = torch.ops.rocflash_fa3.combine(out_partial, lse_partial, dtype)
            return found if out is None else _write("out", out, found), lse
        if out is None:
            return _combine_kernel(out_partial, lse_partial, dtype)
        return out, _combine_into(out_partial, lse_partial, out)


for _key in ("CPU", "CUDA"):
    _library.impl("combine", _combine_kernel, _key)
register_fake("rocflash_fa3::combine", _combine_fake)


# Forward and backward without a cache.


def _attend(
    q: Tensor, k: Tensor, v: Tensor, options: Options, out: Optional[Tensor]
) -> tuple[Tensor, Tensor]:
    """(out, lse), with gradients unless `out` is given."""
    by_operator = needs_operator(q, k, v)
    if out is None:
        if q.is_meta:  # no device that the library could be queried for
            return torch.ops.rocflash.forward(q, k, v, *options, False)[:2]
        return attention_of_tensors(q, k, v, tuple(options))[:2]
    with torch.no_grad():
        if not by_operator:
            return dropin.forward(q, k, v, options, out=out)[:2]
        found, lse, _ = torch.ops.rocflash.forward(q, k, v, *options, False)
        return _write("out", out, found), lse


def _options(call: RawCall, **more: Any) -> Options:
    """The options of forward and backward."""
    options = options_of(
        cu_seqlens_q=call["cu_seqlens_q"],
        cu_seqlens_k=call["cu_seqlens_k"],
        seqused_q=call["seqused_q"],
        seqused_k=call["seqused_k"],
        max_seqlen_q=as_int("max_seqlen_q", call["max_seqlen_q"]),
        max_seqlen_k=as_int("max_seqlen_k", call["max_seqlen_k"]),
        causal=call["is_causal"],
        window_left=call["window_size_left"],
        window_right=call["window_size_right"],
        softmax_scale=call["softmax_scale"],
        softcap=call["softcap"],
        **more,
    )
    check_options(options)
    return options


_ONLY_CACHE = ("k_new", "v_new", "cu_seqlens_k_new", "rotary_cos", "rotary_sin", "kv_batch_idx")


def forward(call: RawCall, sinks: Optional[Tensor] = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, softmax_lse, out_accum, softmax_lse_accum); the last two are upstream's partial
    results of splits, which are empty here.

    KV cache arguments (k_new, rotary, page_table, kv_batch_idx) are not supported by backward.
    `sinks` is separate because upstream's operator has no such argument.
    """
    q, k, v = call["q"], call["k"], call["v"]
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    descales = used_descales(q, k, v, call["q_descale"], call["k_descale"], call["v_descale"])
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
                    f"{name} is given together with {given[0]}, which belongs to a cache; with "
                    "that "
                    "it must be None"
                )
        found = over_cache(
            q,
            k,
            v,
            k=call["k_new"],
            v=call["v_new"],
            qv=call["q_v"],
            rotary_cos=call["rotary_cos"],
            rotary_sin=call["rotary_sin"],
            rotary_seqlens=call["seqlens_rotary"],
            rotary_interleaved=call["is_rotary_interleaved"],
            cache_seqlens=call["seqused_k"],
            cache_batch_idx=call["kv_batch_idx"],
            cache_leftpad=call["leftpad_k"],
            page_table=call["page_table"],
            **descales,
            cu_seqlens_q=call["cu_seqlens_q"],
            cu_seqlens_k_new=call["cu_seqlens_k_new"],
            sinks=sinks,
            max_seqlen_q=as_int("max_seqlen_q", call["max_seqlen_q"]),
            softmax_scale=call["softmax_scale"],
            causal=call["is_causal"],
            window=(call["window_size_left"], call["window_size_right"]),
            attention_chunk=call["attention_chunk"],
            softcap=call["softcap"],
            num_splits=call["num_splits"],
            out=call["out"],
        )
    else:
        if call["seqlens_rotary"] is not None:
            check_tensor("seqlens_rotary", call["seqlens_rotary"])
        options = _options(
            call,
            leftpad_k=call["leftpad_k"],
            block_table=call["page_table"],
            **descales,
            num_splits=call["num_splits"],
            attention_chunk=call["attention_chunk"],
            sinks=sinks,
        )
        if call["q_v"] is not None:
            q, _ = join_qv(q, call["q_v"], v, call["softmax_scale"])
            k, v = side_by_side(k, v)
        found = _attend(q, k, v, options, call["out"])
    result, lse = found
    return result, lse, result.new_empty(0, dtype=torch.float32), lse.new_empty(0)


def backward(call: RawCall) -> tuple[Tensor, ...]:
    """(dq, dk, dv, softmax_d, softmax_lse_log2, dq_accum, dk_accum, dv_accum).

    Gradients are written to dq, dk and dv if given. The last four are upstream's scratch memory and
    empty here.
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
        if needs_operator(q, k, v) or needs_operator(dout, out, softmax_lse):
            wanted = [name in into or name == "delta" for name in RESULTS]
            found = torch.ops.rocflash.backward(*tensors, *options, wanted)
            softmax_d = found[-1]
            dq, dk, dv = (
                x if given is None else _write(name, given, x)
                for x, (name, given) in zip(found, into.items())
            )
        else:
            dq, dk, dv = (
                torch.empty_like(x) if given is None else given
                for x, given in zip((q, k, v), into.values())
            )
            alone = tuple(name == "delta" for name in RESULTS)
            softmax_d = dropin.backward(
                dout, q, k, v, out, softmax_lse, options, alone, (dq, dk, dv)
            )[-1]
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
    """int32 (1,). It is unused: the library computes its launch plan in each call, within
    microseconds."""
    seqused_k, batch_size = call["seqused_k"], call["batch_size"]
    check_tensor("seqused_k", seqused_k)
    for name in _COUNTS:
        check_hint(name, as_int(name, call[name]))
    check_schedule(call["pack_gqa"], call["sm_margin"])
    window_pair((call["window_size_left"], call["window_size_right"]), "window_size")
    if seqused_k.dtype is not torch.int32 or seqused_k.shape != (batch_size,):
        raise InvalidArgument(
            f"seqused_k is {seqused_k.dtype} of shape {tuple(seqused_k.shape)}; it must be int32 "
            "of "
            f"shape ({batch_size},)"
        )
    return seqused_k.new_zeros(1)
