"""The operators of flash_attn's functions under compilers, modes and tensor subclasses, by
upstream's names.

Checkpointing policies, profilers and compilers identify attention by upstream's names. Calls that
upstream's operators can express use them, and their backward operators for gradients. Other calls,
such as those with sinks, use a pair of operators in the same namespace with all options. Eager
calls use none of them.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from flash_attn import _operators
from rocflash.dropin import (
    RESULTS,
    Backward,
    Options,
    Unsupported,
    options_of,
    refuse_missing_gradients,
    register_operators,
)

_with_options, _in_context = register_operators(_operators.library, "_flash_attn_options_")
_KNOWN = {
    *("cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "rng_state", "max_seqlen_q", "max_seqlen_k"),
    *("causal", "window_left", "window_right", "softmax_scale", "softcap", "dropout_p"),
}
_ABSENT = Options()


def dispatch(
    q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], return_weights: bool
) -> Optional[tuple[Tensor, Tensor, Any]]:
    """(out, lse, weights) by an operator of flash_attn's.

    None if the pair with all options needs a seed that is not drawn yet: the caller completes the
    options and calls again.
    """
    o = Options(*options)
    if return_weights or not _fits(q, o):
        if (o.dropout_p and o.rng_state is None) or (q.is_cuda and not _has_lengths(o)):
            return None
        operator = (
            _in_context if o.backend < 0 else _with_options
        )  # the context's backend when it runs
        return operator(q, k, v, *options, return_weights)[:3]
    scale = q.shape[-1] ** -0.5 if o.softmax_scale is None else o.softmax_scale
    numbers = (o.dropout_p, scale, bool(o.causal), o.window_left, o.window_right, o.softcap)
    ops = torch.ops.flash_attn
    if o.cu_seqlens_q is None:
        found = ops._flash_attn_forward(q, k, v, *numbers, o.alibi_slopes, False)
    else:
        lengths = (o.cu_seqlens_q, o.cu_seqlens_k, o.max_seqlen_q, o.max_seqlen_k)
        found = ops._flash_attn_varlen_forward(q, k, v, *lengths, *numbers, o.alibi_slopes)
    return found[0], found[1], None


def _has_lengths(o: Any) -> bool:
    """Whether max_seqlen is given, which varlen sequences on GPUs require."""
    return o.cu_seqlens_q is None or bool(o.max_seqlen_q and o.max_seqlen_k)


def _fits(q: Tensor, o: Any) -> bool:
    """Whether upstream's operators can express a call, its gradients included."""
    return (
        all(x is y for name, x, y in zip(o._fields, o, _ABSENT) if name not in _KNOWN)
        and (o.alibi_slopes is None or not o.alibi_slopes.requires_grad)
        and (o.cu_seqlens_q is None) == (o.cu_seqlens_k is None)
        and o.rng_state is None  # they draw it themselves
        and (not q.is_cuda or _has_lengths(o))
    )


class _Attention(torch.autograd.Function):
    """One of upstream's forward operators with the gradients of its counterpart."""

    @staticmethod
    def forward(operator: Any, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.packet(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        operator, *arguments = inputs
        out, lse, *others = output
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        given = operator.by_name(tuple(arguments))
        tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        ctx.save_for_backward(out, lse, others[1], *tensors.values())
        ctx.names, ctx.operator = tuple(tensors), operator
        ctx.numbers = {name: x for name, x in given.items() if name not in tensors}

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise Unsupported(
            f"torch.ops.flash_attn.{ctx.operator.packet.__name__} got a tensor with a forward-mode "
            "tangent, but the operator has no "
            "jvp; call flash_attn_func or flash_attn_varlen_func, which have"
        )

    @staticmethod
    def backward(
        ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], *_: Any
    ) -> tuple[Any, ...]:
        operator, needs = ctx.operator, ctx.needs_input_grad
        others = (None,) * (len(needs) - 4)
        if dout is None and dlse is None:
            return (None, None, None, None, *others)
        out, lse, rng_state, *tensors = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        given = {**ctx.numbers, **dict(zip(ctx.names, tensors))}
        given.update(dout=dout, out=out, softmax_lse=lse, rng_state=rng_state)
        if dlse is None:
            values = tuple(given.get(name) for name in operator.counterpart.names)
            gradients = Backward.apply(_gradients, operator.counterpart, *values)
        else:
            gradients = _gradients_with_lse(given, tuple(needs[1:4]), dlse)
        return (None, *(g if needed else None for g, needed in zip(gradients, needs[1:4])), *others)


def _gradients(operator: Any, *values: Any) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv in new memory, with one of upstream's backward operators."""
    given = dict(zip(operator.names, values))
    q, k, v = (given[name] for name in "qkv")
    into = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    given.update(zip(("dq", "dk", "dv"), into), deterministic=False)
    given.update((name, False) for name in ("zero_tensors",) if name in given)
    operator.packet(*given.values())
    return into


def _gradients_with_lse(
    given: dict[str, Any], needed: tuple[bool, ...], dlse: Tensor
) -> tuple[Tensor, ...]:
    """dq, dk and dv where lse has a gradient, which upstream's backward operators do not take."""
    options = options_of(
        **{name: given[name] for name in _KNOWN if name in given and name != "rng_state"},
        rng_state=given["rng_state"] if given["dropout_p"] else None,
        window_left=given["window_size_left"],
        window_right=given["window_size_right"],
    )
    saved = (given[name] for name in ("dout", "q", "k", "v", "out", "softmax_lse"))
    needed += (False,) * (len(RESULTS) - len(needed))
    found = torch.ops.flash_attn._flash_attn_options_backward(*saved, *options, needed, dlse)
    return tuple(found[:3])


def _autograd_of(operator: Any) -> None:
    def run(*arguments: Any) -> Any:
        q, k, v = arguments[:3]
        if q.is_cuda and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            refuse_missing_gradients(q, v, _ABSENT)
        return _Attention.apply(operator, *arguments)

    _operators.library.impl(operator.packet.__name__, run, "Autograd")


_autograd_of(_operators.forward_operator)
_autograd_of(_operators.varlen_forward_operator)
