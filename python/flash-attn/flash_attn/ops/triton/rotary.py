"""Rotary embedding under the name of upstream's Triton kernel: one kernel of the library's, differentiable, on any
device."""

from __future__ import annotations

from typing import Optional, Union

from torch import Tensor

from rocflash.dropin import InvalidArgument, check_tables, turn

__all__ = ["apply_rotary"]


def _check(
    x: Tensor,
    seqlen_offsets: Union[int, Tensor],
    cu_seqlens: Optional[Tensor],
    max_seqlen: Optional[int],
) -> None:
    if cu_seqlens is None and x.dim() != 4:
        raise InvalidArgument(f"x: shape {tuple(x.shape)}; it must be (b, seqlen, heads, d)")
    if cu_seqlens is not None and x.dim() != 3:
        raise InvalidArgument(
            f"x: shape {tuple(x.shape)}; with cu_seqlens it must be (total, heads, d)"
        )
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if isinstance(seqlen_offsets, Tensor) and seqlen_offsets.shape != (batch,):
        raise InvalidArgument(
            f"seqlen_offsets: shape {tuple(seqlen_offsets.shape)}; it must be ({batch},)"
        )
    if cu_seqlens is None:
        return
    if max_seqlen is None:
        raise InvalidArgument("max_seqlen: is None; with cu_seqlens it must be given")
    if cu_seqlens.device.type == "cpu":  # a GPU's lengths are not looked at: that would wait for it
        longest = int(cu_seqlens.diff().max()) if batch > 0 else 0
        if longest > max_seqlen:
            raise InvalidArgument(f"max_seqlen: {max_seqlen}; a sequence has {longest} rows")


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: Union[int, Tensor] = 0,
    cu_seqlens: Optional[Tensor] = None, max_seqlen: Optional[int] = None, interleaved: bool = False,
    inplace: bool = False, conjugate: bool = False,
) -> Tensor:
    """Turns the first 2 * cos.shape[1] columns of x (b, s, h, d), or packed (total, h, d)."""
    check_tables(cos, sin, x.shape[-1], ("cos", "sin"))
    _check(x, seqlen_offsets, cu_seqlens, max_seqlen)
    return turn(x, cos, sin, seqlen_offsets, cu_seqlens, interleaved, inplace, conjugate)
