"""The raw extension module of flash_attn, by its five positional functions.

No autograd here. The name says CUDA because that is what others import; what computes is decided by
the device of the tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from rocflash import dropin
from rocflash.dropin import (
    attention_with_kvcache,
    check_options,
    check_tensor,
    draw_rng_state,
    drops_nothing,
    host_rng_state,
    options_of,
    rng_state_on,
    signed_softmax,
    softmax_by_heads,
    whole,
)

__all__ = ["bwd", "fwd", "fwd_kvcache", "varlen_bwd", "varlen_fwd"]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, out: Optional[Tensor], return_softmax: bool,
    gen: Optional[torch.Generator], **given: Any,
) -> list[Tensor]:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    if out is not None:
        check_tensor("out", out)
    check_options(options_of(**given))
    if return_softmax and not given["dropout_p"] > 0:
        raise ValueError(
            f"return_softmax: True, but p_dropout is {given['dropout_p']}; "
            "the signed softmax exists to show dropout, so p_dropout must be above 0"
        )
    seeds = draw_rng_state(gen) if given["dropout_p"] else None
    options = options_of(rng_state=seeds, **given)
    if drops_nothing(options.dropout_p):
        options = options._replace(dropout_p=0.0, rng_state=None)
        out, lse, _ = dropin.forward(q, k, v, options, False, out)
        s_dmask = softmax_by_heads(q, k, v, options) if return_softmax else q.new_empty(0)
    else:
        out, lse, weights = dropin.forward(q, k, v, options, return_softmax, out)
        s_dmask = signed_softmax(weights, q.dtype) if return_softmax else q.new_empty(0)
    return [out, lse, s_dmask, rng_state_on(seeds, q.device)]


def fwd(
    q: Tensor, k: Tensor, v: Tensor, out: Optional[Tensor], alibi_slopes: Optional[Tensor], p_dropout: float,
    softmax_scale: float, is_causal: bool, window_size_left: int, window_size_right: int, softcap: float,
    return_softmax: bool, gen: Optional[torch.Generator] = None,
) -> list[Tensor]:
    """[out, softmax_lse, S_dmask, rng_state]"""
    return _forward(
        q, k, v, out, return_softmax, gen, alibi_slopes=alibi_slopes, dropout_p=p_dropout,
        softmax_scale=softmax_scale, causal=is_causal, window_left=window_size_left,
        window_right=window_size_right, softcap=softcap,
    )


def _or_with_16(function: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Takes the arguments of 2.3, too: 16 by position, without what came later."""

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> list[Tensor]:
        if len(given) == 16 and not named and isinstance(given[6], int):
            q_to_cu_k, numbers, return_softmax, gen = given[:6], given[6:14], given[14], given[15]
            return function(*q_to_cu_k, None, None, None, None, *numbers, 0.0, return_softmax, gen)
        return function(*given, **named)

    return call


@_or_with_16
def varlen_fwd(
    q: Tensor, k: Tensor, v: Tensor, out: Optional[Tensor], cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    seqused_k: Optional[Tensor], leftpad_k: Optional[Tensor], block_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor], max_seqlen_q: int, max_seqlen_k: int, p_dropout: float,
    softmax_scale: float, zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int,
    softcap: float, return_softmax: bool, gen: Optional[torch.Generator] = None, num_splits: int = 0,
) -> list[Tensor]:
    """As fwd, packed. zero_tensors asks for what always holds here: outputs are written whole."""
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_tensor(name, x)
    return _forward(
        q, k, v, out, return_softmax, gen, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        seqused_k=seqused_k, leftpad_k=leftpad_k, block_table=block_table, num_splits=num_splits,
        alibi_slopes=alibi_slopes, max_seqlen_q=whole("max_seqlen_q", max_seqlen_q),
        max_seqlen_k=whole("max_seqlen_k", max_seqlen_k), dropout_p=p_dropout, softmax_scale=softmax_scale,
        causal=is_causal, window_left=window_size_left, window_right=window_size_right, softcap=softcap,
    )


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Optional[Tensor],
    dk: Optional[Tensor], dv: Optional[Tensor], gen: Optional[torch.Generator], rng_state: Optional[Tensor],
    **given: Any,
) -> list[Tensor]:
    tensors = (dout, q, k, v, out, softmax_lse)
    for name, x in zip(("dout", "q", "k", "v", "out", "softmax_lse"), tensors):
        check_tensor(name, x)
    if gen is not None:
        raise ValueError("gen: is given; the backward pass replays rng_state and draws nothing")
    check_options(options_of(rng_state=rng_state, **given))
    if drops_nothing(given["dropout_p"]):
        given["dropout_p"], rng_state = 0.0, None
    options = options_of(rng_state=host_rng_state(rng_state), **given)
    for name, x in (("dq", dq), ("dk", dk), ("dv", dv)):
        if x is not None:
            check_tensor(name, x)
    dq = torch.empty_like(q) if dq is None else dq
    dk = torch.empty_like(k) if dk is None else dk
    dv = torch.empty_like(v) if dv is None else dv
    dropin.backward(dout, q, k, v, out, softmax_lse, options, into=(dq, dk, dv))
    softmax_d = (dout.float() * out.float()).sum(-1).transpose(-1, -2).contiguous()
    return [dq, dk, dv, softmax_d]


def bwd(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Optional[Tensor],
    dk: Optional[Tensor], dv: Optional[Tensor], alibi_slopes: Optional[Tensor], p_dropout: float,
    softmax_scale: float, is_causal: bool, window_size_left: int, window_size_right: int, softcap: float,
    deterministic: bool, gen: Optional[torch.Generator] = None, rng_state: Optional[Tensor] = None,
) -> list[Tensor]:
    """[dq, dk, dv, softmax_d]; gradients are written into the given tensors, whatever strides."""
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, gen, rng_state, alibi_slopes=alibi_slopes,
        dropout_p=p_dropout, softmax_scale=softmax_scale, causal=is_causal, window_left=window_size_left,
        window_right=window_size_right, softcap=softcap, deterministic=deterministic,
    )


def varlen_bwd(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Optional[Tensor],
    dk: Optional[Tensor], dv: Optional[Tensor], cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    alibi_slopes: Optional[Tensor], max_seqlen_q: int, max_seqlen_k: int, p_dropout: float,
    softmax_scale: float, zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int,
    softcap: float, deterministic: bool, gen: Optional[torch.Generator] = None,
    rng_state: Optional[Tensor] = None,
) -> list[Tensor]:
    """As bwd, packed. Rows outside all sequences get gradient 0, zero_tensors or not."""
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, gen, rng_state, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, alibi_slopes=alibi_slopes, max_seqlen_q=whole("max_seqlen_q", max_seqlen_q),
        max_seqlen_k=whole("max_seqlen_k", max_seqlen_k), dropout_p=p_dropout, softmax_scale=softmax_scale,
        causal=is_causal, window_left=window_size_left, window_right=window_size_right, softcap=softcap,
        deterministic=deterministic,
    )


def fwd_kvcache(
    q: Tensor, kcache: Tensor, vcache: Tensor, k: Optional[Tensor], v: Optional[Tensor],
    seqlens_k: Optional[Tensor], rotary_cos: Optional[Tensor], rotary_sin: Optional[Tensor],
    cache_batch_idx: Optional[Tensor], leftpad_k: Optional[Tensor], block_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor], out: Optional[Tensor], softmax_scale: Optional[float], is_causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, is_rotary_interleaved: bool, num_splits: int,
) -> list[Tensor]:
    """[out, softmax_lse]; k and v, if given, are appended to the cache in place."""
    out, lse = attention_with_kvcache(
        q, kcache, vcache, k=k, v=v, cache_seqlens=seqlens_k, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=is_rotary_interleaved, cache_batch_idx=cache_batch_idx, cache_leftpad=leftpad_k,
        page_table=block_table, page_table_name="block_table", alibi_slopes=alibi_slopes, out=out,
        softmax_scale=softmax_scale, causal=is_causal, window=(window_size_left, window_size_right),
        softcap=softcap, num_splits=num_splits,
    )
    return [out, lse]
