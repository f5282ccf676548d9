"""The interface of the AMD build guide: three names, q, k and v of shape (batch, seq, heads, dim).

Besides the guide's arguments, keys may have fewer heads and another length than queries, and
gradients work. `causal` lines up the ends of both sequences, as flash_attn does.
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


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    causal: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """out (b, sq, h, d), or (out, probabilities (b, h, sq, sk)) with return_attn_probs.

    The probabilities are the weights that made out: 0 where dropout struck, kept ones scaled up.
    """
    check_tensor("q", q)
    found = rocflash.attention(
        q, k, v, dropout_p=dropout_p, causal=causal, return_weights=return_attn_probs
    )
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
        """mask: bool (b, sk), (b, sq, sk) or (b, 1 or h, sq, sk); True keeps."""
        check_tensor("q", q)
        return rocflash.attention(
            q,
            k,
            v,
            mask=None if mask is None else _four_dimensional(mask, q),
            dropout_p=self.dropout if self.training else 0.0,
            causal=self.causal,
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
