"""The operators that flash_attn registers with torch, under their upstream names and schemas.

The schema defines an operator: it determines the signature that clients inspect, and maps arguments
to those of the raw function.

They support all devices of the library. _dispatch.py adds gradients to calls of the public
functions under a compiler, a mode or a tensor subclass; clients build their own from forward and
backward, as with upstream.
"""

from __future__ import annotations

import inspect
from typing import Any

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

library = torch.library.Library("flash_attn", "DEF")
for _schema in _SCHEMAS:
    define(library, _schema)

Forward = tuple[Tensor, Tensor, Tensor, Tensor]

# The raw functions' names of two arguments. Arguments that an operator lacks (`gen`, forward's
# `out`) are None.
_RAW_NAMES = {"p_dropout": "dropout_p", "is_causal": "causal"}


class _Operator:
    def __init__(self, name: str, raw: Any) -> None:
        self.packet = getattr(torch.ops.flash_attn, name)
        self.raw = raw
        arguments = self.packet.default._schema.arguments
        self.names = [x.name for x in arguments]
        self.defaults = tuple(x.default_value for x in arguments)
        known = {name: at for at, name in enumerate(self.names)}
        taken = (_RAW_NAMES.get(x, x) for x in inspect.signature(raw).parameters)
        self.order = [known.get(x) for x in taken]

    counterpart: Any = None  # of a forward operator, the one with its gradients

    def by_name(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.names, self.complete(arguments)))

    def complete(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Completes arguments: torch omits trailing ones with default values."""
        return arguments + self.defaults[len(arguments) :]

    def call_raw(self, *arguments: Any) -> list[Tensor]:
        given = self.complete(arguments)
        return self.raw(*(None if at is None else given[at] for at in self.order))

    def signature(self) -> inspect.Signature:
        schema = self.packet.default._schema
        parameters = [
            inspect.Parameter(
                x.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=x.default_value if x.has_default_value() else inspect.Parameter.empty,
                annotation=str(x.type).replace("SymInt", "int"),
            )
            for x in schema.arguments
        ]
        returns = "Tensor" if len(schema.returns) == 1 else "Forward"
        return inspect.Signature(parameters, return_annotation=returns)

    def as_function(self) -> Any:
        """A function with the operator's signature, which ring attention and others inspect."""
        packet = self.packet

        def call(*arguments: Any, **keywords: Any) -> Any:
            return packet(*arguments, **keywords)

        call.__signature__ = self.signature()  # type: ignore[attr-defined]
        call.__name__ = call.__qualname__ = packet.__name__
        return call


forward_operator = _Operator("_flash_attn_forward", flash_attn_gpu.fwd)
varlen_forward_operator = _Operator("_flash_attn_varlen_forward", flash_attn_gpu.varlen_fwd)
backward_operator = _Operator("_flash_attn_backward", flash_attn_gpu.bwd)
varlen_backward_operator = _Operator("_flash_attn_varlen_backward", flash_attn_gpu.varlen_bwd)
forward_operator.counterpart = backward_operator
varlen_forward_operator.counterpart = varlen_backward_operator


def _fakes(
    q: Tensor, v: Tensor, lse: tuple[Any, ...], s_dmask: tuple[Any, ...], with_s_dmask: bool
) -> Forward:
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty(lse, dtype=torch.float32),
        q.new_empty(s_dmask if with_s_dmask else (0,)),
        torch.empty(2, dtype=torch.int64, device=q.device),
    )


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Forward:
    batch, seqlen_q, heads, _ = q.shape
    shape = (batch, heads, seqlen_q)
    return _fakes(q, v, shape, (*shape, k.shape[1]), rest[-1])


def _varlen_forward_fake(*arguments: Any) -> Forward:
    given = varlen_forward_operator.by_name(arguments)
    total_q, heads, _ = given["q"].shape
    batch = given["cu_seqlens_q"].shape[0] - 1
    s_dmask = (batch, heads, given["max_seqlen_q"], given["max_seqlen_k"])
    lse = (heads, total_q)
    return _fakes(given["q"], given["v"], lse, s_dmask, given["return_softmax"])


def _backward_fake(dout: Tensor, q: Tensor, *_: Any) -> Tensor:
    leading = (q.shape[0],) if q.dim() == 4 else ()
    return q.new_empty((*leading, q.shape[-2], q.shape[-3]), dtype=torch.float32)


def _register(operator: _Operator, result: Any, fake: Any) -> None:
    name = operator.packet.__name__
    for key in ("CPU", "CUDA"):
        library.impl(name, lambda *arguments: result(operator.call_raw(*arguments)), key)
    register_fake(f"flash_attn::{name}", fake)


def _softmax_d(gradients: list[Tensor]) -> Tensor:
    return gradients[3]


_register(forward_operator, tuple, _forward_fake)
_register(varlen_forward_operator, tuple, _varlen_forward_fake)
_register(backward_operator, _softmax_d, _backward_fake)
_register(varlen_backward_operator, _softmax_d, _backward_fake)

forward = forward_operator.as_function()
varlen_forward = varlen_forward_operator.as_function()
backward = backward_operator.as_function()
varlen_backward = varlen_backward_operator.as_function()
