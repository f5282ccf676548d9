"""Self- and cross-attention, packed or padded, without projections (see mha.py).

Upstream has flash and naive versions of each; here both call the library, the latter with a padding
mask. Names, arguments and shapes are upstream's.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor, nn

import rocflash
from flash_attn import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flash_attn._packed import split_kv, split_qkv

__all__ = [
    "CrossAttention",
    "FlashCrossAttention",
    "FlashSelfAttention",
    "SelfAttention",
    "get_alibi_slopes",
]


def get_alibi_slopes(nheads: int) -> list[float]:
    """ALiBi's geometric slopes; between powers of two, every other one of the next power is
    added.
    """

    def of_power(n: int) -> list[float]:
        first = 2.0 ** (-8.0 / n)
        return [first ** (i + 1) for i in range(n)]

    power = 2 ** math.floor(math.log2(nheads))
    return of_power(power) + of_power(2 * power)[::2][: nheads - power]


class _Attention(nn.Module):
    """Base of the flash modules: constant options, and dropout only in training."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: Optional[float] = None,
        attention_dropout: float = 0.0,
        window_size: Any = (-1, -1),
        alibi_slopes: Optional[Tensor] = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size = window_size
        self.deterministic = deterministic

    def _options(self, causal: Optional[bool]) -> dict[str, Any]:
        slopes = self.alibi_slopes
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "window_size": self.window_size,
            "alibi_slopes": None if slopes is None else slopes.float(),
            "deterministic": self.deterministic,
        }


class FlashSelfAttention(_Attention):
    def forward(
        self,
        qkv: Tensor,
        causal: Optional[bool] = None,
        cu_seqlens: Optional[Tensor] = None,
        max_seqlen: Optional[int] = None,
    ) -> Tensor:
        """qkv (b, s, 3, h, d), or packed (total, 3, h, d) with cu_seqlens and max_seqlen."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **options)
        packed: Any = (cu_seqlens, max_seqlen)  # None is rejected by name
        return flash_attn_varlen_qkvpacked_func(qkv, *packed, **options)


class FlashCrossAttention(_Attention):
    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: Optional[bool] = None,
        cu_seqlens: Optional[Tensor] = None,
        max_seqlen: Optional[int] = None,
        cu_seqlens_k: Optional[Tensor] = None,
        max_seqlen_k: Optional[int] = None,
    ) -> Tensor:
        """q (b, sq, h, d) and kv (b, sk, 2, hk, d), or both packed."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **options)
        packed: Any = (cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k)
        return flash_attn_varlen_kvpacked_func(q, kv, *packed, **options)


class _Padded(nn.Module):
    """Base of the modules with a padding mask of keys, True for valid keys."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: Optional[float] = None,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = nn.Dropout(attention_dropout)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: Optional[bool],
        key_padding_mask: Optional[Tensor],
    ) -> Tensor:
        mask = None
        if key_padding_mask is not None:
            mask = key_padding_mask.to(torch.bool)[:, None, None, :]
        return rocflash.attention(
            q,
            k,
            v,
            causal=self.causal if causal is None else causal,
            mask=mask,
            softmax_scale=self.softmax_scale,
            dropout_p=self.drop.p if self.training else 0.0,
        )


class SelfAttention(_Padded):
    def forward(
        self,
        qkv: Tensor,
        causal: Optional[bool] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """qkv (b, s, 3, h, d)"""
        return self._attend(*split_qkv(qkv), causal, key_padding_mask)


class CrossAttention(_Padded):
    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: Optional[bool] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """q (b, sq, h, d) and kv (b, sk, 2, hk, d)"""
        return self._attend(q, *split_kv(kv), causal, key_padding_mask)
