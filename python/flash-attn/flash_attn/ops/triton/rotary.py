"""Rotary embedding under the name of upstream's Triton kernel; differentiable, on any device."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor

from rocflash.dropin import InvalidArgument, at_positions, check_tables, rotate

__all__ = ["apply_rotary"]


def _positions(
    x: Tensor,
    seqlen_offsets: Union[int, Tensor],
    cu_seqlens: Optional[Tensor],
    max_seqlen: Optional[int],
) -> Tensor:
    """The position of each row: (s,) or (b, s), or (total,) for packed sequences."""
    offsets = seqlen_offsets
    if cu_seqlens is None:
        if x.dim() != 4:
            raise InvalidArgument(f"x: shape {tuple(x.shape)}; it must be (b, seqlen, heads, d)")
        places = torch.arange(x.shape[1], device=x.device)
        if isinstance(offsets, Tensor):
            if offsets.shape != (x.shape[0],):
                raise InvalidArgument(
                    f"seqlen_offsets: shape {tuple(offsets.shape)}; it must be ({x.shape[0]},)"
                )
            return places[None] + offsets[:, None]
        return places + offsets
    if x.dim() != 3:
        raise InvalidArgument(
            f"x: shape {tuple(x.shape)}; with cu_seqlens it must be (total, heads, d)"
        )
    if max_seqlen is None:
        raise InvalidArgument("max_seqlen: is None; with cu_seqlens it must be given")
    lengths = cu_seqlens.diff().long()
    if lengths.numel() and int(lengths.max()) > max_seqlen:
        raise InvalidArgument(f"max_seqlen: {max_seqlen}; a sequence has {int(lengths.max())} rows")
    places = torch.arange(x.shape[0], device=x.device)
    places = places - torch.repeat_interleave(
        cu_seqlens[:-1].long(), lengths, output_size=x.shape[0]
    )
    if isinstance(offsets, Tensor):
        return places + torch.repeat_interleave(offsets.long(), lengths, output_size=x.shape[0])
    return places + offsets


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: Union[int, Tensor] = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Turns the first 2 * cos.shape[1] columns of x (b, s, h, d), or packed (total, h, d)."""
    check_tables(cos, sin, x.shape[-1], ("cos", "sin"))
    places = _positions(x, seqlen_offsets, cu_seqlens, max_seqlen)
    turned = rotate(
        x,
        at_positions(cos, places, "cos"),
        at_positions(sin, places, "sin"),
        interleaved,
        conjugate,
    )
    return x.copy_(turned) if inplace else turned
