"""Rotary embedding by torch: the KV cache needs it, and so does flash_attn.layers.rotary.

The first `2 * cos.shape[-1]` columns are rotated, in halves or (interleaved) in pairs; the rest pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidArgument


def rotate(
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
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    else:
        a, b = part[..., :half], part[..., half:]
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), dim=-1)


def check_tables(cos: Tensor, sin: Tensor, head_dim: int, names: tuple[str, str]) -> None:
    for name, x in zip(names, (cos, sin)):
        if x.dim() != 2 or 2 * x.shape[1] > head_dim:
            raise InvalidArgument(
                f"{name}: shape {tuple(x.shape)}; it must be (positions, rotary_dim / 2) with "
                f"rotary_dim at most the head size, {head_dim}"
            )
    if sin.shape != cos.shape:
        raise InvalidArgument(
            f"{names[1]}: shape {tuple(sin.shape)}; it must be that of {names[0]}, "
            f"{tuple(cos.shape)}"
        )


def at_positions(table: Tensor, positions: Tensor, name: str) -> Tensor:
    """Rows of a table; a position outside it is refused."""
    if positions.numel():
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= table.shape[0]:
            raise InvalidArgument(
                f"{name}: {table.shape[0]} positions, but positions {low} to {high} are used"
            )
    return table[positions.long()]
