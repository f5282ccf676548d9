"""FlashAttention-2's interface: its seven functions, and the private names that others import.

Shapes, returns and conventions are upstream's. Better than upstream: float32, any head size up to
576, values of another size than keys, softcap together with dropout, attention sinks (`s_aux`, an
argument that transformers looks for), and every device the library knows.
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
from rocflash.dropin import attend, attention_with_kvcache, backend, whole

# What upstream has here is decided by the environment at import, as there; calls follow rocflash.backend().
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
    """Keys over which S_dmask's maximum runs: here a whole row, however long."""
    return 1 << 30


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
    causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None, deterministic: bool = False, return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """Attention of q (b, sq, h, d) over k and v (b, sk, hk, d).

    Returns out (b, sq, h, d), or with return_attn_probs (out, softmax_lse (b, h, sq), S_dmask).
    causal and window_size count from the bottom right: query i stands at key i + sk - sq. (The function of the same name in
    flash_attention_amd counts from the first key.)
    s_aux (h,) are attention sinks: logits that take weight but have no value.
    """
    return attend(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, sinks=s_aux, operator=dispatch,
    )


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, with k and v in kv (b, sk, 2, hk, d)."""
    return flash_attn_func(
        q, *split_kv(kv), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, with all three in qkv (b, s, 3, h, d)."""
    return flash_attn_func(
        *split_qkv(qkv), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Optional[Tensor] = None,
    s_aux: Optional[Tensor] = None,
) -> Any:
    """As flash_attn_func, for packed sequences: q (total_q, h, d), k and v (total_k, hk, d).

    cu_seqlens_q and cu_seqlens_k, int32 (b + 1,), say where each begins. With block_table, int32
    (b, pages), k and v are pages (pages, page size, hk, d) that it names.
    softmax_lse is (h, total_q).
    """
    return attend(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, _needed("cu_seqlens_q", cu_seqlens_q), _needed("cu_seqlens_k", cu_seqlens_k),
        max_seqlen_q, max_seqlen_k, s_aux, block_table=block_table, operator=dispatch,
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_varlen_func, with k and v in kv (total_k, 2, hk, d)."""
    return flash_attn_varlen_func(
        q, *split_kv_varlen(kv), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None, causal: bool = False, window_size: Any = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_varlen_func, with all three in qkv (total, 3, h, d)."""
    return flash_attn_varlen_func(
        *split_qkv_varlen(qkv), _needed("cu_seqlens", cu_seqlens), cu_seqlens, max_seqlen, max_seqlen,
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None, cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None, block_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None, causal: bool = False, window_size: Any = (-1, -1),
    softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Optional[Tensor] = None,
    num_splits: int = 0, return_softmax_lse: bool = False, s_aux: Optional[Tensor] = None,
) -> Any:
    """Attention over a key/value cache, to which k and v, if given, are first appended in place.

    q (b, sq, h, d), k and v (b, new, hk, d); the cache (b_c, s_c, hk, d), or pages of any size
    (pages, page size, hk, d) with block_table. cache_seqlens counts the keys before the new ones.
    Returns out, or (out, softmax_lse (b, h, sq)). No gradients.
    """
    out, lse = attention_with_kvcache(
        q, k_cache, v_cache, k=k, v=v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad, page_table=block_table, page_table_name="block_table",
        softmax_scale=softmax_scale, causal=causal, window=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=s_aux, num_splits=whole("num_splits", num_splits),
        want_lse=bool(return_softmax_lse),
    )
    return (out, lse) if return_softmax_lse else out


def _needed(name: str, x: Any) -> Any:
    if x is None:
        raise TypeError(f"{name}: is None; packed sequences need it")
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
    """Its `apply` has block_table before is_grad_enabled, as the function has it last."""

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
