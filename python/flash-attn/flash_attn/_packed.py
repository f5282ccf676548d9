"""Views of q, k and v inside flash_attn's packed tensors; torch stacks their gradients again."""

from __future__ import annotations

from torch import Tensor

from rocflash.dropin import split_packed


def split_qkv(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = split_packed("qkv", qkv, 3, 2, "(batch, seqlen, 3, heads, head dimension)")
    return q, k, v


def split_kv(kv: Tensor) -> tuple[Tensor, Tensor]:
    k, v = split_packed("kv", kv, 2, 2, "(batch, seqlen, 2, heads, head dimension)")
    return k, v


def split_qkv_varlen(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = split_packed("qkv", qkv, 3, 1, "(total, 3, heads, head dimension)")
    return q, k, v


def split_kv_varlen(kv: Tensor) -> tuple[Tensor, Tensor]:
    k, v = split_packed("kv", kv, 2, 1, "(total, 2, heads, head dimension)")
    return k, v
