"""torch's operators, with fakes and gradients: rocflash::forward and rocflash::backward.

They are not registered with torch.library.custom_op, which torch 2.2 and 2.3 lack and which costs
more per call. `attention_of_tensors` uses the operators only for compilers, modes and tensor
subclasses; eager calls bypass torch's dispatcher.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .._c import choice, shapes
from .._c.options import GRADED_AT, NAMES, SCHEMA, TENSORS, Options, Saved
from ..errors import InvalidArgument, Unsupported
from . import calls, fast, forward_mode, profiling
from .options import check_tensor
from .plan import GRADIENTS, RESULTS
from .route import differentiated_again, followed, is_compiling, transforms_active

_DEVICES = ("CPU", "CUDA")

Outputs = tuple[Tensor, ...]  # out, lse, weights
Gradients = tuple[Tensor, ...]  # as in plan.RESULTS: delta is the last

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
    """Operators return no None: weights that are not requested are empty."""
    out, lse, weights = found
    return out, lse, q.new_empty((0,), dtype=torch.float32) if weights is None else weights


def with_a_backend(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """In options of a compiled raw call the context selects the backend."""
    return with_current_backend(options) if options[-1] == choice.FROM_CONTEXT else options


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    return _with_weights(q, calls.forward(q, k, v, with_a_backend(rest[:-1]), rest[-1]))


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
    options, needed, dlse = _parts(rest)
    found = calls.backward(dout, q, k, v, out, lse, with_a_backend(options), needed, dlse=dlse)
    dtypes = _dtypes(q, k, v, rest)
    return tuple(
        q.new_empty((0,), dtype=dtype) if x is None else x for x, dtype in zip(found, dtypes)
    )


def _parts(rest: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[bool, ...], Optional[Tensor]]:
    """(options, needed, dlse) of a backward operator; torch omits defaults at the end."""
    options, needed, *dlse = rest[: len(NAMES)], *rest[len(NAMES) :]
    return options, _all_needed(needed), dlse[0] if dlse else None


def _all_needed(needed: Any) -> tuple[bool, ...]:
    """Checks the length, which torch does not. Cached graphs of older versions may have fewer
    results.
    """
    if len(needed) > len(RESULTS):
        raise InvalidArgument(
            f"needed has {len(needed)} entries; it must have {len(RESULTS)}, one per result"
        )
    return (*needed, *(False,) * (len(RESULTS) - len(needed)))


def _dtypes(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> tuple[torch.dtype, ...]:
    """The dtypes of the library's gradients and of delta."""
    bias = options[_BIAS]
    of_bias = q.dtype if bias is None else bias.dtype
    return q.dtype, k.dtype, v.dtype, torch.float32, of_bias, torch.float32, torch.float32


def _backward_fake(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Gradients:
    of = (q, k, v, *(rest[at] for at in GRADED_AT), lse)
    return tuple(
        q.new_empty(x.shape if wanted and x is not None else (0,), dtype=dtype)
        for x, wanted, dtype in zip(of, _parts(rest)[1], _dtypes(q, k, v, rest))
    )


# Two more operators, for graphs compiled where use_backend may be active. The backend is read when
# forward runs and passed to backward as a tensor, since autograd's threads have their own context.


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


_CHOSEN = len(Saved._fields) - 1 + len(NAMES) + 1  # its index in the arguments of backward


def _backward_in_context(*arguments: Any) -> Gradients:
    *first, needed = arguments[:_CHOSEN]
    options = _with_backend(tuple(first), int(arguments[_CHOSEN]))
    return _backward(*options, needed, *arguments[_CHOSEN + 1 :])


def _backward_in_context_fake(*arguments: Any) -> Gradients:
    return _backward_fake(*arguments[:_CHOSEN])


_OUTPUTS = "Tensor out, Tensor lse, Tensor weights"
_INPUTS = "Tensor q, Tensor k, Tensor v"
_SAVED = f"Tensor dout, {_INPUTS}, Tensor out, Tensor lse, {SCHEMA}, bool[{len(RESULTS)}] needed"
_DLSE = "Tensor? dlse=None"
_GRADIENTS = f"({', '.join(f'Tensor {name}' for name in RESULTS)})"


def longest(name: str, cu_seqlens: Any) -> int:
    """The length of the longest sequence. Synchronizes with a GPU."""
    check_tensor(name, cu_seqlens)
    return int(cu_seqlens.diff().max()) if cu_seqlens.numel() > 1 else 0


def with_lengths(q: Tensor, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options with max_seqlen_q and max_seqlen_k, which determine kernels and the shape of the
    weights.
    """
    o, least = Options(*options), 1 if q.is_cuda else 0
    if o.cu_seqlens_q is not None and not o.max_seqlen_q:
        o = o._replace(max_seqlen_q=max(least, longest("cu_seqlens_q", o.cu_seqlens_q)))
    if o.cu_seqlens_k is not None and not o.max_seqlen_k:
        o = o._replace(max_seqlen_k=max(least, longest("cu_seqlens_k", o.cu_seqlens_k)))
    return tuple(o)


def register_operator(lib: torch.library.Library, schema: str, function: Any, fake: Any) -> Any:
    define(lib, schema)
    name = schema.partition("(")[0]
    implementation = profiling.of_operator(f"{lib.ns}::{name}", function)
    for key in _DEVICES:
        lib.impl(name, implementation, key)
    register_fake(f"{lib.ns}::{name}", fake)
    return getattr(getattr(torch.ops, lib.ns), name)


class Backward(torch.autograd.Function):
    """Computes the gradients under autograd or a functional transform.

    Second derivatives are not supported: requesting one raises instead of returning zeros.
    """

    @staticmethod
    def forward(operator: Any, *arguments: Any) -> Gradients:
        """With an operator below the dispatcher's autograd key, or directly."""
        if operator is None:
            return _backward(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported("rocflash does not support gradients of attention's gradients")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise Unsupported(
            "rocflash does not support forward-mode tangents of attention's gradients"
        )


def _given(dout: Optional[Tensor], out: Tensor) -> Tensor:
    """The gradient of out; zeros where only lse has one."""
    return torch.zeros_like(out) if dout is None else dout


class _Attention(torch.autograd.Function):
    """Autograd with setup_context, for functional transforms and the dispatcher's autograd key."""

    @staticmethod
    def forward(
        operator: Any, return_weights: bool, q: Tensor, k: Tensor, v: Tensor, *options: Any
    ) -> Outputs:
        """With an operator below the dispatcher's autograd key, or directly."""
        if operator is None:
            return _with_weights(q, calls.forward(q, k, v, options, return_weights))
        with torch._C._AutoDispatchBelowAutograd():
            return operator(q, k, v, *options, return_weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        operator, _, q, k, v, *options = inputs
        out, lse, *others = output  # weights; and the backend, where the context had it
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *options[:TENSORS], *others[1:])
        ctx.save_for_forward(q, k, v, out, lse, *options[:TENSORS], *others[1:])
        ctx.numbers, ctx.direct = tuple(options[TENSORS:]), operator is None
        ctx.gradients = _gradients_of.get(operator, torch.ops.rocflash.backward)

    @staticmethod
    def jvp(ctx: Any, _operator: Any, _return_weights: Any, *tangents: Any) -> tuple[Any, ...]:
        """The tangents of out and lse; weights are not differentiable, in either mode."""
        q, k, v, _, _, *tensors = ctx.saved_tensors
        options = (*tensors[:TENSORS], *ctx.numbers)
        if len(tensors) > TENSORS:  # the backend that the context had
            options = _with_backend(options, int(forward_mode.raw(tensors[TENSORS])))
        options = with_a_backend(options)
        forward_mode.refuse_missing_tangents(k, options)
        raw = [forward_mode.raw(x) for x in (q, k, v, *options)]
        with forward_mode.outside_transforms():
            lengths = with_lengths(raw[0], tuple(raw[3:]))
            weights = calls.forward(raw[0], raw[1], raw[2], lengths, True)[2]
            assert weights is not None
        given = (*tangents[:3], *(tangents[3 + at] for at in GRADED_AT))
        found = forward_mode.attention_tangent(q, k, v, options, weights, given)
        return (*found, None, *(None for _ in tensors[TENSORS:]))

    @staticmethod
    def backward(
        ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], *_: Any
    ) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        needed = (*needs[2:5], *(needs[5 + at] for at in GRADED_AT))
        others: list[Optional[Tensor]] = [None] * len(NAMES)
        if (dout is None and dlse is None) or True not in needed:
            return (None, None, None, None, None, *others)
        inputs, rest = ctx.saved_tensors[: 5 + TENSORS], ctx.saved_tensors[5 + TENSORS :]
        dout = _given(dout, inputs[3])
        arguments = (dout, *inputs, *ctx.numbers, needed, *rest, dlse)
        if not ctx.direct or followed(dout):
            found = ctx.gradients(*arguments)
        else:
            found = Backward.apply(None, *arguments)
        dq, dk, dv, *of_options = _of_those_needed(found, needed, inputs[5:])
        for at, gradient in zip(GRADED_AT, of_options):
            others[at] = gradient
        return (None, None, dq, dk, dv, *others)


class _EagerAttention(torch.autograd.Function):
    """Autograd in torch's older form, which functional transforms cannot use but which costs half.

    Only the requested outputs pass through autograd, which saves 10% of a short call. `more` has
    whether lse and weights are requested, and the options with gradients; it is empty if only `out`
    is requested, of a call without tensor options.
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
        if weights is None:
            return out, lse
        ctx.mark_non_differentiable(weights)
        return out, lse, weights

    @staticmethod
    def backward(
        ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor] = None, *_: Any
    ) -> tuple[Any, ...]:
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if not ctx.more:  # the fourth input are the options: None
            needed = (*needed[:3], False, False, False)
            return _gradients((dout, q, k, v, out, lse, None), ctx.options, needed)[:4]
        options = (*tensors, *ctx.options)
        needed = (*needed[:3], *needed[6:])
        if dlse is not None:
            dout = _given(dout, out)
        dq, dk, dv, *others = _gradients((dout, q, k, v, out, lse, dlse), options, needed)
        return dq, dk, dv, None, None, None, *others


def _gradients(saved: tuple[Any, ...], options: tuple[Any, ...], needed: tuple[bool, ...]) -> Any:
    """All gradients, None if not needed. `saved` is in the order of `Saved` in _c/options.py."""
    if saved[0] is None or True not in needed:
        return (None,) * len(GRADIENTS)
    *first, dlse = saved
    if followed(saved[0]):
        found = torch.ops.rocflash.backward(*first, *options, needed, dlse)
    elif differentiated_again() or forward_mode.has_tangent(*saved):
        found = Backward.apply(None, *first, *options, needed, dlse)
    else:
        found = fast.backward(saved, options, needed)
        if found is not None:
            return found
        dout, q, k, v, out, lse = first
        found = calls.backward(dout, q, k, v, out, lse, options, needed, dlse=dlse)
    return _of_those_needed(found, needed, options)


def _of_those_needed(found: Any, needed: tuple[bool, ...], options: Any) -> Any:
    """The library's gradients, None if not needed; an operator returns no None."""
    dq, dk, dv, *others = (g if wanted else None for g, wanted in zip(found, needed))
    return dq, dk, dv, *map(_as, (options[at] for at in GRADED_AT), others)


def _as(option: Optional[Tensor], gradient: Optional[Tensor]) -> Optional[Tensor]:
    """Converts gradients to the dtypes of the inputs: the library returns those of sinks in f32."""
    return gradient if option is None or gradient is None else gradient.to(option.dtype)


def _autograd_of(lib: torch.library.Library, forward: Any, backward: Any) -> None:
    """Registers gradients for a pair of operators."""

    def run_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
        graded = (q, k, v, *(rest[at] for at in GRADED_AT if rest[at] is not None))
        if (
            calls.may_lack_gradients(q, rest[:-1])
            and torch.is_grad_enabled()
            and any(x.requires_grad for x in graded)
        ):
            calls.refuse_missing_gradients(q, v, rest[:-1])
        try:
            return _Attention.apply(forward, rest[-1], q, k, v, *rest[:-1])
        except NotImplementedError as error:
            if not transforms_active() or isinstance(error, Unsupported):
                raise
            raise Unsupported(
                f"torch.ops.{lib.ns}.{forward.__name__} was called inside a torch.func transform, "
                "which the operator does not "
                "support; call rocflash.attention, which does"
            ) from error

    def run_backward(*arguments: Any) -> Gradients:
        return Backward.apply(backward, *arguments)

    _gradients_of[forward] = backward
    for operator, function in ((forward, run_forward), (backward, run_backward)):
        lib.impl(operator.__name__, function, "Autograd")


# The backward operator of each forward operator.
_gradients_of: dict[Any, Any] = {}


def register_operators(lib: torch.library.Library, prefix: str = "") -> tuple[Any, Any]:
    """Registers the two pairs in a namespace; returns forward and forward_in_context.

    Clients identify operators by namespace: flash-attn has its own.
    """
    takes = f"{_INPUTS}, {SCHEMA}, bool return_weights"
    forward, backward = (
        register_operator(
            lib, f"{prefix}forward({takes}) -> ({_OUTPUTS})", _forward, _forward_fake
        ),
        register_operator(
            lib, f"{prefix}backward({_SAVED}, {_DLSE}) -> {_GRADIENTS}", _backward, _backward_fake
        ),
    )
    _autograd_of(lib, forward, backward)
    in_context, backward = (
        register_operator(
            lib,
            f"{prefix}forward_in_context({takes}) -> ({_OUTPUTS}, Tensor chosen)",
            _forward_in_context,
            _forward_in_context_fake,
        ),
        register_operator(
            lib,
            f"{prefix}backward_in_context({_SAVED}, Tensor chosen, {_DLSE}) -> {_GRADIENTS}",
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
    """(out, lse, weights) with all gradients; None if not requested."""
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
    """(out, lse, weights), weights empty unless requested, for torch.func and forward-mode AD."""
    if calls.may_lack_gradients(q, options):
        calls.refuse_missing_gradients(q, v, options)
    return _Attention.apply(None, return_weights, q, k, v, *options)
