"""The operators torch sees: rocflash::forward and rocflash::backward, with fakes and autograd.

They are registered by hand rather than with torch.library.custom_op, which torch 2.2 and 2.3 do not
have and which costs more per call. In plain eager mode even the dispatcher is left out: `attend`
goes to it only when something is there to be told (a compiler, a mode, a tensor subclass).
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _backend, _direct, _shapes, _torch
from ._errors import Unsupported
from ._options import TENSOR_OPTIONS, TENSORS, Options, refuse_gradients
from ._state import PLAIN, grad_enabled, is_compiling, modes, tracing, transforms_active

_OPTIONS = (
    ", ".join(f"Tensor? {name}" for name in TENSOR_OPTIONS)
    + ", SymInt max_seqlen_q, SymInt max_seqlen_k, bool causal, SymInt window_left"
    ", SymInt window_right, SymInt attention_chunk, float? softmax_scale, float softcap"
    ", float dropout_p, bool deterministic, SymInt num_splits, int num_threads, int backend"
)
_SINKS, _BIAS, _SLOPES = map(Options._fields.index, ("sinks", "bias", "alibi_slopes"))
_DEVICES = ("CPU", "CUDA")

Outputs = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]

_backend.compiling = is_compiling
library = torch.library.Library("rocflash", "DEF")
_tags = (torch.Tag.pt2_compliant_tag,) if hasattr(torch.Tag, "pt2_compliant_tag") else ()


def define(lib: torch.library.Library, schema: str) -> None:
    lib.define(schema, tags=_tags)


def register_fake(name: str, fake: Any) -> None:
    register = getattr(torch.library, "register_fake", None) or torch.library.impl_abstract
    register(name)(fake)


define(
    library,
    f"forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool return_weights)"
    " -> (Tensor out, Tensor lse, Tensor weights)",
)
define(
    library,
    f"backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}"
    ", bool[4] needed) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)",
)
# For graphs that are compiled where use_backend may choose: the backend is looked up when forward runs,
# and its number goes to backward as a tensor, since autograd's threads have a context of their own.
define(
    library,
    f"forward_in_context(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool return_weights)"
    " -> (Tensor out, Tensor lse, Tensor weights, Tensor backend)",
)
define(
    library,
    "backward_in_context(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse"
    f", {_OPTIONS}, bool[4] needed, Tensor backend)"
    " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)",
)


def _with_weights(q: Tensor, found: tuple[Tensor, Tensor, Optional[Tensor]]) -> Outputs:
    """Operators return no None: weights that are not asked for are empty."""
    out, lse, weights = found
    return out, lse, q.new_empty((0,), dtype=torch.float32) if weights is None else weights


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    return _with_weights(q, _torch.forward(q, k, v, rest[:-1], rest[-1]))


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    o = Options(*rest[:-1])
    packed_k = o.cu_seqlens_k is not None and o.block_table is None
    _shapes.check_ranks(q.shape, k.shape, v.shape, o.cu_seqlens_q is not None, packed_k)
    weights: tuple[Any, ...] = (0,)
    if rest[-1]:
        cu_seqlens, table = (
            None if x is None else x.shape for x in (o.cu_seqlens_q, o.block_table)
        )
        weights = _shapes.weights_shape(
            q.shape, k.shape, cu_seqlens, table, o.max_seqlen_q, o.max_seqlen_k
        )
    return (
        q.new_empty(_shapes.out_shape(q.shape, v.shape)),
        q.new_empty(_shapes.lse_shape(q.shape), dtype=torch.float32),
        q.new_empty(weights, dtype=torch.float32),
    )


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Gradients:
    found = _torch.backward(dout, q, k, v, out, lse, rest[:-1], tuple(rest[-1]))
    dtypes = (q.dtype, k.dtype, v.dtype, torch.float32)
    return tuple(  # type: ignore[return-value]
        q.new_empty((0,), dtype=dtype) if x is None else x for x, dtype in zip(found, dtypes)
    )


def _backward_fake(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Gradients:
    sinks, needed = rest[_SINKS], rest[-1]

    def like(x: Tensor, wanted: bool) -> Tensor:
        return x.new_empty(x.shape if wanted else (0,))

    shape = sinks.shape if needed[3] and sinks is not None else (0,)
    dsinks = q.new_empty(shape, dtype=torch.float32)
    return like(q, needed[0]), like(k, needed[1]), like(v, needed[2]), dsinks


def _with_backend(options: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return (*options[:-1], number)


def _forward_in_context(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    number = _backend.current()
    found = _forward(q, k, v, *_with_backend(rest[:-1], number), rest[-1])
    return *found, torch.tensor([number], device="cpu")


def _forward_in_context_fake(*arguments: Any) -> tuple[Tensor, ...]:
    return *_forward_fake(*arguments), torch.empty((1,), dtype=torch.int64, device="cpu")


def _backward_in_context(*arguments: Any) -> Gradients:
    *first, needed, backend = arguments
    return _backward(*_with_backend(tuple(first), int(backend)), needed)


def _backward_in_context_fake(*arguments: Any) -> Gradients:
    return _backward_fake(*arguments[:-1])


for _name, _function, _fake in (
    ("forward", _forward, _forward_fake),
    ("backward", _backward, _backward_fake),
    ("forward_in_context", _forward_in_context, _forward_in_context_fake),
    ("backward_in_context", _backward_in_context, _backward_in_context_fake),
):
    for _key in _DEVICES:
        library.impl(_name, _function, _key)
    register_fake(f"rocflash::{_name}", _fake)


def _dispatching(x: Tensor) -> bool:
    """Whether anything but plain eager execution wants to see the call."""
    return type(x) not in PLAIN or modes() > 0


class _Backward(torch.autograd.Function):
    """Runs the gradients where autograd or a functional transform watches them.

    There is no second derivative, and asking for one is refused instead of answered with zeros.
    """

    @staticmethod
    def forward(operator: Any, *arguments: Any) -> Gradients:
        """By an operator below the dispatcher's autograd key; by none, straight."""
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


def _backward_autograd(*arguments: Any) -> Gradients:
    return _Backward.apply(torch.ops.rocflash.backward, *arguments)


def _backward_in_context_autograd(*arguments: Any) -> Gradients:
    return _Backward.apply(torch.ops.rocflash.backward_in_context, *arguments)


library.impl("backward", _backward_autograd, "Autograd")
library.impl("backward_in_context", _backward_in_context_autograd, "Autograd")


class _Attention(torch.autograd.Function):
    """Autograd for both ways in: straight (`direct`) or below the dispatcher's autograd key."""

    @staticmethod
    def forward(
        direct: bool, return_weights: bool, q: Tensor, k: Tensor, v: Tensor, *options: Any
    ) -> Outputs:
        if direct:
            return _with_weights(q, _torch.forward(q, k, v, options, return_weights))
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.rocflash.forward(q, k, v, *options, return_weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        direct, _, q, k, v, *options = inputs
        out, lse, weights = output
        ctx.mark_non_differentiable(lse, weights)
        _remember(ctx, direct, q, k, v, tuple(options), out, lse)

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], *_: Any) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        dq, dk, dv, dsinks = _recall(ctx, dout, (*needs[2:5], needs[5 + _SINKS]))
        others: list[Optional[Tensor]] = [None] * len(Options._fields)
        others[_SINKS] = dsinks
        return (None, None, dq, dk, dv, *others)


class _EagerAttention(torch.autograd.Function):
    """The same in torch's older form, which functional transforms cannot use but costs half.

    Only what the caller wants is returned: every output costs autograd time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Optional[Tensor],
        options: tuple[Any, ...],
        return_lse: bool,
        return_weights: bool,
    ) -> Any:
        out, lse, weights = _torch.forward(q, k, v, options, return_weights)
        _remember(ctx, True, q, k, v, options, out, lse)
        if not return_lse and not return_weights:
            return out
        others = (lse,) if weights is None else (lse, weights)
        ctx.mark_non_differentiable(*others)
        return (out, *others)

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], *_: Any) -> tuple[Any, ...]:
        return (*_recall(ctx, dout, ctx.needs_input_grad[:4]), None, None, None)


class _PlainAttention(torch.autograd.Function):
    """The same once more for `out` alone, of a call without options that are tensors.

    What autograd need not carry to and fro is saved: that is a tenth of a short call.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> Tensor:
        out, lse, _ = _torch.forward(q, k, v, options)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        return out

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor]) -> tuple[Any, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        # Of the four inputs the last never needs a gradient, and none of sinks is there either.
        return _gradients(True, dout, q, k, v, out, lse, ctx.options, ctx.needs_input_grad)


def _remember(
    ctx: Any,
    direct: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    out: Tensor,
    lse: Tensor,
) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, *options[:TENSORS])
    ctx.numbers = options[TENSORS:]
    ctx.direct = direct


def _recall(ctx: Any, dout: Optional[Tensor], needed: tuple[bool, ...]) -> Any:
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    options = (*tensors, *ctx.numbers)
    return _gradients(ctx.direct, dout, q, k, v, out, lse, options, needed)


def _gradients(
    direct: bool,
    dout: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: tuple[Any, ...],
    needed: tuple[bool, ...],
) -> Any:
    """Gradients of q, k, v and sinks, None where they are not needed."""
    if dout is None or True not in needed:
        return (None,) * 4
    if direct and not (_dispatching(dout) or transforms_active() or grad_enabled()):
        found = _direct.backward(dout, q, k, v, out, lse, options, needed)
        if found is not None:
            return found
        dq, dk, dv, dsinks = _torch.backward(dout, q, k, v, out, lse, options, needed)
    else:
        arguments = (dout, q, k, v, out, lse, *options, needed)
        if not direct or _dispatching(dout):
            found = torch.ops.rocflash.backward(*arguments)
        else:  # someone may differentiate again
            found = _Backward.apply(None, *arguments)
        dq, dk, dv, dsinks = (g if wanted else None for g, wanted in zip(found, needed))
    if dsinks is not None:
        dsinks = dsinks.to(options[_SINKS].dtype)
    return dq, dk, dv, dsinks


class _AttentionInContext(torch.autograd.Function):
    """As `_Attention`, for the operators that find their backend when they run."""

    @staticmethod
    def forward(
        return_weights: bool, q: Tensor, k: Tensor, v: Tensor, *options: Any
    ) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.rocflash.forward_in_context(q, k, v, *options, return_weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, q, k, v, *options = inputs
        out, lse, weights, backend = output
        ctx.mark_non_differentiable(lse, weights, backend)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *options[:TENSORS], backend)
        ctx.numbers = options[TENSORS:]

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], *_: Any) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        needed = (*needs[1:4], needs[4 + _SINKS])
        others: list[Optional[Tensor]] = [None] * len(Options._fields)
        if dout is None or True not in needed:
            return (None, None, None, None, *others)
        *tensors, backend = ctx.saved_tensors
        found = torch.ops.rocflash.backward_in_context(
            dout, *tensors, *ctx.numbers, needed, backend
        )
        dq, dk, dv, dsinks = (g if wanted else None for g, wanted in zip(found, needed))
        if dsinks is not None:
            dsinks = dsinks.to(tensors[5 + _SINKS].dtype)
        others[_SINKS] = dsinks
        return (None, dq, dk, dv, *others)


def _forward_in_context_autograd(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _AttentionInContext.apply(rest[-1], q, k, v, *rest[:-1])


library.impl("forward_in_context", _forward_in_context_autograd, "Autograd")


def _forward_autograd(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    return _Attention.apply(False, rest[-1], q, k, v, *rest[:-1])


library.impl("forward", _forward_autograd, "Autograd")


def is_plain(q: Any, k: Any, v: Any) -> bool:
    """Whether the dispatcher can be left out: nobody is there to be told of the call."""
    return (
        not is_compiling()
        and not tracing()
        and type(q) in PLAIN
        and type(k) in PLAIN
        and type(v) in PLAIN
        and not modes()
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    return_lse: bool,
    return_weights: bool,
) -> Any:
    """(out, lse, weights) with gradients for q, k, v and sinks, by the shortest way there is.

    What is not asked for may be None. Only where `is_plain`.
    """
    if options[-1] == _backend.FROM_CONTEXT:  # a compiler traced as far as here and gave up
        options = _with_backend(options, _backend.current())
    sinks, bias, slopes = options[_SINKS], options[_BIAS], options[_SLOPES]
    if bias is not None or slopes is not None:
        refuse_gradients(bias, slopes)
    if transforms_active():
        return _Attention.apply(True, return_weights, q, k, v, *options)
    if grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (sinks is not None and getattr(sinks, "requires_grad", False))
    ):
        tensors = [x for x in options[:TENSORS] if x is not None]
        if not (tensors or return_lse or return_weights):
            return _PlainAttention.apply(q, k, v, options), None, None
        found = _EagerAttention.apply(q, k, v, sinks, options, return_lse, return_weights)
        if not isinstance(found, tuple):
            return found, None, None
        return found if return_weights else (*found, None)
    return _torch.infer(q, k, v, options, return_lse, return_weights)
