"""FlashAttention-2's interface: its seven functions, and the private names that clients import.

Shapes, returns and conventions are upstream's. In addition it supports float32, all head dimensions
up to 576, values of another head dimension than keys, softcap together with dropout, attention
sinks (`s_aux`, which transformers checks for), and all devices of the library.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

import flash_attn_2_cuda
from flash_attn import _operators
from flash_attn._dispatch import dispatch
from flash_attn._packed import split_kv, split_kv_varlen, split_qkv, split_qkv_varlen
from flash_attn.flash_attn_triton_amd import interface_v2
from rocflash.dropin import as_int, attend, attention_with_kvcache, backend

# As in upstream, the environment determines this module at import; calls use rocflash.backend().
USE_TRITON_ROCM = backend() == "triton"
flash_attn_gpu = interface_v2 if USE_TRITON_ROCM else flash_attn_2_cuda

_flash_attn_forward = _operators.forward
_flash_attn_varlen_forward = _operators.varlen_forward
_flash_attn_backward = _operators.backward
_flash_attn_varlen_backward = _operators.varlen_backward
_wrapped_flash_attn_forward = torch.ops.flash_attn._flash_attn_forward
_wrapped_flash_attn_varlen_forward = torch.ops.flash_attn._flash_attn_varlen_forward
_wrapped_flash_attn_backward = torch.ops.flash_attn._flash_attn_backward
_wrapped_flash_attn_varlen_backward = torch.ops.flash_attn._flash_attn_varlen_backward


def maybe_contiguous(x: Optional[Tensor]) -> Optional[Tensor]:
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def round_multiple(x: int, m: int) -> int:
    return (x + m - 1) // m * m


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """The number of keys per maximum in S_dmask: here the whole row."""
    return 1 << 30


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """Attention of q over k and v, with gradients.

    q: (b, sq, h, d), f16, bf16 or f32.
    k: (b, sk, hk, d); h is a multiple of hk (MQA, GQA).
    v: (b, sk, hk, dv).
    dropout_p: in [0, 1), the probability to drop a weight. Pass 0 in evaluation.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    alibi_slopes: f32 (h,) or (b, h), adds -slope * |i + sk - sq - j| to the score of query i and
    key j.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    return_attn_probs: also return softmax_lse and S_dmask, for tests.
    s_aux: (h,), attention sinks: one more logit for each head that has weight but no value.

    Returns out (b, sq, h, d) or, with return_attn_probs, (out, softmax_lse (b, h, sq) in f32,
    S_dmask). (The function of the same name in flash_attention_amd is top-left aligned.)
    """
    return attend(
        q,
        k,
        v,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
        sinks=s_aux,
        operator=dispatch,
    )


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func with k and v in one tensor.

    q: (b, sq, h, d).
    kv: (b, sk, 2, hk, d).
    dropout_p: in [0, 1), the probability to drop a weight. Pass 0 in evaluation.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    alibi_slopes: f32 (h,) or (b, h), adds -slope * |i + sk - sq - j| to the score of query i and
    key j.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    return_attn_probs: also return softmax_lse and S_dmask, for tests.

    Returns out (b, sq, h, d) or, with return_attn_probs, (out, softmax_lse (b, h, sq) in f32,
    S_dmask).
    """
    return flash_attn_func(
        q,
        *split_kv(kv),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func with q, k and v in one tensor.

    qkv: (b, s, 3, h, d).
    dropout_p: in [0, 1), the probability to drop a weight. Pass 0 in evaluation.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    alibi_slopes: f32 (h,) or (b, h), adds -slope * |i + sk - sq - j| to the score of query i and
    key j.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    return_attn_probs: also return softmax_lse and S_dmask, for tests.

    Returns out (b, sq, h, d) or, with return_attn_probs, (out, softmax_lse (b, h, sq) in f32,
    S_dmask).
    """
    return flash_attn_func(
        *split_qkv(qkv),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[Tensor] = None,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """flash_attn_func for varlen sequences in packed tensors.

    q: (total_q, h, d), the sequences one after the other.
    k, v: (total_k, hk, d), or pages with block_table.
    cu_seqlens_q, cu_seqlens_k: int32 (b + 1,), the begins of the sequences in q, and in k and v.
    max_seqlen_q, max_seqlen_k: the lengths of the longest sequences of queries and of keys, or a
    bound.
    dropout_p: in [0, 1), the probability to drop a weight. Pass 0 in evaluation.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    alibi_slopes: f32 (h,) or (b, h), adds -slope * |i + sk - sq - j| to the score of query i and
    key j.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    return_attn_probs: also return softmax_lse and S_dmask, for tests.
    block_table: int32 (b, pages), with which k and v are paged: (num_pages, page size, hk, d).
    s_aux: (h,), attention sinks: one more logit for each head that has weight but no value.

    Returns out (total_q, h, d) or, with return_attn_probs, (out, softmax_lse (h, total_q) in f32,
    S_dmask).
    """
    return attend(
        q,
        k,
        v,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
        cu_seqlens_q=_needed("cu_seqlens_q", cu_seqlens_q),
        cu_seqlens_k=_needed("cu_seqlens_k", cu_seqlens_k),
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        sinks=s_aux,
        block_table=block_table,
        operator=dispatch,
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func with k and v in one tensor.

    q: (total_q, h, d).
    kv: (total_k, 2, hk, d).
    cu_seqlens_q, cu_seqlens_k: int32 (b + 1,), the begins of the sequences in q, and in k and v.
    max_seqlen_q, max_seqlen_k: the lengths of the longest sequences of queries and of keys, or a
    bound.
    dropout_p: in [0, 1), the probability to drop a weight. Pass 0 in evaluation.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    alibi_slopes: f32 (h,) or (b, h), adds -slope * |i + sk - sq - j| to the score of query i and
    key j.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    return_attn_probs: also return softmax_lse and S_dmask, for tests.

    Returns out (total_q, h, d) or, with return_attn_probs, (out, softmax_lse (h, total_q) in f32,
    S_dmask).
    """
    return flash_attn_varlen_func(
        q,
        *split_kv_varlen(kv),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func with q, k and v in one tensor.

    qkv: (total, 3, h, d).
    cu_seqlens: int32 (b + 1,), the begins of the sequences.
    max_seqlen: the length of the longest sequence, or a bound.
    dropout_p: in [0, 1), the probability to drop a weight. Pass 0 in evaluation.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    alibi_slopes: f32 (h,) or (b, h), adds -slope * |i + sk - sq - j| to the score of query i and
    key j.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    return_attn_probs: also return softmax_lse and S_dmask, for tests.

    Returns out (total_q, h, d) or, with return_attn_probs, (out, softmax_lse (h, total_q) in f32,
    S_dmask).
    """
    return flash_attn_varlen_func(
        *split_qkv_varlen(qkv),
        cu_seqlens_q=_needed("cu_seqlens", cu_seqlens),
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=max_seqlen,
        max_seqlen_k=max_seqlen,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Optional[Tensor] = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """Attention over a KV cache, to which k and v, if given, are first appended in place.

    No gradients.

    q: (b, sq, h, d).
    k_cache, v_cache: (b_c, s_c, hk, d), or pages of any size (pages, page size, hk, d) with
    block_table.
    k, v: (b, new, hk, d), appended to the caches after the keys that cache_seqlens counts.
    rotary_cos, rotary_sin: (positions, r / 2), rotate the first r columns of q and k.
    cache_seqlens: an int or int32 (b,), the keys of each sequence before the new ones.
    cache_batch_idx: int32 (b,), the entry of the caches of each sequence.
    cache_leftpad: int32 (b,), keys to skip at the begin of each sequence.
    block_table: int32 (b, pages), the pages of each sequence.
    softmax_scale: the factor of q k^T; 1 / sqrt(d) unless given.
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; -1 for no
    bound.
    softcap: 0, or a score s becomes softcap * tanh(s / softcap).
    rotary_interleaved: rotates pairs (0, 1), (2, 3), ...; else (0, r / 2), (1, r / 2 + 1), ...
    alibi_slopes: f32 (h,) or (b, h), adds -slope * |i + sk - sq - j| to the score of query i and
    key j.
    num_splits: splits of the keys; 0: the library chooses.
    return_softmax_lse: also return softmax_lse.
    s_aux: (h,), attention sinks: one more logit for each head that has weight but no value.

    Returns out (b, sq, h, dv) or, with return_softmax_lse, (out, softmax_lse (b, h, sq) in f32).
    """
    out, lse = attention_with_kvcache(
        q,
        k_cache,
        v_cache,
        k=k,
        v=v,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved,
        cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        page_table=block_table,
        page_table_name="block_table",
        softmax_scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=s_aux,
        num_splits=as_int("num_splits", num_splits),
        want_lse=bool(return_softmax_lse),
    )
    return (out, lse) if return_softmax_lse else out


def _needed(name: str, x: Any) -> Any:
    if x is None:
        raise TypeError(f"{name} is None; with varlen sequences it must be given")
    return x


class _Applied:
    """Upstream's autograd classes, of which only `apply` is ever used.

    Gradients come from rocflash's own autograd function. `is_grad_enabled` is upstream's way to
    pass torch.is_grad_enabled() inside; where it is false nothing is saved for backward.
    """

    _function: Any = None

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        *rest, is_grad_enabled = arguments
        with torch.set_grad_enabled(bool(is_grad_enabled) and torch.is_grad_enabled()):
            return cls._function(*rest)


class FlashAttnFunc(_Applied):
    _function = staticmethod(flash_attn_func)


class FlashAttnKVPackedFunc(_Applied):
    _function = staticmethod(flash_attn_kvpacked_func)


class FlashAttnQKVPackedFunc(_Applied):
    _function = staticmethod(flash_attn_qkvpacked_func)


class FlashAttnVarlenKVPackedFunc(_Applied):
    _function = staticmethod(flash_attn_varlen_kvpacked_func)


class FlashAttnVarlenQKVPackedFunc(_Applied):
    _function = staticmethod(flash_attn_varlen_qkvpacked_func)


class FlashAttnVarlenFunc(_Applied):
    """`apply` has block_table before is_grad_enabled; the function has it last."""

    _function = staticmethod(flash_attn_varlen_func)


__all__ = [
    "FlashAttnFunc",
    "FlashAttnKVPackedFunc",
    "FlashAttnQKVPackedFunc",
    "FlashAttnVarlenFunc",
    "FlashAttnVarlenKVPackedFunc",
    "FlashAttnVarlenQKVPackedFunc",
    "flash_attn_func",
    "flash_attn_gpu",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
