"""FlashAttention-3's interface, on every device the library knows.

Every argument is honoured, or refused by name. Descales belong to fp8, which the library refuses by its
dtype; with other inputs they are unused, as upstream's. `pack_gqa`, `sm_margin` and
`scheduler_metadata` only steer how upstream schedules its kernels; they are checked, and since
results never depend on them, any value gives the same answer.

Importing this module registers torch.ops.flash_attn_3, as importing upstream's does, unless another
package has; `operators_served_by` says who serves them.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from flash_attn_3 import _dialect, _raw
from flash_attn_3._operators import named
from flash_attn_3._operators import served_by as operators_served_by
from flash_attn_3._raw import check_descales, check_metadata, check_schedule
from rocflash.dropin import (
    InvalidArgument,
    attend,
    check_hint,
    check_tensor,
    join_qv,
    side_by_side,
    split_packed,
    whole,
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
    """The head size of upstream's kernel that would serve this one. Here none is rounded up."""
    for size in (64, 96, 128, 192):
        if head_size <= size:
            return size
    return 256


def _one_of(name: str, value: Any, other: str, other_value: Any, default: Any) -> Any:
    """The value of an argument that has two names in upstream's history; both may be given, as
    callers do who fill in every name of the signature, but not with two values."""
    if other_value is None:
        return value
    if value in (default, other_value):
        return other_value
    raise InvalidArgument(
        f"{other}: {other_value!r}; it is another name of {name}, which is {value!r}"
    )


def _sides(left: Any, right: Any, window_size: Any) -> tuple[int, int]:
    """window_size_left and window_size_right, or window_size as upstream's 2.8.3 has it."""
    if isinstance(left, (tuple, list)):
        raise InvalidArgument(f"window_size_left: {left!r}; a pair goes by the name window_size")
    pair = None if window_size is None else tuple(window_pair(window_size, "window_size"))
    return _one_of(
        "window_size_left, window_size_right", (left, right), "window_size", pair, (-1, -1)
    )


def _scale_of_both(q: Tensor, qv: Optional[Tensor], scale: Optional[float]) -> Optional[float]:
    """The functions' default scale counts both head sizes; the raw call's that of q alone."""
    if scale is not None or qv is None:
        return scale
    return (q.shape[-1] + qv.shape[-1]) ** -0.5


def _func(
    q: Tensor, k: Tensor, v: Tensor, qv: Optional[Tensor], softmax_scale: Optional[float], causal: bool,
    window_size: Any, attention_chunk: int, softcap: float, deterministic: bool, return_attn_probs: bool,
    s_aux: Optional[Tensor] = None, **packed: Any,
) -> Any:
    if qv is not None:
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, x)
        q, softmax_scale = join_qv(q, qv, v, softmax_scale)
        k, v = side_by_side(k, v)
    found = attend(
        q, k, v, 0.0, softmax_scale, causal, window_size, softcap, None, deterministic, return_attn_probs,
        sinks=s_aux, attention_chunk=attention_chunk or 0, **packed,
    )
    return found[:2] if return_attn_probs else found


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: Optional[float] = None, causal: bool = False,
    qv: Optional[Tensor] = None, q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None, window_size: Any = (-1, -1), attention_chunk: Optional[int] = 0,
    softcap: float = 0.0, num_splits: int = 1, pack_gqa: Optional[bool] = None, deterministic: bool = False,
    sm_margin: int = 0, return_attn_probs: bool = False, s_aux: Optional[Tensor] = None,
) -> Any:
    """out (b, sq, h, dv), or with return_attn_probs (out, softmax_lse (b, h, sq)).

    qv (b, sq, h, dv) adds qv.v to the scores; attention_chunk shows each query the keys of its own
    chunk only; s_aux (h,) are attention sinks.
    """
    check_descales(q_descale, k_descale, v_descale)
    check_schedule(pack_gqa, sm_margin)
    return _func(
        q, k, v, qv, softmax_scale, causal, window_size, attention_chunk, softcap, deterministic,
        return_attn_probs, s_aux, num_splits=num_splits,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor, softmax_scale: Optional[float] = None, causal: bool = False,
    q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None, v_descale: Optional[Tensor] = None,
    window_size: Any = (-1, -1), attention_chunk: Optional[int] = 0, softcap: float = 0.0,
    deterministic: bool = False, num_heads_q: Optional[int] = None, sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, with all three in qkv: (b, s, 3, h, d), or with num_heads_q
    (b, s, num_heads_q + 2 hk, d)."""
    check_descales(q_descale, k_descale, v_descale)
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
        q, k, v, None, softmax_scale, causal, window_size, attention_chunk, softcap, deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None, seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None, softmax_scale: Optional[float] = None, causal: bool = False,
    qv: Optional[Tensor] = None, q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None, window_size: Any = (-1, -1), attention_chunk: Optional[int] = 0,
    softcap: float = 0.0, num_splits: int = 1, pack_gqa: Optional[bool] = None, deterministic: bool = False,
    sm_margin: int = 0, return_attn_probs: bool = False, s_aux: Optional[Tensor] = None, **dialect: Any,
) -> Any:
    """As flash_attn_func, for packed sequences; seqused_q and seqused_k, int32 (b,), shorten them.

    `dialect`: names of servers' builds, such as page_table and out (flash_attn_3._dialect). With
    these two there are no gradients; with a page_table, cu_seqlens_k may be left out.
    """
    check_descales(q_descale, k_descale, v_descale)
    check_schedule(pack_gqa, sm_margin)
    if dialect:
        extra = _dialect.read("flash_attn_varlen_func", dialect, s_aux=s_aux, qv=qv)
        s_aux, qv = extra.s_aux, extra.qv
        return_attn_probs = return_attn_probs or extra.return_softmax_lse
        if extra.only_qv:
            q, k, qv = _dialect.only_values(q, k, qv), v, None
        check_metadata(extra.scheduler_metadata, q)
        if extra.page_table is not None or extra.out is not None:
            _dialect.refuse_gradients("out" if extra.page_table is None else "page_table", q, k, v)
            found = _flash_attn_forward(
                q, k, v, qv=qv, out_=extra.out, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                seqused_q=seqused_q, seqused_k=seqused_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
                page_table=extra.page_table, softmax_scale=_scale_of_both(q, qv, softmax_scale), causal=causal,
                window_size=(-1, -1) if window_size is None else window_size,
                attention_chunk=attention_chunk or 0, softcap=softcap, num_splits=num_splits, _sinks=s_aux,
            )
            return found[:2] if return_attn_probs else found[0]
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_tensor(name, x)
    return _func(
        q, k, v, qv, softmax_scale, causal, window_size, attention_chunk, softcap, deterministic,
        return_attn_probs, s_aux, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, seqused_q=seqused_q, seqused_k=seqused_k,
        num_splits=num_splits,
    )


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None, cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None, page_table: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k_new: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None, rotary_seqlens: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None, v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None, causal: bool = False, window_size: Any = (-1, -1),
    attention_chunk: Optional[int] = 0, softcap: float = 0.0, rotary_interleaved: bool = True,
    scheduler_metadata: Optional[Tensor] = None, num_splits: int = 0, pack_gqa: Optional[bool] = None,
    sm_margin: int = 0, return_softmax_lse: bool = False, s_aux: Optional[Tensor] = None, **dialect: Any,
) -> Any:
    """Attention over a cache, appended to in place first. No gradients.

    Returns out, or with return_softmax_lse (out, softmax_lse, out_accum, softmax_lse_accum); the
    last two are upstream's split partials, of which there are none here: they are empty.
    `dialect`: names of servers' builds, such as sinks and out (flash_attn_3._dialect).
    """
    into = None
    if dialect:
        own = {"s_aux": s_aux, "qv": qv, "page_table": page_table}
        extra = _dialect.read("flash_attn_with_kvcache", dialect, **own)
        s_aux, qv, page_table, into = extra.s_aux, extra.qv, extra.page_table, extra.out
        if extra.only_qv:
            q, qv = _dialect.only_values(q, k_cache if k is None else k, qv), None
            k_cache = v_cache
            if v is not None:
                raise InvalidArgument("v: is given; with only_qv nothing can be appended")
    check_tensor("q", q)
    check_descales(q_descale, k_descale, v_descale)
    check_schedule(pack_gqa, sm_margin)
    check_metadata(scheduler_metadata, q)
    out, lse = _raw.over_cache(
        q, k_cache, v_cache, k, v, qv, rotary_cos, rotary_sin, rotary_seqlens, cache_seqlens, cache_batch_idx,
        cache_leftpad, page_table, cu_seqlens_q, cu_seqlens_k_new, s_aux, rotary_interleaved,
        whole("max_seqlen_q", max_seqlen_q), softmax_scale, causal,
        *((-1, -1) if window_size is None else window_pair(window_size, "window_size")), attention_chunk or 0,
        softcap, num_splits, out=into, want_lse=bool(return_softmax_lse),
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
    return _raw.combine(out_partial, lse_partial, out, out_dtype)


def get_scheduler_metadata(
    batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int, headdim: int,
    cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16, headdim_v: Optional[int] = None,
    cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k_new: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None, page_size: Optional[int] = None, max_seqlen_k_new: int = 0,
    causal: bool = False, window_size: Any = (-1, -1), attention_chunk: int = 0, has_softcap: bool = False,
    num_splits: int = 0, pack_gqa: Optional[bool] = None, sm_margin: int = 0,
) -> Tensor:
    """A plan to pass to flash_attn_with_kvcache. The library plans each call itself, which takes
    microseconds, so nothing reads what it holds."""
    check_tensor("cache_seqlens", cache_seqlens)
    call = named(
        "get_scheduler_metadata", batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim,
        headdim if headdim_v is None else headdim_v, qkv_dtype, cache_seqlens, cu_seqlens_q, None,
        cu_seqlens_k_new, None, cache_leftpad, page_size, max_seqlen_k_new, causal,
        *window_pair(window_size, "window_size"), attention_chunk, has_softcap, num_splits, pack_gqa, sm_margin,
    )
    return _raw.scheduler_metadata(call)


def _flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, k_new: Optional[Tensor] = None, v_new: Optional[Tensor] = None,
    qv: Optional[Tensor] = None, out_: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None, cu_seqlens_k_new: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None, max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None, page_table: Optional[Tensor] = None,
    kv_batch_idx: Optional[Tensor] = None, leftpad_k: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
    seqlens_rotary: Optional[Tensor] = None, q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None, v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None, causal: bool = False, window_size_left: int = -1,
    window_size_right: int = -1, attention_chunk: Optional[int] = 0, softcap: float = 0.0,
    rotary_interleaved: bool = True, scheduler_metadata: Optional[Tensor] = None, num_splits: int = 1,
    pack_gqa: Optional[bool] = None, sm_margin: int = 0, *, out: Optional[Tensor] = None,
    window_size: Any = None, is_causal: Optional[bool] = None, _sinks: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, softmax_lse, out_accum, softmax_lse_accum), without autograd; the last two are empty.

    The raw call with the names of upstream's Python. As there, the default scale is that of q alone
    also with qv. `out` and `window_size` are the names of 2.8.3 for `out_` and the two sides.
    """
    window_size_left, window_size_right = _sides(window_size_left, window_size_right, window_size)
    if out is not None and out_ is not None and out is not out_:
        raise InvalidArgument("out: is given together with out_, which is another name of it")
    call = named(
        "fwd", q, k, v, k_new, v_new, qv, out_ if out is None else out, cu_seqlens_q, cu_seqlens_k,
        cu_seqlens_k_new, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, page_table, kv_batch_idx, leftpad_k,
        rotary_cos, rotary_sin, seqlens_rotary, q_descale, k_descale, v_descale, softmax_scale,
        _one_of("causal", causal, "is_causal", is_causal, False), window_size_left, window_size_right,
        attention_chunk, softcap, rotary_interleaved, scheduler_metadata, num_splits, pack_gqa, sm_margin,
    )
    with torch.no_grad():
        return _raw.forward(call, _sinks)


def _flash_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
    cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None,
    sequed_q: Optional[Tensor] = None, sequed_k: Optional[Tensor] = None, max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None, dq: Optional[Tensor] = None, dk: Optional[Tensor] = None,
    dv: Optional[Tensor] = None, softmax_scale: Optional[float] = None, is_causal: bool = False,
    window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0, deterministic: bool = False,
    sm_margin: int = 0, *, causal: Optional[bool] = None, window_size: Any = None,
) -> Tensor:
    """softmax_d; gradients go into dq, dk and dv. (`sequed_` is upstream's own spelling.)

    `causal` and `window_size` are the names of 2.8.3 for `is_causal` and the two sides.
    """
    window_size_left, window_size_right = _sides(window_size_left, window_size_right, window_size)
    call = named(
        "bwd", dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k,
        max_seqlen_q, max_seqlen_k, softmax_scale, _one_of("is_causal", is_causal, "causal", causal, False),
        window_size_left, window_size_right, softcap, deterministic, sm_margin,
    )
    return _raw.backward(call)[3]
