"""The operators that flash_attn registers with torch, under their upstream names and schemas.

They serve every device that the library serves, and, like upstream's, carry no autograd formula:
the public functions bring gradients, and others build their own from forward and backward.
"""

from __future__ import annotations

import inspect
from typing import Any, Optional

import torch
from torch import Tensor

import flash_attn_2_cuda as flash_attn_gpu
from rocflash.dropin import define, register_fake

_HEAD = "Tensor q, Tensor k, Tensor v"
_SHAPE = "float dropout_p, float softmax_scale, bool causal"
_BACK = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse"
    ", Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv"
)
_WINDOW = "SymInt window_size_left, SymInt window_size_right, float softcap, Tensor? alibi_slopes"
_SCHEMAS = (
    f"_flash_attn_forward({_HEAD}, {_SHAPE}, {_WINDOW}, bool return_softmax)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_varlen_forward({_HEAD}, Tensor cu_seqlens_q, Tensor cu_seqlens_k"
    f", SymInt max_seqlen_q, SymInt max_seqlen_k, {_SHAPE}"
    ", SymInt window_size_left=-1, SymInt window_size_right=-1, float softcap=0.0"
    ", Tensor? alibi_slopes=None, bool return_softmax=False, Tensor? block_table=None"
    ", Tensor? leftpad_k=None, Tensor? seqused_k=None, bool zero_tensors=False"
    ", SymInt num_splits=0) -> (Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_backward({_BACK}, {_SHAPE}, {_WINDOW}, bool deterministic"
    ", Tensor? rng_state=None) -> Tensor",
    f"_flash_attn_varlen_backward({_BACK}, Tensor cu_seqlens_q, Tensor cu_seqlens_k"
    f", SymInt max_seqlen_q, SymInt max_seqlen_k, {_SHAPE}, {_WINDOW}, bool deterministic"
    ", Tensor? rng_state=None, bool zero_tensors=False) -> Tensor",
)

_library = torch.library.Library("flash_attn", "DEF")
for _schema in _SCHEMAS:
    define(_library, _schema)

Forward = tuple[Tensor, Tensor, Tensor, Tensor]


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    return_softmax: bool,
) -> Forward:
    return tuple(  # type: ignore[return-value]
        flash_attn_gpu.fwd(
            q,
            k,
            v,
            None,
            alibi_slopes,
            dropout_p,
            softmax_scale,
            causal,
            window_size_left,
            window_size_right,
            softcap,
            return_softmax,
            None,
        )
    )


def _varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    return_softmax: bool = False,
    block_table: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> Forward:
    return tuple(  # type: ignore[return-value]
        flash_attn_gpu.varlen_fwd(
            q,
            k,
            v,
            None,
            cu_seqlens_q,
            cu_seqlens_k,
            seqused_k,
            leftpad_k,
            block_table,
            alibi_slopes,
            max_seqlen_q,
            max_seqlen_k,
            dropout_p,
            softmax_scale,
            zero_tensors,
            causal,
            window_size_left,
            window_size_right,
            softcap,
            return_softmax,
            None,
            num_splits,
        )
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
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    rng_state: Optional[Tensor] = None,
) -> Tensor:
    return flash_attn_gpu.bwd(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq,
        dk,
        dv,
        alibi_slopes,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        deterministic,
        None,
        rng_state,
    )[3]


def _varlen_backward(
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
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    rng_state: Optional[Tensor] = None,
    zero_tensors: bool = False,
) -> Tensor:
    return flash_attn_gpu.varlen_bwd(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq,
        dk,
        dv,
        cu_seqlens_q,
        cu_seqlens_k,
        alibi_slopes,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        zero_tensors,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        deterministic,
        None,
        rng_state,
    )[3]


def _fakes(
    q: Tensor, v: Tensor, lse: tuple[Any, ...], s_dmask: tuple[Any, ...], with_s_dmask: bool
) -> Forward:
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty(lse, dtype=torch.float32),
        q.new_empty(s_dmask if with_s_dmask else (0,)),
        torch.empty(2, dtype=torch.int64),
    )


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Forward:
    batch, seqlen_q, heads, _ = q.shape
    shape = (batch, heads, seqlen_q)
    return _fakes(q, v, shape, (*shape, k.shape[1]), rest[-1])


def _varlen_forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    return_softmax: bool = False,
    *_: Any,
    **__: Any,
) -> Forward:
    total_q, heads, _ = q.shape
    s_dmask = (cu_seqlens_q.shape[0] - 1, heads, max_seqlen_q, max_seqlen_k)
    return _fakes(q, v, (heads, total_q), s_dmask, return_softmax)


def _backward_fake(dout: Tensor, q: Tensor, *_: Any, **__: Any) -> Tensor:
    leading = (q.shape[0],) if q.dim() == 4 else ()
    return q.new_empty((*leading, q.shape[-2], q.shape[-3]), dtype=torch.float32)


for _name, _kernel, _fake in (
    ("_flash_attn_forward", _forward, _forward_fake),
    ("_flash_attn_varlen_forward", _varlen_forward, _varlen_forward_fake),
    ("_flash_attn_backward", _backward, _backward_fake),
    ("_flash_attn_varlen_backward", _varlen_backward, _backward_fake),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _key)
    register_fake(f"flash_attn::{_name}", _fake)


def _as_function(kernel: Any, operator: Any) -> Any:
    """A plain function with the kernel's signature, which ring attention and others inspect."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return operator(*arguments, **keywords)

    call.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = operator.__name__
    return call


forward = _as_function(_forward, torch.ops.flash_attn._flash_attn_forward)
varlen_forward = _as_function(_varlen_forward, torch.ops.flash_attn._flash_attn_varlen_forward)
backward = _as_function(_backward, torch.ops.flash_attn._flash_attn_backward)
varlen_backward = _as_function(_varlen_backward, torch.ops.flash_attn._flash_attn_varlen_backward)
