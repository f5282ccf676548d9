"""The operators torch sees, with fakes and gradients: rocflash::forward and rocflash::backward.

They are registered by hand rather than with torch.library.custom_op, which torch 2.2 and 2.3 do not
have and which costs more per call. `attention_of_tensors` goes to them only when something is there to be
told (a compiler, a mode, a tensor subclass); eager calls come here without torch's dispatcher.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .._c import choice, shapes
from .._c.options import GRADED_AT, NAMES, SCHEMA, TENSORS, Options
from ..errors import InvalidArgument, Unsupported
from . import calls, fast
from .plan import GRADIENTS
from .route import differentiated_again, followed, is_compiling

_DEVICES = ("CPU", "CUDA")

Outputs = tuple[Tensor, ...]  # out, lse, weights
Gradients = tuple[Tensor, ...]  # as in plan.GRADIENTS

_BIAS = NAMES.index("bias")
choice.compiling = is_compiling
library = torch.library.Library("rocflash", "DEF")
_tags = (torch.Tag.pt2_compliant_tag,) if hasattr(torch.Tag, "pt2_compliant_tag") else ()


def define(lib: torch.library.Library, schema: str) -> None:
    lib.define(schema, tags=_tags)


def register_fake(name: str, fake: Any) -> None:
    register = getattr(torch.library, "register_fake", None) or torch.library.impl_abstract
    register(name)(fake)


def _with_weights(q: Tensor, found: tuple[Tensor, Tensor, Optional[Tensor]]) -> Outputs:
    """Operators return no None: weights that are not asked for are empty."""
    out, lse, weights = found
    return out, lse, q.new_empty((0,), dtype=torch.float32) if weights is None else weights


def _with_a_backend(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Options of a raw call that was compiled leave the choice to the context."""
    return with_current_backend(options) if options[-1] == choice.FROM_CONTEXT else options


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    return _with_weights(q, calls.forward(q, k, v, _with_a_backend(rest[:-1]), rest[-1]))


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    o = Options(*rest[:-1])
    packed_k = o.cu_seqlens_k is not None and o.block_table is None
    shapes.check_ranks(q.shape, k.shape, v.shape, o.cu_seqlens_q is not None, packed_k)
    weights: tuple[Any, ...] = (0,)
    if rest[-1]:
        cu_seqlens, table = (
            None if x is None else x.shape for x in (o.cu_seqlens_q, o.block_table)
        )
        weights = shapes.weights_shape(
            q.shape, k.shape, cu_seqlens, table, o.max_seqlen_q, o.max_seqlen_k
        )
    return (
        q.new_empty(shapes.out_shape(q.shape, v.shape)),
        q.new_empty(shapes.lse_shape(q.shape), dtype=torch.float32),
        q.new_empty(weights, dtype=torch.float32),
    )


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Gradients:
    options = _with_a_backend(rest[:-1])
    found = calls.backward(dout, q, k, v, out, lse, options, _all_needed(rest[-1]))
    dtypes = _dtypes(q, k, v, rest)
    return tuple(
        q.new_empty((0,), dtype=dtype) if x is None else x for x, dtype in zip(found, dtypes)
    )


def _all_needed(needed: Any) -> tuple[bool, ...]:
    """Torch does not look at the length. Graphs that it keeps on disk may know fewer gradients."""
    if len(needed) > len(GRADIENTS):
        raise InvalidArgument(f"needed: {len(needed)} entries; there are {len(GRADIENTS)} gradients")
    return (*needed, *(False,) * (len(GRADIENTS) - len(needed)))


def _dtypes(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> tuple[torch.dtype, ...]:
    """Of the gradients as the library gives them."""
    bias = options[_BIAS]
    of_bias = q.dtype if bias is None else bias.dtype
    return q.dtype, k.dtype, v.dtype, torch.float32, of_bias, torch.float32


def _backward_fake(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Gradients:
    of = (q, k, v, *(rest[at] for at in GRADED_AT))
    return tuple(
        q.new_empty(x.shape if wanted and x is not None else (0,), dtype=dtype)
        for x, wanted, dtype in zip(of, _all_needed(rest[-1]), _dtypes(q, k, v, rest))
    )


# Two more for graphs that are compiled where use_backend may choose. The backend is looked up when
# forward runs, and its number goes to backward as a tensor: autograd's threads have their own context.


def _with_backend(options: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return (*options[:-1], number)


def with_current_backend(options: tuple[Any, ...]) -> tuple[Any, ...]:
    return _with_backend(options, choice.current())


def _forward_in_context(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    number = choice.current()
    found = _forward(q, k, v, *_with_backend(rest[:-1], number), rest[-1])
    return (*found, torch.tensor([number], device="cpu"))


def _forward_in_context_fake(*arguments: Any) -> Outputs:
    return (*_forward_fake(*arguments), torch.empty((1,), dtype=torch.int64, device="cpu"))


def _backward_in_context(*arguments: Any) -> Gradients:
    *first, needed, chosen = arguments
    return _backward(*_with_backend(tuple(first), int(chosen)), needed)


def _backward_in_context_fake(*arguments: Any) -> Gradients:
    return _backward_fake(*arguments[:-1])


_OUTPUTS = "Tensor out, Tensor lse, Tensor weights"
_INPUTS = "Tensor q, Tensor k, Tensor v"
_SAVED = f"Tensor dout, {_INPUTS}, Tensor out, Tensor lse, {SCHEMA}, bool[{len(GRADIENTS)}] needed"
_GRADIENTS = f"({', '.join(f'Tensor {name}' for name in GRADIENTS)})"


def _register(lib: torch.library.Library, schema: str, function: Any, fake: Any) -> Any:
    define(lib, schema)
    name = schema.partition("(")[0]
    for key in _DEVICES:
        lib.impl(name, function, key)
    register_fake(f"{lib.ns}::{name}", fake)
    return getattr(getattr(torch.ops, lib.ns), name)


class Backward(torch.autograd.Function):
    """Runs the gradients where autograd or a functional transform watches them.

    There is no second derivative, and asking for one is refused instead of answered with zeros.
    """

    @staticmethod
    def forward(operator: Any, *arguments: Any) -> Gradients:
        """By an operator below the dispatcher's autograd key, or straight without one."""
        if operator is None:
            return _backward(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported("rocflash: gradients of attention's gradients are not supported")


class _Attention(torch.autograd.Function):
    """Autograd in the form that functional transforms and the dispatcher's autograd key want."""

    @staticmethod
    def forward(
        operator: Any, return_weights: bool, q: Tensor, k: Tensor, v: Tensor, *options: Any
    ) -> Outputs:
        """By an operator below the dispatcher's autograd key, or straight without one."""
        if operator is None:
            return _with_weights(q, calls.forward(q, k, v, options, return_weights))
        with torch._C._AutoDispatchBelowAutograd():
            return operator(q, k, v, *options, return_weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        operator, _, q, k, v, *options = inputs
        out, lse, *others = output  # weights; and the backend, where the context had it
        ctx.mark_non_differentiable(lse, *others)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *options[:TENSORS], *others[1:])
        ctx.numbers, ctx.direct = tuple(options[TENSORS:]), operator is None
        ctx.gradients = _gradients_of.get(operator, torch.ops.rocflash.backward)

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], *_: Any) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        needed = (*needs[2:5], *(needs[5 + at] for at in GRADED_AT))
        others: list[Optional[Tensor]] = [None] * len(NAMES)
        if dout is None or True not in needed:
            return (None, None, None, None, None, *others)
        inputs, rest = ctx.saved_tensors[: 5 + TENSORS], ctx.saved_tensors[5 + TENSORS :]
        arguments = (dout, *inputs, *ctx.numbers, needed)
        if not ctx.direct or followed(dout):
            found = ctx.gradients(*arguments, *rest)
        else:
            found = Backward.apply(None, *arguments)
        dq, dk, dv, *of_options = _of_those_needed(found, needed, inputs[5:])
        for at, gradient in zip(GRADED_AT, of_options):
            others[at] = gradient
        return (None, None, dq, dk, dv, *others)


class _EagerAttention(torch.autograd.Function):
    """Autograd in torch's older form, which functional transforms cannot use but costs half.

    What autograd need not carry to and fro is left out, a tenth of a short call: only the outputs that
    the caller wants are returned, and for `out` alone, of a call without options that are tensors,
    there is nothing `more`: whether lse and weights are wanted, and the options that have gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], *more: Any
    ) -> Any:
        out, lse, weights = calls.forward(q, k, v, options, bool(more) and more[1])
        ctx.set_materialize_grads(False)
        if not more:
            ctx.save_for_backward(q, k, v, out, lse)
            ctx.options, ctx.more = options, False
            return out
        ctx.save_for_backward(q, k, v, out, lse, *options[:TENSORS])
        ctx.options, ctx.more = options[TENSORS:], True
        if not more[0] and not more[1]:
            return out
        others = (lse,) if weights is None else (lse, weights)
        ctx.mark_non_differentiable(*others)
        return (out, *others)

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], *_: Any) -> tuple[Any, ...]:
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if not ctx.more:  # the fourth input are the options: None
            needed = (*needed[:3], False, False, False)
            return _gradients((dout, q, k, v, out, lse), ctx.options, needed)[:4]
        options = (*tensors, *ctx.options)
        needed = (*needed[:3], *needed[6:])
        dq, dk, dv, *others = _gradients((dout, q, k, v, out, lse), options, needed)
        return dq, dk, dv, None, None, None, *others


def _gradients(saved: tuple[Any, ...], options: tuple[Any, ...], needed: tuple[bool, ...]) -> Any:
    """All gradients, None where they are not needed. What is `saved` is in the order of `Saved` in _c/options.py."""
    if saved[0] is None or True not in needed:
        return (None,) * len(GRADIENTS)
    if followed(saved[0]):
        found = torch.ops.rocflash.backward(*saved, *options, needed)
    elif differentiated_again():
        found = Backward.apply(None, *saved, *options, needed)
    else:
        found = fast.backward(saved, options, needed)
        if found is not None:
            return found
        found = calls.backward(*saved, options, needed)
    return _of_those_needed(found, needed, options)


def _of_those_needed(found: Any, needed: tuple[bool, ...], options: Any) -> Any:
    """The library's gradients, None where they are not needed; an operator returns no None."""
    dq, dk, dv, *others = (g if wanted else None for g, wanted in zip(found, needed))
    return dq, dk, dv, *map(_as, (options[at] for at in GRADED_AT), others)


def _as(option: Optional[Tensor], gradient: Optional[Tensor]) -> Optional[Tensor]:
    """The library has the gradients of sinks in f32."""
    return gradient if option is None or gradient is None else gradient.to(option.dtype)


def _autograd_of(lib: torch.library.Library, forward: Any, backward: Any) -> None:
    """Registers gradients for a pair of operators."""

    def run_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
        graded = (q, k, v, *(rest[at] for at in GRADED_AT if rest[at] is not None))
        if calls.may_lack_gradients(q, rest[:-1]) and torch.is_grad_enabled() and any(x.requires_grad for x in graded):
            calls.refuse_missing_gradients(q, v, rest[:-1])
        return _Attention.apply(forward, rest[-1], q, k, v, *rest[:-1])

    def run_backward(*arguments: Any) -> Gradients:
        return Backward.apply(backward, *arguments)

    _gradients_of[forward] = backward
    for operator, function in ((forward, run_forward), (backward, run_backward)):
        lib.impl(operator.__name__, function, "Autograd")


# Of each forward operator, the one that its gradients come from.
_gradients_of: dict[Any, Any] = {}


def register_operators(lib: torch.library.Library, prefix: str = "") -> tuple[Any, Any]:
    """Registers the two pairs in a namespace; returns forward and forward_in_context.

    Those who look at operators may know them by their namespace: flash-attn has some of its own.
    """
    takes = f"{_INPUTS}, {SCHEMA}, bool return_weights"
    forward, backward = (
        _register(lib, f"{prefix}forward({takes}) -> ({_OUTPUTS})", _forward, _forward_fake),
        _register(lib, f"{prefix}backward({_SAVED}) -> {_GRADIENTS}", _backward, _backward_fake),
    )
    _autograd_of(lib, forward, backward)
    in_context, backward = (
        _register(
            lib,
            f"{prefix}forward_in_context({takes}) -> ({_OUTPUTS}, Tensor chosen)",
            _forward_in_context,
            _forward_in_context_fake,
        ),
        _register(
            lib,
            f"{prefix}backward_in_context({_SAVED}, Tensor chosen) -> {_GRADIENTS}",
            _backward_in_context,
            _backward_in_context_fake,
        ),
    )
    _autograd_of(lib, in_context, backward)
    return forward, in_context


register_operators(library)


def attend_eagerly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    return_lse: bool,
    return_weights: bool,
) -> tuple[Any, Any, Any]:
    """(out, lse, weights) with all gradients; None for what is not asked for."""
    if calls.may_lack_gradients(q, options):
        calls.refuse_missing_gradients(q, v, options)
    if not (return_lse or return_weights or any([x is not None for x in options[:TENSORS]])):
        return _EagerAttention.apply(q, k, v, options), None, None
    graded = [options[at] for at in GRADED_AT]
    found = _EagerAttention.apply(q, k, v, options, return_lse, return_weights, *graded)
    if not isinstance(found, tuple):
        return found, None, None
    return found if return_weights else (*found, None)


def attend_in_transforms(
    q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], return_weights: bool
) -> Outputs:
    """(out, lse, weights), weights empty unless asked for, as torch.func can follow them."""
    if calls.may_lack_gradients(q, options):
        calls.refuse_missing_gradients(q, v, options)
    return _Attention.apply(None, return_weights, q, k, v, *options)
