"""The raw extension module of flash_attn with its five positional functions.

It has no autograd. Clients import it by this name; the device of the tensors selects the backend,
which need not be CUDA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from rocflash import dropin
from rocflash.dropin import (
    as_int,
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
)

__all__ = ["bwd", "fwd", "fwd_kvcache", "varlen_bwd", "varlen_fwd"]


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Optional[Tensor],
    return_softmax: bool,
    gen: Optional[torch.Generator],
    **given: Any,
) -> list[Tensor]:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    if out is not None:
        check_tensor("out", out)
    check_options(options_of(**given))
    if not isinstance(return_softmax, int):
        raise TypeError(f"return_softmax is {return_softmax!r}; it must be True or False")
    if return_softmax and not given["dropout_p"] > 0:
        raise ValueError(
            f"return_softmax is True, but p_dropout is {given['dropout_p']}; "
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
        s_dmask = q.new_empty(0) if weights is None else signed_softmax(weights, q.dtype)
    return [out, lse, s_dmask, rng_state_on(seeds, q.device)]


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    gen: Optional[torch.Generator] = None,
) -> list[Tensor]:
    """[out, softmax_lse, S_dmask, rng_state]"""
    return _forward(
        q,
        k,
        v,
        out,
        return_softmax,
        gen,
        alibi_slopes=alibi_slopes,
        dropout_p=p_dropout,
        softmax_scale=softmax_scale,
        causal=is_causal,
        window_left=window_size_left,
        window_right=window_size_right,
        softcap=softcap,
    )


def _or_with_16(function: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Also accepts the 16 positional arguments of 2.3, without later ones."""

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> list[Tensor]:
        if len(given) == 16 and not named and isinstance(given[6], int):
            q_to_cu_k, numbers, return_softmax, gen = given[:6], given[6:14], given[14], given[15]
            return function(*q_to_cu_k, None, None, None, None, *numbers, 0.0, return_softmax, gen)
        return function(*given, **named)

    return call


@_or_with_16
def varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Optional[Tensor],
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_k: Optional[Tensor],
    leftpad_k: Optional[Tensor],
    block_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    gen: Optional[torch.Generator] = None,
    num_splits: int = 0,
) -> list[Tensor]:
    """fwd for varlen sequences. zero_tensors has no effect: outputs are always written
    completely.
    """
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_tensor(name, x)
    return _forward(
        q,
        k,
        v,
        out,
        return_softmax,
        gen,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_k=seqused_k,
        leftpad_k=leftpad_k,
        block_table=block_table,
        num_splits=num_splits,
        alibi_slopes=alibi_slopes,
        max_seqlen_q=as_int("max_seqlen_q", max_seqlen_q),
        max_seqlen_k=as_int("max_seqlen_k", max_seqlen_k),
        dropout_p=p_dropout,
        softmax_scale=softmax_scale,
        causal=is_causal,
        window_left=window_size_left,
        window_right=window_size_right,
        softcap=softcap,
    )


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    gen: Optional[torch.Generator],
    rng_state: Optional[Tensor],
    **given: Any,
) -> list[Tensor]:
    tensors = (dout, q, k, v, out, softmax_lse)
    for name, x in zip(("dout", "q", "k", "v", "out", "softmax_lse"), tensors):
        check_tensor(name, x)
    if gen is not None:
        raise ValueError(
            "gen is given; the backward pass replays rng_state and draws nothing, so it must be "
            "None"
        )
    check_options(options_of(rng_state=rng_state, **given))
    if drops_nothing(given["dropout_p"]):
        given["dropout_p"], rng_state = 0.0, None
    options = options_of(rng_state=host_rng_state(rng_state), **given)
    for name, given_memory in (("dq", dq), ("dk", dk), ("dv", dv)):
        if given_memory is not None:
            check_tensor(name, given_memory)
    dq = torch.empty_like(q) if dq is None else dq
    dk = torch.empty_like(k) if dk is None else dk
    dv = torch.empty_like(v) if dv is None else dv
    wanted = tuple(name == "delta" for name in dropin.RESULTS)
    found = dropin.backward(dout, q, k, v, out, softmax_lse, options, wanted, (dq, dk, dv))
    return [dq, dk, dv, found[-1]]


def bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen: Optional[torch.Generator] = None,
    rng_state: Optional[Tensor] = None,
) -> list[Tensor]:
    """[dq, dk, dv, softmax_d]; gradients are written to the given tensors, with any strides."""
    return _backward(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq=dq,
        dk=dk,
        dv=dv,
        gen=gen,
        rng_state=rng_state,
        alibi_slopes=alibi_slopes,
        dropout_p=p_dropout,
        softmax_scale=softmax_scale,
        causal=is_causal,
        window_left=window_size_left,
        window_right=window_size_right,
        softcap=softcap,
        deterministic=deterministic,
    )


def varlen_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    alibi_slopes: Optional[Tensor],
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen: Optional[torch.Generator] = None,
    rng_state: Optional[Tensor] = None,
) -> list[Tensor]:
    """bwd for varlen sequences. Gradients of unused rows are 0, with and without zero_tensors."""
    return _backward(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq=dq,
        dk=dk,
        dv=dv,
        gen=gen,
        rng_state=rng_state,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        alibi_slopes=alibi_slopes,
        max_seqlen_q=as_int("max_seqlen_q", max_seqlen_q),
        max_seqlen_k=as_int("max_seqlen_k", max_seqlen_k),
        dropout_p=p_dropout,
        softmax_scale=softmax_scale,
        causal=is_causal,
        window_left=window_size_left,
        window_right=window_size_right,
        softcap=softcap,
        deterministic=deterministic,
    )


def fwd_kvcache(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    seqlens_k: Optional[Tensor],
    rotary_cos: Optional[Tensor],
    rotary_sin: Optional[Tensor],
    cache_batch_idx: Optional[Tensor],
    leftpad_k: Optional[Tensor],
    block_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    out: Optional[Tensor],
    softmax_scale: Optional[float],
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    is_rotary_interleaved: bool,
    num_splits: int,
) -> list[Tensor]:
    """[out, softmax_lse]; k and v, if given, are appended to the cache in place."""
    out, lse = attention_with_kvcache(
        q,
        kcache,
        vcache,
        k=k,
        v=v,
        cache_seqlens=seqlens_k,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        rotary_interleaved=is_rotary_interleaved,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=leftpad_k,
        page_table=block_table,
        page_table_name="block_table",
        alibi_slopes=alibi_slopes,
        out=out,
        softmax_scale=softmax_scale,
        causal=is_causal,
        window=(window_size_left, window_size_right),
        softcap=softcap,
        num_splits=num_splits,
    )
    return [out, lse]
