"""The torch operators rocflash::distributed_forward and rocflash::distributed_backward.

Compiled graphs, autograd and activation checkpointing use these two. Groups are passed by name and
layouts as text, which a graph can contain; they are resolved when the operator runs.
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
from . import dispatch
from .dispatch import Split

_SPLIT = len(Split._fields)
_SAVED = 5

Outputs = tuple[Tensor, ...]  # out, lse, and the tensors that the backward of Ulysses needs


def _rows(x: Tensor) -> Tensor:
    """Packed rows (rows, heads, d) with a batch dimension of 1."""
    return x[None] if x.dim() == 3 else x


def _parts(rest: tuple[Any, ...]) -> tuple[Any, Split]:
    return dispatch.completed(rest[: len(NAMES)]), Split(*rest[len(NAMES) : len(NAMES) + _SPLIT])


def _after_split(rest: tuple[Any, ...]) -> tuple[tuple[bool, ...], Optional[Tensor]]:
    """(needed, dlse) of the backward operator; torch omits defaults at the end."""
    needed, *dlse = rest[len(NAMES) + _SPLIT :]
    return tuple(needed), dlse[0] if dlse else None


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    o, split = _parts(rest)
    out, lse, saved = dispatch.forward(_rows(q), _rows(k), _rows(v), o, split)
    if q.dim() == 3:
        out, lse = out[0], lse[0]
    if saved is None:
        saved = tuple(q.new_empty((0,)) for _ in range(_SAVED))
    return (out.contiguous(), lse.contiguous(), *saved)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    split = Split(*rest[len(NAMES) : len(NAMES) + _SPLIT])
    of_q, of_k, of_v = (_rows(x).shape for x in (q, k, v))
    found = dispatch.saved_shapes(of_q, of_k, of_v, split)
    saved = [q.new_empty((0,)) for _ in range(_SAVED)]
    if found is not None:
        saved = [q.new_empty(shape) for shape in found[:-1]]
        saved.append(q.new_empty(found[-1], dtype=torch.float32))
    out = q.new_empty(shapes.out_shape(q.shape, v.shape))
    return out, q.new_empty(shapes.lse_shape(q.shape), dtype=torch.float32), *saved


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Outputs:
    saved, rest = rest[:_SAVED], rest[_SAVED:]
    o, split = _parts(rest)
    wanted, dlse = _after_split(rest)
    given: tuple[Tensor, ...]
    if saved[0].dim() == 4:
        given = saved
    else:
        given = (*map(_rows, (q, k, v, out)), lse[None] if q.dim() == 3 else lse)
    if dlse is not None and q.dim() == 3:
        dlse = dlse[None]
    found = dispatch.backward(
        _rows(dout), given, o, split, wanted, (_rows(q).shape, _rows(k).shape), dlse
    )
    results = [
        x.new_empty((0,)) if g is None else g.reshape(x.shape) for g, x in zip(found, (q, k, v))
    ]
    for g in found[3:]:
        results.append(
            q.new_empty((0,), dtype=torch.float32) if g is None else g.float().contiguous()
        )
    return tuple(results)


def _backward_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    options = rest[2 + _SAVED :]
    wanted, _ = _after_split(options)
    extras = [
        options[at].shape if w and options[at] is not None else (0,)
        for at, w in zip(GRADED_AT, wanted[3:])
    ]
    return (
        *(x.new_empty(x.shape if w else (0,)) for x, w in zip((q, k, v), wanted)),
        *(q.new_empty(shape, dtype=torch.float32) for shape in extras),
    )


_INPUTS = "Tensor q, Tensor k, Tensor v"
_SAVED_TENSORS = ", ".join(
    f"Tensor {name}" for name in ("own_q", "own_k", "own_v", "own_out", "own_lse")
)
_GRADIENTS = f"({', '.join(f'Tensor {name}' for name in GRADIENTS)})"
_SPLIT_ARGUMENTS = (
    f"{SCHEMA}, str group, str method, str layout, SymInt length, SymInt length_k, int check, "
    "bool return_lse"
)

for _schema, _function, _fake in (
    (
        f"distributed_forward({_INPUTS}, {_SPLIT_ARGUMENTS}) -> (Tensor out, Tensor lse, "
        f"{_SAVED_TENSORS})",
        _forward,
        _forward_fake,
    ),
    (
        f"distributed_backward(Tensor dout, {_INPUTS}, Tensor out, Tensor lse, {_SAVED_TENSORS}, "
        f"{_SPLIT_ARGUMENTS}, "
        f"bool[{len(GRADIENTS)}] needed, Tensor? dlse=None) -> {_GRADIENTS}",
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
        ctx.return_lse = Split(*rest[len(NAMES) :]).return_lse
        ctx.mark_non_differentiable(*([] if ctx.return_lse else [lse]), *saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *saved, *rest[:TENSORS])
        ctx.numbers = tuple(rest[TENSORS:])

    @staticmethod
    def backward(
        ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], *_: Any
    ) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        needed = (*needs[:3], *(needs[3 + at] for at in GRADED_AT))
        others: list[Any] = [None] * (len(NAMES) + _SPLIT)
        if True not in needed:
            return (None, None, None, *others)
        q, k, v, out, *saved = ctx.saved_tensors
        # Other ranks still need this rank's part of dK and dV, and exchange its gradients.
        if dout is None:
            dout = torch.zeros_like(out)
        if dlse is None and ctx.return_lse:
            dlse = torch.zeros_like(saved[0])
        found = torch.ops.rocflash.distributed_backward(
            dout, q, k, v, out, *saved, *ctx.numbers, needed, dlse
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
        raise Unsupported("rocflash does not support gradients of attention's gradients")


def _forward_with_gradients(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    if torch.is_grad_enabled():
        graded = (q, k, v, *(rest[at] for at in GRADED_AT if rest[at] is not None))
        if q.is_cuda and any(x.requires_grad for x in graded):
            calls.refuse_missing_gradients(q, v, rest[: len(NAMES)])
    return _Attention.apply(q, k, v, *rest)


library.impl("distributed_forward", _forward_with_gradients, "Autograd")
library.impl("distributed_backward", _Backward.apply, "Autograd")
