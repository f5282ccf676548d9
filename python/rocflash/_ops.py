"""The operators torch sees: rocflash::forward and rocflash::backward, with fakes and autograd.

They are registered by hand rather than with torch.library.custom_op, which torch 2.2 and 2.3 do not
have and which costs more per call. In plain eager mode even the dispatcher is left out: `attend`
goes to it only when something is there to be told (a compiler, a mode, a tensor subclass).
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _torch
from ._errors import Unsupported
from ._torch import TENSOR_OPTIONS, Options

_OPTIONS = (
    ", ".join(f"Tensor? {name}" for name in TENSOR_OPTIONS)
    + ", SymInt max_seqlen_q, SymInt max_seqlen_k, bool causal, SymInt window_left"
    ", SymInt window_right, SymInt attention_chunk, float? softmax_scale, float softcap"
    ", float dropout_p, bool deterministic, SymInt num_splits, int num_threads, int backend"
)
_SINKS = Options._fields.index("sinks")
_DEVICES = ("CPU", "CUDA")

Outputs = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]

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


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    return _torch.forward(q, k, v, Options(*rest[:-1]), rest[-1])


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    o = Options(*rest[:-1])
    packed = o.cu_seqlens_q is not None
    _torch.check_ranks(q, k, v, packed, _torch.key_rows_packed(o))
    shape = _torch.weights_shape(q, k, o) if rest[-1] else (0,)
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty(_torch.lse_shape(q, packed), dtype=torch.float32),
        q.new_empty(shape, dtype=torch.float32),
    )


def _gradients_for(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], needed: Any
) -> Gradients:
    def like(x: Tensor, wanted: bool) -> Tensor:
        return x.new_empty(x.shape if wanted else (0,))

    shape = sinks.shape if needed[3] and sinks is not None else (0,)
    dsinks = q.new_empty(shape, dtype=torch.float32)
    return like(q, needed[0]), like(k, needed[1]), like(v, needed[2]), dsinks


def _backward_direct(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, o: Options, needed: Any
) -> Gradients:
    gradients = _gradients_for(q, k, v, o.sinks, needed)
    asked = [g if wanted else None for g, wanted in zip(gradients, needed)]
    _torch.backward(dout, q, k, v, out, lse, o, *asked)
    return gradients


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Gradients:
    return _backward_direct(dout, q, k, v, out, lse, Options(*rest[:-1]), rest[-1])


def _backward_fake(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Gradients:
    return _gradients_for(q, k, v, Options(*rest[:-1]).sinks, rest[-1])


for _key in _DEVICES:
    library.impl("forward", _forward, _key)
    library.impl("backward", _backward, _key)
register_fake("rocflash::forward", _forward_fake)
register_fake("rocflash::backward", _backward_fake)


class _Backward(torch.autograd.Function):
    """Runs the gradients where autograd or a functional transform watches them.

    There is no second derivative, and asking for one is refused instead of answered with zeros.
    """

    @staticmethod
    def forward(direct: bool, *arguments: Any) -> Gradients:
        if direct:
            return _backward(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.rocflash.backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported("rocflash: gradients of attention's gradients are not supported")


def _backward_autograd(*arguments: Any) -> Gradients:
    return _Backward.apply(False, *arguments)


library.impl("backward", _backward_autograd, "Autograd")


class _Attention(torch.autograd.Function):
    """Autograd for both ways in: straight (`direct`) or below the dispatcher's autograd key."""

    @staticmethod
    def forward(
        direct: bool, return_weights: bool, q: Tensor, k: Tensor, v: Tensor, *options: Any
    ) -> Outputs:
        if direct:
            return _torch.forward(q, k, v, Options(*options), return_weights)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.rocflash.forward(q, k, v, *options, return_weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        direct, _, q, k, v, *options = inputs
        _remember(ctx, direct, q, k, v, Options(*options), output)

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], _lse: Any, _weights: Any) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        dq, dk, dv, dsinks = _recall(ctx, dout, [*needs[2:5], needs[5 + _SINKS]])
        others: list[Optional[Tensor]] = [None] * len(Options._fields)
        others[_SINKS] = dsinks
        return (None, None, dq, dk, dv, *others)


class _EagerAttention(torch.autograd.Function):
    """The same in torch's older form, which functional transforms cannot use but costs half."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Optional[Tensor],
        o: Options,
        return_weights: bool,
    ) -> Outputs:
        output = _torch.forward(q, k, v, o, return_weights)
        _remember(ctx, True, q, k, v, o, output)
        return output

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], _lse: Any, _weights: Any) -> tuple[Any, ...]:
        return (*_recall(ctx, dout, ctx.needs_input_grad[:4]), None, None)


def _remember(
    ctx: Any, direct: bool, q: Tensor, k: Tensor, v: Tensor, o: Options, output: Outputs
) -> None:
    out, lse, weights = output
    ctx.mark_non_differentiable(lse, weights)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, *o[: len(TENSOR_OPTIONS)])
    ctx.numbers = o[len(TENSOR_OPTIONS) :]
    ctx.direct = direct


def _recall(ctx: Any, dout: Optional[Tensor], needed: Any) -> tuple[Optional[Tensor], ...]:
    """Gradients of q, k, v and sinks, None where they are not needed."""
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    o = Options(*tensors, *ctx.numbers)
    if dout is None or not any(needed):
        return (None,) * 4
    if not ctx.direct or _dispatching(dout):
        found = torch.ops.rocflash.backward(dout, q, k, v, out, lse, *o, needed)
    elif _transforms_active() or torch.is_grad_enabled():  # someone may differentiate again
        found = _Backward.apply(True, dout, q, k, v, out, lse, *o, needed)
    else:
        found = _backward_direct(dout, q, k, v, out, lse, o, needed)
    dq, dk, dv, dsinks = (g if wanted else None for g, wanted in zip(found, needed))
    if dsinks is not None and o.sinks is not None:
        dsinks = dsinks.to(o.sinks.dtype)
    return dq, dk, dv, dsinks


def _forward_autograd(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    return _Attention.apply(False, rest[-1], q, k, v, *rest[:-1])


library.impl("forward", _forward_autograd, "Autograd")


_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def _dispatching(x: Tensor) -> bool:
    """Whether anything but plain eager execution wants to see the call."""
    return type(x) not in (Tensor, torch.nn.Parameter) or _modes() > 0


_is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._dynamo.is_compiling
_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def attend(q: Tensor, k: Tensor, v: Tensor, o: Options, return_weights: bool = False) -> Outputs:
    """(out, lse, weights) with gradients for q, k, v and sinks, by the shortest way there is."""
    if _is_compiling() or _dispatching(q) or _dispatching(k) or _dispatching(v):
        return torch.ops.rocflash.forward(q, k, v, *o, return_weights)
    if _transforms_active():
        return _Attention.apply(True, return_weights, q, k, v, *o)
    sinks = o.sinks
    if torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (sinks is not None and sinks.requires_grad)
    ):
        return _EagerAttention.apply(q, k, v, sinks, o, return_weights)
    return _torch.forward(q, k, v, o, return_weights, inference=True)
