"""FlashAttention-3's interface, on every device the library knows.

Every argument is honoured, or refused by name: fp8 descales wait for fp8. `pack_gqa`, `sm_margin` and
`scheduler_metadata` only steer how upstream schedules its kernels; they are checked, and since
results never depend on them, any value gives the same answer.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from rocflash import dropin
from rocflash.dropin import (
    InvalidArgument,
    Unsupported,
    attend,
    attention_with_kvcache,
    check_hint,
    check_options,
    check_pack_gqa,
    check_tensor,
    join_qv,
    plain_options,
    side_by_side,
    split_packed,
    whole,
)

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


def maybe_contiguous(x: Optional[Tensor]) -> Optional[Tensor]:
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def _refuse_descales(*descales: Optional[Tensor]) -> None:
    for name, x in zip(("q_descale", "k_descale", "v_descale"), descales):
        if x is not None:
            raise Unsupported(f"{name}: is given; it scales fp8 inputs, which are not supported")


def _check_schedule(pack_gqa: Any, sm_margin: Any) -> None:
    check_pack_gqa(pack_gqa)
    check_hint("sm_margin", sm_margin)


def _func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Optional[Tensor],
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Any,
    attention_chunk: int,
    softcap: float,
    deterministic: bool,
    return_attn_probs: bool,
    s_aux: Optional[Tensor] = None,
    **packed: Any,
) -> Any:
    if qv is not None:
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, x)
        q, softmax_scale = join_qv(q, qv, v, softmax_scale)
        k = side_by_side(k, v, "k", "v")
    found = attend(
        q,
        k,
        v,
        0.0,
        softmax_scale,
        causal,
        window_size,
        softcap,
        None,
        deterministic,
        return_attn_probs,
        sinks=s_aux,
        attention_chunk=attention_chunk,
        **packed,
    )
    return found[:2] if return_attn_probs else found


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """out (b, sq, h, dv), or with return_attn_probs (out, softmax_lse (b, h, sq)).

    qv (b, sq, h, dv) adds qv.v to the scores; attention_chunk shows each query the keys of its own
    chunk only; s_aux (h,) are attention sinks.
    """
    _refuse_descales(q_descale, k_descale, v_descale)
    _check_schedule(pack_gqa, sm_margin)
    return _func(
        q,
        k,
        v,
        qv,
        softmax_scale,
        causal,
        window_size,
        attention_chunk,
        softcap,
        deterministic,
        return_attn_probs,
        s_aux,
        num_splits=num_splits,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: Optional[int] = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, with all three in qkv: (b, s, 3, h, d), or with num_heads_q
    (b, s, num_heads_q + 2 hk, d)."""
    _refuse_descales(q_descale, k_descale, v_descale)
    check_hint("sm_margin", sm_margin)
    if num_heads_q is None:
        q, k, v = split_packed("qkv", qkv, 3, 2, "(batch, seqlen, 3, heads, head size)")
    else:
        check_tensor("qkv", qkv)
        rest = qkv.shape[2] - num_heads_q if qkv.dim() == 4 else -1
        if num_heads_q < 1 or rest < 2 or rest % 2:
            raise InvalidArgument(
                f"num_heads_q: {num_heads_q}; qkv, of shape {tuple(qkv.shape)}, must then be "
                "(batch, seqlen, num_heads_q + 2 * key heads, head size)"
            )
        q, k, v = qkv.split([num_heads_q, rest // 2, rest // 2], dim=2)
    return _func(
        q,
        k,
        v,
        None,
        softmax_scale,
        causal,
        window_size,
        attention_chunk,
        softcap,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """As flash_attn_func, for packed sequences; seqused_q and seqused_k, int32 (b,), shorten them."""
    _refuse_descales(q_descale, k_descale, v_descale)
    _check_schedule(pack_gqa, sm_margin)
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_tensor(name, x)
    return _func(
        q,
        k,
        v,
        qv,
        softmax_scale,
        causal,
        window_size,
        attention_chunk,
        softcap,
        deterministic,
        return_attn_probs,
        s_aux,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        num_splits=num_splits,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    rotary_seqlens: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Optional[Tensor] = None,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """Attention over a cache, appended to in place first. No gradients.

    Returns out, or with return_softmax_lse (out, softmax_lse, out_accum, softmax_lse_accum); the
    last two are upstream's split partials, of which there are none here: they are empty.
    """
    _refuse_descales(q_descale, k_descale, v_descale)
    _check_schedule(pack_gqa, sm_margin)
    _check_metadata(scheduler_metadata)
    out, lse = attention_with_kvcache(
        q,
        k_cache,
        v_cache,
        k=k,
        v=v,
        qv=qv,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved,
        rotary_seqlens=rotary_seqlens,
        cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new,
        max_seqlen_q=whole("max_seqlen_q", max_seqlen_q),
        softmax_scale=softmax_scale,
        causal=causal,
        window=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        sinks=s_aux,
        num_splits=num_splits,
        want_lse=bool(return_softmax_lse),
    )
    if not return_softmax_lse:
        return out
    return out, lse, out.new_empty(0, dtype=torch.float32), lse.new_empty(0)


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> tuple[Tensor, Tensor]:
    """Joins the results of splits over keys: (out, softmax_lse).

    out_partial (splits, b, sq, h, d), lse_partial (splits, b, sq, h), f32; or without b, packed.
    """
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
    packed = out_partial.dim() == 4
    parts, lses = (
        (out_partial[:, None], lse_partial[:, None]) if packed else (out_partial, lse_partial)
    )
    dtype = out_dtype or (out.dtype if out is not None else out_partial.dtype)
    shape = out_partial.shape[1:]
    if out is None:
        out = out_partial.new_empty(shape, dtype=dtype)
    elif out.shape != shape or out.dtype is not dtype:
        raise InvalidArgument(
            f"out: {out.dtype} of shape {tuple(out.shape)}; it must be {dtype} of shape "
            f"{tuple(shape)}"
        )
    lse = lse_partial.new_empty(lse_partial.shape[1:])
    whole_out, whole_lse = (out[None], lse[None]) if packed else (out, lse)
    dropin.combine(parts, lses.transpose(-1, -2), whole_out, whole_lse.transpose(-1, -2))
    return out, lse


_METADATA = 0x0F1A54  # marks the tensor that get_scheduler_metadata makes


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: Optional[int] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_size: Optional[int] = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> Tensor:
    """A plan to pass to flash_attn_with_kvcache. The library plans each call itself, which takes
    microseconds, so this holds nothing but a mark by which it is recognised."""
    check_tensor("cache_seqlens", cache_seqlens)
    check_hint("num_splits", num_splits)
    _check_schedule(pack_gqa, sm_margin)
    return torch.tensor([_METADATA], dtype=torch.int32, device=cache_seqlens.device)


def _check_metadata(x: Optional[Tensor]) -> None:
    if x is None:
        return
    check_tensor("scheduler_metadata", x)
    if x.dtype is not torch.int32 or x.shape != (1,) or int(x) != _METADATA:
        raise InvalidArgument(
            f"scheduler_metadata: {x.dtype} of shape {tuple(x.shape)}; it must come from this "
            "module's get_scheduler_metadata"
        )


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Optional[Tensor] = None,
    v_new: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    out_: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    page_table: Optional[Tensor] = None,
    kv_batch_idx: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    seqlens_rotary: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Optional[Tensor] = None,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, softmax_lse, out_accum, softmax_lse_accum), without autograd; the last two are empty.

    Anything that belongs to a cache (k_new, page_table, kv_batch_idx, rotary) takes that way.
    """
    _refuse_descales(q_descale, k_descale, v_descale)
    _check_schedule(pack_gqa, sm_margin)
    _check_metadata(scheduler_metadata)
    of_cache = {
        "k_new": k_new,
        "v_new": v_new,
        "cu_seqlens_k_new": cu_seqlens_k_new,
        "kv_batch_idx": kv_batch_idx,
        "rotary_cos": rotary_cos,
        "rotary_sin": rotary_sin,
        "seqlens_rotary": seqlens_rotary,
    }
    given = [name for name, x in of_cache.items() if x is not None]
    if given or (page_table is not None and cu_seqlens_k is None):
        for name, x in (("cu_seqlens_k", cu_seqlens_k), ("seqused_q", seqused_q)):
            if x is not None:
                raise Unsupported(
                    f"{name}: is given together with {given[0] if given else 'page_table'}, which "
                    "belongs to a cache; there it must be None"
                )
        out, lse = attention_with_kvcache(
            q,
            k,
            v,
            k=k_new,
            v=v_new,
            qv=qv,
            rotary_cos=rotary_cos,
            rotary_sin=rotary_sin,
            rotary_interleaved=rotary_interleaved,
            rotary_seqlens=seqlens_rotary,
            cache_seqlens=seqused_k,
            cache_batch_idx=kv_batch_idx,
            cache_leftpad=leftpad_k,
            page_table=page_table,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k_new=cu_seqlens_k_new,
            max_seqlen_q=whole("max_seqlen_q", max_seqlen_q),
            softmax_scale=softmax_scale,
            causal=causal,
            window=(window_size_left, window_size_right),
            attention_chunk=attention_chunk,
            softcap=softcap,
            num_splits=num_splits,
            out=out_,
        )
    else:
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, x)
        options = plain_options(
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            leftpad_k=leftpad_k,
            block_table=page_table,
            num_splits=num_splits,
            max_seqlen_q=whole("max_seqlen_q", max_seqlen_q),
            max_seqlen_k=whole("max_seqlen_k", max_seqlen_k),
            causal=causal,
            window_left=window_size_left,
            window_right=window_size_right,
            attention_chunk=attention_chunk,
            softmax_scale=softmax_scale,
            softcap=softcap,
        )
        check_options(options)
        if qv is not None:
            q, scale = join_qv(q, qv, v, softmax_scale)
            options = options._replace(softmax_scale=scale)
            k = side_by_side(k, v, "k", "v")
        out, lse, _ = dropin.forward(q, k, v, options, out=out_)
    return out, lse, out.new_empty(0, dtype=torch.float32), lse.new_empty(0)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    sequed_q: Optional[Tensor] = None,
    sequed_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    dq: Optional[Tensor] = None,
    dk: Optional[Tensor] = None,
    dv: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> Tensor:
    """softmax_d; gradients go into dq, dk and dv. (`sequed_` is upstream's own spelling.)"""
    check_hint("sm_margin", sm_margin)
    tensors = (dout, q, k, v, out, softmax_lse)
    for name, x in zip(("dout", "q", "k", "v", "out", "softmax_lse"), tensors):
        check_tensor(name, x)
    options = plain_options(
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=sequed_q,
        seqused_k=sequed_k,
        max_seqlen_q=whole("max_seqlen_q", max_seqlen_q),
        max_seqlen_k=whole("max_seqlen_k", max_seqlen_k),
        causal=is_causal,
        window_left=window_size_left,
        window_right=window_size_right,
        softmax_scale=softmax_scale,
        softcap=softcap,
        deterministic=deterministic,
    )
    check_options(options)
    if dq is not None or dk is not None or dv is not None:
        dropin.backward(dout, q, k, v, out, softmax_lse, options, into=(dq, dk, dv, None))
    return (dout.float() * out.float()).sum(-1).transpose(-1, -2).contiguous()
