"""The operators that a call of flash_attn's functions shows to those who watch torch: flash_attn's own.

Checkpointing policies, profilers and compilers know attention by upstream's names. So a call that upstream's operators can
express is one of them, with gradients by its counterpart; the others, such as calls with sinks, are a pair of
operators in the same namespace that takes all options. Without a watcher none of this is used.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from flash_attn import _operators
from rocflash.dropin import Backward, Options, refuse_missing_gradients, register_operators

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

    None where the seed is still to be drawn that the pair with all options needs: the caller completes such a
    call, and comes again.
    """
    o = Options(*options)
    if return_weights or not _fits(q, o):
        if (o.dropout_p and o.rng_state is None) or (q.is_cuda and not _has_lengths(o)):
            return None
        operator = (
            _in_context if o.backend < 0 else _with_options
        )  # whom the context names when it runs
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
    """On GPUs packed sequences come with the longest, which the library does not look up there."""
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
        ctx.mark_non_differentiable(lse, *others)
        ctx.set_materialize_grads(False)
        given = operator.by_name(tuple(arguments))
        tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        ctx.save_for_backward(out, lse, others[1], *tensors.values())
        ctx.names, ctx.operator = tuple(tensors), operator
        ctx.numbers = {name: x for name, x in given.items() if name not in tensors}

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], *_: Any) -> tuple[Any, ...]:
        operator, needs = ctx.operator, ctx.needs_input_grad
        others = (None,) * (len(needs) - 4)
        if dout is None:
            return (None, None, None, None, *others)
        out, lse, rng_state, *tensors = ctx.saved_tensors
        given = {**ctx.numbers, **dict(zip(ctx.names, tensors))}
        given.update(dout=dout, out=out, softmax_lse=lse, rng_state=rng_state)
        names = operator.counterpart.names
        values = tuple(given.get(name) for name in names)
        gradients = Backward.apply(_gradients, operator.counterpart, *values)
        return (None, *(g if needed else None for g, needed in zip(gradients, needs[1:4])), *others)


def _gradients(operator: Any, *values: Any) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv in new memory, by one of upstream's backward operators."""
    given = dict(zip(operator.names, values))
    into = tuple(torch.empty_like(given[name]) for name in "qkv")
    given.update(zip(("dq", "dk", "dv"), into), deterministic=False)
    given.update((name, False) for name in ("zero_tensors",) if name in given)
    operator.packet(*given.values())
    return into


def _autograd_of(operator: Any) -> None:
    def run(*arguments: Any) -> Any:
        q, k, v = arguments[:3]
        if q.is_cuda and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            refuse_missing_gradients(q, v, _ABSENT)
        return _Attention.apply(operator, *arguments)

    _operators.library.impl(operator.packet.__name__, run, "Autograd")


_autograd_of(_operators.forward_operator)
_autograd_of(_operators.varlen_forward_operator)
