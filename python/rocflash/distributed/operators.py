"""The operators that torch sees: rocflash::distributed_forward and rocflash::distributed_backward.

Compiled graphs, autograd and checkpointing all meet these two. Groups go by name and layouts as text, so
that a graph can hold them; who they are is looked up when an operator runs.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .._c import shapes
from .._c.options import GRADED_AT, NAMES, SCHEMA, TENSORS
from .._torch import calls
from .._torch.autograd import define, library, register_fake
from .._torch.plan import GRADIENTS
from ..errors import Unsupported
from . import work
from .work import Split

_SPLIT = len(Split._fields)
_SAVED = 5

Outputs = tuple[Tensor, ...]  # out, lse, and what backward needs of ranks that share heads


def _rows(x: Tensor) -> Tensor:
    """Packed rows (rows, heads, d) as a batch of one."""
    return x[None] if x.dim() == 3 else x


def _parts(rest: tuple[Any, ...]) -> tuple[Any, Split]:
    return work.completed(rest[: len(NAMES)]), Split(*rest[len(NAMES) : len(NAMES) + _SPLIT])


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    o, split = _parts(rest)
    out, lse, saved = work.forward(_rows(q), _rows(k), _rows(v), o, split)
    if q.dim() == 3:
        out, lse = out[0], lse[0]
    if saved is None:
        saved = tuple(q.new_empty((0,)) for _ in range(_SAVED))
    return (out.contiguous(), lse.contiguous(), *saved)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    split = Split(*rest[len(NAMES) : len(NAMES) + _SPLIT])
    found = work.saved_shapes(*(_rows(x).shape for x in (q, k, v)), split)
    saved = [q.new_empty((0,)) for _ in range(_SAVED)]
    if found is not None:
        saved = [q.new_empty(shape) for shape in found[:-1]]
        saved.append(q.new_empty(found[-1], dtype=torch.float32))
    out = q.new_empty(shapes.out_shape(q.shape, v.shape))
    return out, q.new_empty(shapes.lse_shape(q.shape), dtype=torch.float32), *saved


def _backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> Outputs:
    saved, rest = rest[:_SAVED], rest[_SAVED:]
    o, split = _parts(rest)
    wanted = tuple(rest[-1])
    given: tuple[Tensor, ...]
    if saved[0].dim() == 4:
        given = saved
    else:
        given = (*map(_rows, (q, k, v, out)), lse[None] if q.dim() == 3 else lse)
    found = work.backward(_rows(dout), given, o, split, wanted, (_rows(q).shape, _rows(k).shape))
    results = [
        x.new_empty((0,)) if g is None else g.reshape(x.shape) for g, x in zip(found, (q, k, v))
    ]
    for g in found[3:]:
        results.append(q.new_empty((0,), dtype=torch.float32) if g is None else g.float().contiguous())
    return tuple(results)


def _backward_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    options, wanted = rest[2 + _SAVED :], rest[-1]
    extras = [
        options[at].shape if w and options[at] is not None else (0,) for at, w in zip(GRADED_AT, wanted[3:])
    ]
    return (
        *(x.new_empty(x.shape if w else (0,)) for x, w in zip((q, k, v), wanted)),
        *(q.new_empty(shape, dtype=torch.float32) for shape in extras),
    )


_INPUTS = "Tensor q, Tensor k, Tensor v"
_ROOM = ", ".join(f"Tensor {name}" for name in ("own_q", "own_k", "own_v", "own_out", "own_lse"))
_WHERE = f"{SCHEMA}, str group, str method, str layout, SymInt length, SymInt length_k"

for _schema, _function, _fake in (
    (
        f"distributed_forward({_INPUTS}, {_WHERE}) -> (Tensor out, Tensor lse, {_ROOM})",
        _forward,
        _forward_fake,
    ),
    (
        f"distributed_backward(Tensor dout, {_INPUTS}, Tensor out, Tensor lse, {_ROOM}, {_WHERE}, "
        f"bool[{len(GRADIENTS)}] needed) -> ({', '.join(f'Tensor {name}' for name in GRADIENTS)})",
        _backward,
        _backward_fake,
    ),
):
    define(library, _schema)
    _name = _schema.partition("(")[0]
    for _key in ("CPU", "CUDA"):
        library.impl(_name, _function, _key)
    register_fake(f"rocflash::{_name}", _fake)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.rocflash.distributed_forward(q, k, v, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        q, k, v, *rest = inputs
        out, lse, *saved = output
        ctx.mark_non_differentiable(lse, *saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *saved, *rest[:TENSORS])
        ctx.numbers = tuple(rest[TENSORS:])

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], *_: Any) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        needed = (*needs[:3], *(needs[3 + at] for at in GRADED_AT))
        others: list[Any] = [None] * (len(NAMES) + _SPLIT)
        if True not in needed:
            return (None, None, None, *others)
        q, k, v, out, *saved = ctx.saved_tensors
        if dout is None:  # other ranks may have a gradient for this rank's rows to give
            dout = torch.zeros_like(out)
        found = torch.ops.rocflash.distributed_backward(
            dout, q, k, v, out, *saved, *ctx.numbers, needed
        )
        first, extras = found[:3], found[3:]
        for at, g, wanted in zip(GRADED_AT, extras, needed[3:]):
            if wanted:
                others[at] = g.to(saved[1 + _SAVED + at].dtype)
        return (*(g if wanted else None for g, wanted in zip(first, needed)), *others)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Outputs:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.rocflash.distributed_backward(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported("rocflash: gradients of attention's gradients are not supported")


def _forward_with_gradients(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    if torch.is_grad_enabled():
        graded = (q, k, v, *(rest[at] for at in GRADED_AT if rest[at] is not None))
        if q.is_cuda and any(x.requires_grad for x in graded):
            calls.refuse_missing_gradients(q, v, rest[: len(NAMES)])
    return _Attention.apply(q, k, v, *rest)


library.impl("distributed_forward", _forward_with_gradients, "Autograd")
library.impl("distributed_backward", _Backward.apply, "Autograd")
