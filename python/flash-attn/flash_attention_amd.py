"""The interface of the AMD build guide: three names, q, k and v of shape (batch, seq, heads, dim).

Besides the guide's arguments, keys may have fewer heads than queries, and gradients work. Where the lengths differ, `causal`
is the guide's: query i sees keys 0 to i, counted from the first. flash_attn.flash_attn_func lines up the last query with the
last key instead.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

import rocflash
from rocflash.dropin import check_tensor

__all__ = ["FlashAttention", "FlashAttentionInterface", "flash_attn_func"]


def _four_dimensional(mask: Tensor, q: Tensor) -> Tensor:
    """A mask (b, sk), (b, sq, sk) or (b, 1 or h, sq, sk) as the library takes it."""
    check_tensor("mask", mask)
    if mask.dtype is not torch.bool:
        raise rocflash.InvalidArgument(f"mask: dtype {mask.dtype}; it must be bool, True to keep")
    if mask.dim() == 2:
        return mask[:, None, None, :]
    if mask.dim() == 3:
        return mask[:, None]
    if mask.dim() == 4:
        return mask
    raise rocflash.InvalidArgument(
        f"mask: shape {tuple(mask.shape)}; it must be (batch, seq_k), (batch, seq_q, seq_k) or "
        "(batch, 1 or heads, seq_q, seq_k)"
    )


def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Optional[Tensor], **how: Any
) -> Any:
    """rocflash.attention with the guide's triangle: rocflash's own lines up the ends of both sequences."""
    shapes = [x.shape for x in (q, k, v) if isinstance(x, Tensor)]
    usual = [len(shape) for shape in shapes] == [4, 4, 4] and shapes[1][1] == shapes[2][1]
    if not causal or not usual or shapes[0][1] == shapes[1][1]:  # or it is refused there
        return rocflash.attention(q, k, v, causal=causal, mask=mask, **how)
    queries, keys = q.shape[1], k.shape[1]
    if queries > keys:
        # From the ends' point of view each query sees so many keys more.
        return rocflash.attention(q, k, v, window=(-1, queries - keys), mask=mask, **how)
    # No query sees the keys after the last query's place.
    if mask is not None and mask.shape[-1] == keys:
        mask = mask[..., :queries]
    found = rocflash.attention(q, k[:, :queries], v[:, :queries], causal=True, mask=mask, **how)
    if not isinstance(found, tuple):
        return found
    out, weights = found
    return out, torch.nn.functional.pad(weights, (0, keys - queries))


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, causal: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """out (b, sq, h, d), or (out, probabilities (b, h, sq, sk)) with return_attn_probs.

    causal: query i sees keys 0 to i, whatever the two lengths (flash_attn's function aligns to the last key).
    The probabilities are the weights that made out: 0 where dropout struck, kept ones scaled up.
    """
    check_tensor("q", q)
    found = _attention(q, k, v, causal, None, dropout_p=dropout_p, return_weights=return_attn_probs)
    if not return_attn_probs:
        return found
    out, weights = found
    if dropout_p > 0:
        weights = weights.clamp(min=0) / (1 - dropout_p)
    return out, weights.to(q.dtype)


class FlashAttention(nn.Module):
    """Attention as a module; dropout only acts in training."""

    def __init__(self, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        self.dropout = dropout
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """mask: bool (b, sk), (b, sq, sk) or (b, 1 or h, sq, sk); True keeps. Causal: query i sees keys 0 to i."""
        check_tensor("q", q)
        return _attention(
            q,
            k,
            v,
            self.causal,
            None if mask is None else _four_dimensional(mask, q),
            dropout_p=self.dropout if self.training else 0.0,
        )

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, causal={self.causal}"


class FlashAttentionInterface:
    """The guide's autograd-like name for the same function; `ctx` is not needed and may be None."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, causal: bool = False
    ) -> Tensor:
        return flash_attn_func(q, k, v, dropout_p=dropout_p, causal=causal)

    @staticmethod
    def apply(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, causal: bool = False
    ) -> Tensor:
        return flash_attn_func(q, k, v, dropout_p=dropout_p, causal=causal)
