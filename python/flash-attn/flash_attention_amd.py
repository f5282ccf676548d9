"""The interface of the AMD build guide: three names, q, k and v of shape (batch, seq, heads, dim).

In addition to the guide's arguments, keys may have fewer heads than queries, and gradients are
supported. `causal` is top-left aligned as in the guide: query i attends to keys 0 to i.
flash_attn.flash_attn_func is bottom-right aligned instead.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

import rocflash
from rocflash.dropin import check_tensor

__all__ = ["FlashAttention", "FlashAttentionInterface", "flash_attn_func"]


def _four_dimensional(mask: Tensor) -> Tensor:
    """A mask (sk), (b, sk), (b, sq, sk) or (b, 1 or h, sq, sk) in the library's shape."""
    check_tensor("mask", mask)
    if mask.dtype is not torch.bool:
        raise rocflash.InvalidArgument(
            f"mask has dtype {mask.dtype}; it must be bool, True to keep"
        )
    if mask.dim() == 1:
        return mask[None, None, None, :]
    if mask.dim() == 2:
        return mask[:, None, None, :]
    if mask.dim() == 3:
        return mask[:, None]
    if mask.dim() == 4:
        return mask
    raise rocflash.InvalidArgument(
        f"mask has shape {tuple(mask.shape)}; it must be (seq_k), (batch, seq_k), (batch, seq_q, "
        "seq_k) or "
        "(batch, 1 or heads, seq_q, seq_k)"
    )


def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Optional[Tensor], dropout_p: float
) -> Tensor:
    """rocflash.attention with the guide's dtypes, dropout and alignment of the causal mask."""
    if isinstance(dropout_p, (int, float)) and dropout_p == 1:
        # Everything is dropped, the gradients as well. The library's dropout scales by 1 / (1 - p).
        return nn.functional.dropout(_attention(q, k, v, causal, mask, 0.0), p=1.0)
    if all(isinstance(x, Tensor) and x.dtype is torch.float64 for x in (q, k, v)):
        # Only the reference implementation computes in f64, and only on the CPU.
        a, b, c = (x.cpu() for x in (q, k, v))
        m = None if mask is None else mask.cpu()
        return _aligned(a, b, c, causal, m, dropout_p=dropout_p, backend="reference").to(q.device)
    return _aligned(q, k, v, causal, mask, dropout_p=dropout_p)


def _aligned(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Optional[Tensor], **how: Any
) -> Tensor:
    """rocflash.attention with the guide's top-left aligned causal mask; rocflash's is bottom-right
    aligned.
    """
    shapes = [x.shape for x in (q, k, v) if isinstance(x, Tensor)]
    usual = [len(shape) for shape in shapes] == [4, 4, 4] and shapes[1][1] == shapes[2][1]
    if not causal or not usual or shapes[0][1] == shapes[1][1]:  # or it is refused there
        return rocflash.attention(q, k, v, causal=causal, mask=mask, **how)
    queries, keys = q.shape[1], k.shape[1]
    if queries > keys:
        # Relative to the bottom-right alignment, the causal bound moves by the difference of the
        # lengths.
        return rocflash.attention(q, k, v, window=(-1, queries - keys), mask=mask, **how)
    # No query attends to keys after the last query's position.
    if mask is not None and mask.shape[-1] == keys:
        mask = mask[..., :queries]
    return rocflash.attention(q, k[:, :queries], v[:, :queries], causal=True, mask=mask, **how)


def _probabilities(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(d)) of (b, h, sq, sk), as the guide computes it: differentiable, without
    dropout.
    """
    wide = q.dtype if q.dtype is torch.float64 else torch.float32
    group = q.shape[2] // max(k.shape[2], 1)
    queries = q.to(wide).transpose(1, 2)
    keys = k.to(wide).transpose(1, 2).repeat_interleave(group, 1)
    scores = queries @ keys.transpose(-2, -1) * q.shape[-1] ** -0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores.softmax(-1).to(q.dtype)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    causal: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q over k and v, with gradients; f64 is computed by the reference implementation,
    slowly, on the CPU.

    q: (b, sq, h, d).
    k, v: (b, sk, hk, d); h is a multiple of hk.
    dropout_p: 0 to 1, the probability to drop a weight.
    causal: query i attends to keys 0 to i for all lengths (flash_attn's function is bottom-right
    aligned).
    return_attn_probs: also return the probabilities (b, h, sq, sk) before dropout, which have
    gradients.

    Returns out (b, sq, h, d) or (out, probabilities).
    """
    check_tensor("q", q)
    out = _attention(q, k, v, causal, None, dropout_p)
    return (out, _probabilities(q, k, causal)) if return_attn_probs else out


class FlashAttention(nn.Module):
    """Attention as a module; dropout only applies in training."""

    def __init__(self, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        self.dropout = dropout
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """mask: bool (sk), (b, sk), (b, sq, sk) or (b, 1 or h, sq, sk); True keeps. Causal: query i
        attends to keys 0 to i.
        """
        check_tensor("q", q)
        return _attention(
            q,
            k,
            v,
            self.causal,
            None if mask is None else _four_dimensional(mask),
            self.dropout if self.training else 0.0,
        )

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, causal={self.causal}"


class FlashAttentionInterface:
    """The guide's autograd-like interface of the same function; `ctx` is unused and may be None."""

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
