"""FlashAttention-3's interface on every device that the library supports.

Every argument is supported, or rejected by name. k and v may be quantized to fp8 or int8, with
`k_descale` and `v_descale`; q may not. With other dtypes descales are unused, as in upstream.
`pack_gqa`, `sm_margin` and `scheduler_metadata` only affect the scheduling of upstream's kernels;
they are validated and have no effect.

Importing this module registers torch.ops.flash_attn_3, as in upstream, unless another package has
registered it; `operators_served_by` names the package that implements the operators.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from flash_attn_3 import _raw, _server_arguments
from flash_attn_3._operators import named
from flash_attn_3._operators import served_by as operators_served_by
from flash_attn_3._raw import check_metadata, check_schedule, used_descales
from rocflash.dropin import (
    InvalidArgument,
    as_int,
    attend,
    check_hint,
    check_tensor,
    join_qv,
    side_by_side,
    split_packed,
    window_pair,
)

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
    "operators_served_by",
]

flash_attn_3_gpu = torch.ops.flash_attn_3


def maybe_contiguous(x: Optional[Tensor]) -> Optional[Tensor]:
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def round_up_headdim(head_size: int) -> int:
    """The head dimension of upstream's kernel for this one. Head dimensions are not rounded up
    here.
    """
    for size in (64, 96, 128, 192):
        if head_size <= size:
            return size
    return 256


def _one_of(name: str, value: Any, other: str, other_value: Any, default: Any) -> Any:
    """The value of an argument with two names in different versions of upstream.

    Both names may be given, as by callers that pass all arguments of the signature, with one value.
    """
    if other_value is None:
        return value
    if value in (default, other_value):
        return other_value
    raise InvalidArgument(
        f"{other} is {other_value!r}, but {name} is {value!r}; they must be equal"
    )


def _sides(left: Any, right: Any, window_size: Any) -> tuple[int, int]:
    """window_size_left and window_size_right, or window_size as in upstream 2.8.3."""
    if isinstance(left, (tuple, list)):
        raise InvalidArgument(
            f"window_size_left is {left!r}; it must be an integer, and a pair must be passed as "
            "window_size"
        )
    pair = None if window_size is None else tuple(window_pair(window_size, "window_size"))
    return _one_of(
        "(window_size_left, window_size_right)", (left, right), "window_size", pair, (-1, -1)
    )


def _scale_of_both(q: Tensor, qv: Optional[Tensor], scale: Optional[float]) -> Optional[float]:
    """The functions' default scale uses the head dimensions of q and qv; the raw call's that of q
    only.
    """
    if scale is not None or qv is None:
        return scale
    return (q.shape[-1] + qv.shape[-1]) ** -0.5


def _func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Optional[Tensor],
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Any,
    attention_chunk: Optional[int],
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
        k, v = side_by_side(k, v)
    found = attend(
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=None,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
        sinks=s_aux,
        attention_chunk=attention_chunk or 0,
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
    attention_chunk: Optional[int] = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """Attention of q over k and v, with gradients.

    q: (b, sq, h, d), f16, bf16 or f32.
    k: (b, sk, hk, d); h is a multiple of hk (MQA, GQA).
    v: (b, sk, hk, dv).
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    qv: (b, sq, h, dv), adds qv v^T to the scores, as in MLA.
    k_descale, v_descale: f32, factors of quantized k and v: (b, hk), or as of rocflash.attention.
    q_descale: unused, since q is not quantized.
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    attention_chunk: 0, or the size of chunks; a query attends only to keys of its own chunk.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    num_splits: splits of the keys; 0: the library chooses.
    pack_gqa: a hint of upstream, without effect here.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    sm_margin: a hint of upstream, without effect here.
    return_attn_probs: also return softmax_lse.
    s_aux: (h,), attention sinks: one more logit for each head that has weight but no value.

    Returns out (b, sq, h, dv) or, with return_attn_probs, (out, softmax_lse (b, h, sq) in f32).
    """
    descales = used_descales(q, k, v, q_descale, k_descale, v_descale)
    check_schedule(pack_gqa, sm_margin)
    return _func(
        q,
        k,
        v,
        qv=qv,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
        s_aux=s_aux,
        **descales,
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
    attention_chunk: Optional[int] = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: Optional[int] = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func with q, k and v in one tensor.

    qkv: (b, s, 3, h, d) or, with num_heads_q, (b, s, num_heads_q + 2 hk, d).
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    k_descale, v_descale: f32, factors of quantized k and v: (b, hk), or as of rocflash.attention.
    q_descale: unused, since q is not quantized.
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    attention_chunk: 0, or the size of chunks; a query attends only to keys of its own chunk.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    num_heads_q: the number of query heads, for fewer key heads.
    sm_margin: a hint of upstream, without effect here.
    return_attn_probs: also return softmax_lse.

    Returns out (b, sq, h, dv) or, with return_attn_probs, (out, softmax_lse (b, h, sq) in f32).
    """
    check_hint("sm_margin", sm_margin)
    if num_heads_q is None:
        q, k, v = split_packed("qkv", qkv, 3, 2, "(batch, seqlen, 3, heads, head dimension)")
    else:
        check_tensor("qkv", qkv)
        rest = qkv.shape[2] - num_heads_q if qkv.dim() == 4 else -1
        if num_heads_q < 1 or rest < 2 or rest % 2:
            raise InvalidArgument(
                f"num_heads_q is {num_heads_q}; qkv, of shape {tuple(qkv.shape)}, must then be "
                "(batch, seqlen, num_heads_q + 2 * key heads, head dimension)"
            )
        q, k, v = qkv.split([num_heads_q, rest // 2, rest // 2], dim=2)
    used_descales(q, k, v, q_descale, k_descale, v_descale)
    return _func(
        q,
        k,
        v,
        qv=None,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: Any = (-1, -1),
    attention_chunk: Optional[int] = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
    **server_arguments: Any,
) -> Any:
    """flash_attn_func for varlen sequences in packed tensors.

    q: (total_q, h, d), the sequences one after the other.
    k, v: (total_k, hk, d) and (total_k, hk, dv).
    cu_seqlens_q, cu_seqlens_k: int32 (b + 1,), the begins of the sequences. With a page_table,
    cu_seqlens_k may be left out.
    max_seqlen_q, max_seqlen_k: bounds on the lengths; computed if absent, which synchronizes with
    a GPU.
    seqused_q, seqused_k: int32 (b,), used rows of each sequence.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    qv: (total_q, h, dv), adds qv v^T to the scores, as in MLA.
    k_descale, v_descale: f32, factors of quantized k and v: (b, hk), or as of rocflash.attention.
    q_descale: unused, since q is not quantized.
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    attention_chunk: 0, or the size of chunks; a query attends only to keys of its own chunk.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    num_splits: splits of the keys; 0: the library chooses.
    pack_gqa: a hint of upstream, without effect here.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    sm_margin: a hint of upstream, without effect here.
    return_attn_probs: also return softmax_lse.
    s_aux: (h,), attention sinks: one more logit for each head that has weight but no value.
    server_arguments: arguments of servers' builds, such as page_table and out; without gradients.

    Returns out (total_q, h, dv) or, with return_attn_probs, (out, softmax_lse (h, total_q) in
    f32).
    """
    check_schedule(pack_gqa, sm_margin)
    if server_arguments:
        extra = _server_arguments.read(
            "flash_attn_varlen_func", server_arguments, s_aux=s_aux, qv=qv
        )
        s_aux, qv = extra.s_aux, extra.qv
        return_attn_probs = return_attn_probs or extra.return_softmax_lse
        if extra.only_qv:
            q, k, qv = _server_arguments.only_values(q, k, qv), v, None
    descales = used_descales(q, k, v, q_descale, k_descale, v_descale)
    if server_arguments:
        check_metadata(extra.scheduler_metadata, q)
        if extra.page_table is not None or extra.out is not None:
            _server_arguments.refuse_gradients(
                "out" if extra.page_table is None else "page_table", q, k, v
            )
            found = _flash_attn_forward(
                q,
                k,
                v,
                qv=qv,
                out_=extra.out,
                cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_k=cu_seqlens_k,
                seqused_q=seqused_q,
                seqused_k=seqused_k,
                max_seqlen_q=max_seqlen_q,
                max_seqlen_k=max_seqlen_k,
                page_table=extra.page_table,
                softmax_scale=_scale_of_both(q, qv, softmax_scale),
                causal=causal,
                window_size=(-1, -1) if window_size is None else window_size,
                attention_chunk=attention_chunk or 0,
                softcap=softcap,
                num_splits=num_splits,
                **descales,
                _sinks=s_aux,
            )
            return found[:2] if return_attn_probs else found[0]
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_tensor(name, x)
    return _func(
        q,
        k,
        v,
        qv=qv,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
        s_aux=s_aux,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        **descales,
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
    attention_chunk: Optional[int] = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Optional[Tensor] = None,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    s_aux: Optional[Tensor] = None,
    **server_arguments: Any,
) -> Any:
    """Attention over a KV cache, to which k and v, if given, are first appended in place.

    No gradients.

    q: (b, sq, h, d), or packed (total_q, h, d) with cu_seqlens_q.
    k_cache, v_cache: (b_c, s_c, hk, d), or pages (pages, page size, hk, d) with page_table.
    k, v: (b, new, hk, d), or packed with cu_seqlens_k_new: appended after the keys that
    cache_seqlens counts.
    qv: (b, sq, h, dv), adds qv v^T to the scores, as in MLA.
    rotary_cos, rotary_sin: (positions, r / 2), rotate the first r columns of q and k.
    cache_seqlens: an int or int32 (b,), the keys of each sequence before the new ones.
    cache_batch_idx: int32 (b,), the entry of the caches of each sequence.
    cache_leftpad: int32 (b,), keys to skip at the begin of each sequence.
    page_table: int32 (b, pages), the pages of each sequence.
    cu_seqlens_q, cu_seqlens_k_new: int32 (b + 1,), the begins of varlen sequences of q and of k.
    max_seqlen_q: with cu_seqlens_q, a bound on the lengths of the queries.
    rotary_seqlens: int32 (b,), the first position of the rotation; that of the first new key
    unless given.
    k_descale, v_descale: f32, factors of quantized k and v: (b, hk), or as of rocflash.attention.
    q_descale: unused, since q is not quantized.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    attention_chunk: 0, or the size of chunks; a query attends only to keys of its own chunk.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    rotary_interleaved: rotates pairs (0, 1), (2, 3), ...; else (0, r / 2), (1, r / 2 + 1), ...
    scheduler_metadata: a result of get_scheduler_metadata; checked, and not needed.
    num_splits: splits of the keys; 0: the library chooses.
    pack_gqa: a hint of upstream, without effect here.
    sm_margin: a hint of upstream, without effect here.
    return_softmax_lse: also return softmax_lse and upstream's split partials.
    s_aux: (h,), attention sinks: one more logit for each head that has weight but no value.
    server_arguments: arguments of servers' builds, such as sinks and out.

    Returns out or, with return_softmax_lse, (out, softmax_lse, out_accum, softmax_lse_accum); the
    last two are empty, since there are no split partials here.
    """
    into = None
    if server_arguments:
        own = {"s_aux": s_aux, "qv": qv, "page_table": page_table}
        extra = _server_arguments.read("flash_attn_with_kvcache", server_arguments, **own)
        s_aux, qv, page_table, into = extra.s_aux, extra.qv, extra.page_table, extra.out
        if extra.only_qv:
            q, qv = _server_arguments.only_values(q, k_cache if k is None else k, qv), None
            k_cache = v_cache
            if v is not None:
                raise InvalidArgument(
                    "v is given; with only_qv nothing can be appended, so it must be None"
                )
    check_tensor("q", q)
    descales = used_descales(q, k_cache, v_cache, q_descale, k_descale, v_descale)
    check_schedule(pack_gqa, sm_margin)
    check_metadata(scheduler_metadata, q)
    out, lse = _raw.over_cache(
        q,
        k_cache,
        v_cache,
        k=k,
        v=v,
        qv=qv,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        rotary_seqlens=rotary_seqlens,
        rotary_interleaved=rotary_interleaved,
        cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        page_table=page_table,
        **descales,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new,
        sinks=s_aux,
        max_seqlen_q=as_int("max_seqlen_q", max_seqlen_q),
        softmax_scale=softmax_scale,
        causal=causal,
        window=window_size,
        attention_chunk=attention_chunk or 0,
        softcap=softcap,
        num_splits=num_splits,
        out=into,
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
    """Combines the partial results of split-KV.

    out_partial: f32 (splits, b, sq, h, d), or without b, packed.
    lse_partial: f32 (splits, b, sq, h).
    out: the tensor for the result; allocated unless given.
    out_dtype: the dtype of an allocated out; f32 unless given.

    Returns (out, softmax_lse).
    """
    return _raw.combine(out_partial, lse_partial, out, out_dtype)


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
    """Scheduler metadata for flash_attn_with_kvcache. It is unused: the library computes its launch
    plan in each call, within microseconds. The arguments describe that call.

    batch_size, max_seqlen_q, max_seqlen_k: the number of sequences, and bounds on their lengths.
    num_heads_q, num_heads_kv, headdim, headdim_v: heads and head dimensions; headdim_v is headdim
    unless given.
    cache_seqlens: int32 (b,), as in the call; the result is on its device.
    qkv_dtype: the dtype of q, k and v.
    cu_seqlens_q, cu_seqlens_k_new, cache_leftpad, page_size, max_seqlen_k_new: as in the call.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    attention_chunk: 0, or the size of chunks; a query attends only to keys of its own chunk.
    has_softcap: whether the call has a softcap.
    num_splits: splits of the keys; 0: the library chooses.
    pack_gqa: a hint of upstream, without effect here.
    sm_margin: a hint of upstream, without effect here.

    Returns an int32 tensor.
    """
    check_tensor("cache_seqlens", cache_seqlens)
    left, right = window_pair(window_size, "window_size")
    call = named(
        "get_scheduler_metadata",
        batch_size=batch_size,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        num_heads=num_heads_q,
        num_heads_k=num_heads_kv,
        headdim=headdim,
        headdim_v=headdim if headdim_v is None else headdim_v,
        qkv_dtype=qkv_dtype,
        seqused_k=cache_seqlens,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=None,
        cu_seqlens_k_new=cu_seqlens_k_new,
        seqused_q=None,
        leftpad_k=cache_leftpad,
        page_size=page_size,
        max_seqlen_k_new=max_seqlen_k_new,
        is_causal=causal,
        window_size_left=left,
        window_size_right=right,
        attention_chunk=attention_chunk,
        has_softcap=has_softcap,
        num_splits=num_splits,
        pack_gqa=pack_gqa,
        sm_margin=sm_margin,
    )
    return _raw.scheduler_metadata(call)


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
    attention_chunk: Optional[int] = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Optional[Tensor] = None,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
    *,
    out: Optional[Tensor] = None,
    window_size: Any = None,
    is_causal: Optional[bool] = None,
    _sinks: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, softmax_lse, out_accum, softmax_lse_accum), without autograd; the last two are empty.

    The raw call with the names of upstream's Python. As there, the default scale is that of q alone
    also with qv. `out` and `window_size` are the names of 2.8.3 for `out_` and the two sides.
    """
    window_size_left, window_size_right = _sides(window_size_left, window_size_right, window_size)
    if out is not None and out_ is not None and out is not out_:
        raise InvalidArgument(
            "out is given with out_, another name for it; one of them must be None"
        )
    call = named(
        "fwd",
        q=q,
        k=k,
        v=v,
        k_new=k_new,
        v_new=v_new,
        q_v=qv,
        out=out_ if out is None else out,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        cu_seqlens_k_new=cu_seqlens_k_new,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        page_table=page_table,
        kv_batch_idx=kv_batch_idx,
        leftpad_k=leftpad_k,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        seqlens_rotary=seqlens_rotary,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        softmax_scale=softmax_scale,
        is_causal=_one_of("causal", causal, "is_causal", is_causal, False),
        window_size_left=window_size_left,
        window_size_right=window_size_right,
        attention_chunk=attention_chunk,
        softcap=softcap,
        is_rotary_interleaved=rotary_interleaved,
        scheduler_metadata=scheduler_metadata,
        num_splits=num_splits,
        pack_gqa=pack_gqa,
        sm_margin=sm_margin,
    )
    with torch.no_grad():
        return _raw.forward(call, _sinks)


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
    *,
    causal: Optional[bool] = None,
    window_size: Any = None,
) -> Tensor:
    """softmax_d; gradients go into dq, dk and dv. (`sequed_` is upstream's own spelling.)

    `causal` and `window_size` are the names of 2.8.3 for `is_causal` and the two sides.
    """
    window_size_left, window_size_right = _sides(window_size_left, window_size_right, window_size)
    call = named(
        "bwd",
        dout=dout,
        q=q,
        k=k,
        v=v,
        out=out,
        softmax_lse=softmax_lse,
        dq=dq,
        dk=dk,
        dv=dv,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=sequed_q,
        seqused_k=sequed_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale,
        is_causal=_one_of("is_causal", is_causal, "causal", causal, False),
        window_size_left=window_size_left,
        window_size_right=window_size_right,
        softcap=softcap,
        deterministic=deterministic,
        sm_margin=sm_margin,
    )
    return _raw.backward(call)[3]
