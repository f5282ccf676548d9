"""Rotary embedding for flash_attn.layers.rotary: one call of the library, with gradients.

The first `2 * cos.shape[-1]` columns are rotated, in halves or (interleaved) in pairs; the others
are copied. Under a compiler, a mode or torch.func it consists of torch's operators, which compilers
fuse; results are bitwise equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .._c import abi
from ..errors import InvalidArgument
from . import calls
from .options import as_int32
from .route import OPERATOR, TRANSFORM, is_compiling, route

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Union[int, Tensor],
    cu_seqlens: Optional[Tensor],
    interleaved: bool,
    inplace: bool,
    conjugate: bool,
) -> Tensor:
    """x (b, s, h, d), or packed (total, h, d) with cu_seqlens, rotated from position `offsets` on.

    cos and sin are (positions, rotary_dim / 2); `conjugate` rotates back.
    """
    if inplace and _is_leaf(x):
        arguments = (offsets, cu_seqlens, interleaved, True)
        return rotate_in_place(
            x, lambda t, back: rotate(t, cos, sin, *arguments, conjugate != back)
        )
    if not _is_served(x, cos, sin, inplace):
        positions = _positions(x, offsets, cu_seqlens)
        cosines, sines = at_positions(cos, positions, "cos"), at_positions(sin, positions, "sin")
        rotated = formula(x, cosines, sines, interleaved, conjugate)
        return x.copy_(rotated) if inplace else rotated
    if conjugate:
        sin = -sin
    if cos.dtype != sin.dtype or cos.dtype not in (torch.float32, x.dtype):
        cos, sin = cos.float(), sin.float()
    first = None
    if isinstance(offsets, Tensor):
        first = as_int32("seqlen_offsets", offsets)
    elif offsets and cu_seqlens is not None:
        first = torch.full((cu_seqlens.shape[0] - 1,), offsets, dtype=torch.int32, device=x.device)
    elif offsets:
        if x.numel():
            _check_range(cos, "cos", offsets, offsets + x.shape[1] - 1)
        cos, sin = cos[offsets:], sin[offsets:]
    cu = None if cu_seqlens is None else as_int32("cu_seqlens", cu_seqlens)
    if torch.is_grad_enabled() and x.requires_grad:
        rotated = _Rotate.apply(x, cos, sin, cu, first, interleaved)
        return x.copy_(rotated) if inplace else rotated
    return _run(x, cos, sin, cu, first, interleaved, out=x if inplace else None)


def _is_served(x: Tensor, cos: Tensor, sin: Tensor, inplace: bool) -> bool:
    """Whether the library can be called, and no compiler or transform needs torch's operators."""
    return (
        route(x, cos, sin) not in (OPERATOR, TRANSFORM)
        and x.device.type in ("cpu", "cuda")
        and x.dtype in _DTYPES
        and x.shape[-1] <= abi.limits().max_head_dim
        and not (torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad))
        and not (inplace and (x.is_neg() or (x.stride(-1) != 1 and x.shape[-1] > 1)))
    )


def _run(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    cu: Optional[Tensor],
    first: Optional[Tensor],
    interleaved: bool,
    out: Optional[Tensor] = None,
) -> Tensor:
    x, cos, sin = (
        t if t.stride(-1) == 1 or t.shape[-1] < 2 else t.contiguous() for t in (x, cos, sin)
    )
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    calls.rotate(x, cos, sin, cu, first, interleaved, out)
    return out


class _Rotate(torch.autograd.Function):
    """The gradient is rotated back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, cu: Any, first: Any, interleaved: bool
    ) -> Tensor:
        ctx.save_for_backward(cos, sin, cu, first)
        ctx.interleaved = interleaved
        return _run(x, cos, sin, cu, first, interleaved)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        cos, sin, cu, first = ctx.saved_tensors
        # A second derivative calls this again: the rotation is linear.
        dx = rotate(dout, cos, sin, 0 if first is None else first, cu, ctx.interleaved, False, True)
        return dx, None, None, None, None, None


def _is_leaf(x: Tensor) -> bool:
    """Whether x is a leaf that requires a gradient, or a view of one, which autograd forbids to
    write to.
    """
    if is_compiling() or not (x.requires_grad and torch.is_grad_enabled()):
        return False
    base = x._base
    return x.is_leaf or (base is not None and base.is_leaf and base.requires_grad)


def rotate_in_place(x: Tensor, rotation: Callable[[Tensor, bool], Any]) -> Tensor:
    """x after `rotation(x, False)`, which writes to it; `rotation(dx, True)` is the inverse.

    A leaf that requires a gradient is written to as well, as in upstream. The gradient belongs to
    the result, which is then another tensor of the same memory.
    """
    if _is_leaf(x):
        return _RotateLeaf.apply(x, rotation)
    rotation(x, False)
    return x


class _RotateLeaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rotation: Callable[[Tensor, bool], Any]) -> Tensor:
        ctx.rotation = rotation
        rotation(x.detach(), False)
        torch.autograd.graph.increment_version(x)  # backward of an earlier use of x must fail
        return x  # not marked dirty: autograd returns an alias with a gradient

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        dx = dout.clone()
        ctx.rotation(dx, True)
        return dx, None


# The same with torch's operators.


def formula(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, conjugate: bool = False
) -> Tensor:
    """Rotates x (..., heads, d) by cos and sin (..., rotary_dim / 2), given for each row of x."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float()
    if conjugate:
        sin = -sin
    part = x[..., : 2 * half].float()
    if interleaved:
        a, b = part[..., ::2], part[..., 1::2]
        rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    else:
        a, b = part[..., :half], part[..., half:]
        rotated = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return torch.cat((rotated.to(x.dtype), x[..., 2 * half :]), dim=-1)


def _positions(x: Tensor, offsets: Union[int, Tensor], cu_seqlens: Optional[Tensor]) -> Tensor:
    """The position of each row: (s,) or (b, s), or (total,) for varlen sequences."""
    if cu_seqlens is None:
        positions = torch.arange(x.shape[1], device=x.device)
        return (
            positions[None] + offsets[:, None]
            if isinstance(offsets, Tensor)
            else positions + offsets
        )
    lengths = cu_seqlens.diff().long()
    spread = {"output_size": x.shape[0]}
    positions = torch.arange(x.shape[0], device=x.device)
    positions = positions - torch.repeat_interleave(cu_seqlens[:-1].long(), lengths, **spread)
    if isinstance(offsets, Tensor):
        return positions + torch.repeat_interleave(offsets.long(), lengths, **spread)
    return positions + offsets


def at_positions(table: Tensor, positions: Tensor, name: str) -> Tensor:
    """Rows of a table; rejects positions outside of it."""
    if positions.numel():
        _check_range(table, name, int(positions.min()), int(positions.max()))
    return table[positions.long()]


def _check_range(table: Tensor, name: str, low: int, high: int) -> None:
    if low < 0 or high >= table.shape[0]:
        raise InvalidArgument(
            f"{name} has {table.shape[0]} positions; it must have those used, {low} to {high}"
        )


def check_tables(cos: Tensor, sin: Tensor, head_dim: int, names: tuple[str, str]) -> None:
    for name, x in zip(names, (cos, sin)):
        if x.dim() != 2 or 2 * x.shape[1] > head_dim:
            raise InvalidArgument(
                f"{name} has shape {tuple(x.shape)}; it must be (positions, rotary_dim / 2) with "
                f"rotary_dim at most the head dimension, {head_dim}"
            )
    if sin.shape != cos.shape:
        raise InvalidArgument(
            f"{names[1]} has shape {tuple(sin.shape)}; it must be that of {names[0]}, "
            f"{tuple(cos.shape)}"
        )
