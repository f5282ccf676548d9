"""Rotary embedding under the name of upstream's Triton kernel: one kernel of the library's,
differentiable, on any device.
"""

from __future__ import annotations

from typing import Any, Optional, Union

from torch import Tensor

from rocflash.dropin import InvalidArgument, check_tables, rotate

__all__ = ["apply_rotary"]


def __getattr__(name: str) -> Any:
    if name == "rotary_kernel":  # ImportError, since AttributeError's message would be lost
        raise ImportError(
            "rotary_kernel is upstream's Triton kernel, which flash_attn as rocflash serves it "
            "does not have; "
            "call apply_rotary"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _check(
    x: Tensor,
    seqlen_offsets: Union[int, Tensor],
    cu_seqlens: Optional[Tensor],
    max_seqlen: Optional[int],
) -> None:
    if cu_seqlens is None and x.dim() != 4:
        raise InvalidArgument(f"x has shape {tuple(x.shape)}; it must be (b, seqlen, heads, d)")
    if cu_seqlens is not None and x.dim() != 3:
        raise InvalidArgument(
            f"x has shape {tuple(x.shape)}; with cu_seqlens it must be (total, heads, d)"
        )
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if isinstance(seqlen_offsets, Tensor) and seqlen_offsets.shape != (batch,):
        raise InvalidArgument(
            f"seqlen_offsets has shape {tuple(seqlen_offsets.shape)}; it must be ({batch},)"
        )
    if cu_seqlens is None:
        return
    if max_seqlen is None:
        raise InvalidArgument("max_seqlen is None; with cu_seqlens it must be given")
    if cu_seqlens.device.type == "cpu":  # lengths on a GPU are not read: that would synchronize
        longest = int(cu_seqlens.diff().max()) if batch > 0 else 0
        if longest > max_seqlen:
            raise InvalidArgument(
                f"max_seqlen is {max_seqlen}; it must be at least {longest}, the longest sequence "
                "length"
            )


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
    """Rotates the first 2 * cos.shape[1] columns of x (b, s, h, d), or packed (total, h, d)."""
    check_tables(cos, sin, x.shape[-1], ("cos", "sin"))
    _check(x, seqlen_offsets, cu_seqlens, max_seqlen)
    return rotate(x, cos, sin, seqlen_offsets, cu_seqlens, interleaved, inplace, conjugate)
