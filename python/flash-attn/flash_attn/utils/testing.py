"""Helpers for tests of attention: padding masks, packed inputs, positional masks, naive
attention.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from flash_attn.bert_padding import pad_input, unpad_input
from rocflash.dropin import InvalidArgument

__all__ = [
    "attention_ref",
    "construct_chunk_mask",
    "construct_local_mask",
    "generate_qkv",
    "generate_random_padding_mask",
]


def generate_random_padding_mask(
    max_seqlen: int, batch_size: int, device: Any, mode: str = "random", zero_lengths: bool = False
) -> Tensor:
    """(batch, max_seqlen), True for real rows: all, the last few missing at random, or at least a
    third real.
    """
    least = {
        "full": max_seqlen,
        "random": max(1 - zero_lengths, max_seqlen - 20),
        "third": max_seqlen // 3,
    }
    if mode not in least:
        raise InvalidArgument(f"mode is {mode!r}; it must be full, random or third")
    lengths = torch.randint(least[mode], max_seqlen + 1, (batch_size, 1), device=device)
    if zero_lengths:
        lengths[::5] = 0
        lengths[-1] = 0
    return torch.arange(max_seqlen, device=device)[None] < lengths


class _Packed:
    """A tensor (b, s, ...) packed by a mask, and the inverse for results."""

    def __init__(self, x: Tensor, mask: Optional[Tensor], unused: Optional[Tensor]) -> None:
        self.shape, self.indices, self.used = x.shape[:2], None, None
        b, s = self.shape
        if mask is None:
            self.rows, self.longest = x.flatten(0, 1), s
            self.cu = torch.arange(0, (b + 1) * s, s, dtype=torch.int32, device=x.device)
        else:
            self.rows, self.indices, self.cu, self.longest, self.used = unpad_input(x, mask, unused)

    def same(self, x: Tensor) -> Tensor:
        """Packs another tensor with the same mask."""
        rows = x.flatten(0, 1)
        return rows if self.indices is None else rows[self.indices]

    def back(self, rows: Tensor) -> Tensor:
        if self.indices is None:
            return rows.unflatten(0, self.shape)
        return pad_input(rows, self.indices, *self.shape)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def generate_qkv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    kvpacked: bool = False,
    qkvpacked: bool = False,
    query_unused_mask: Optional[Tensor] = None,
    key_unused_mask: Optional[Tensor] = None,
) -> tuple[Any, ...]:
    """Leaves for both kinds of calls, packed and padded, with what packed calls need and functions
    that pad results. The order is upstream's, for each of the three ways to give q, k and v.
    """
    if kvpacked and qkvpacked:
        raise InvalidArgument("kvpacked and qkvpacked are True; one of them must be False")
    queries = _Packed(q, query_padding_mask, query_unused_mask)
    keys = _Packed(k, key_padding_mask, key_unused_mask)
    values = keys.same(v)
    if qkvpacked:
        together = torch.stack([queries.rows, keys.rows, values], 1)
        whole = torch.stack([q, k, v], 2)
        return (
            _leaf(together),
            queries.cu,
            queries.longest,
            _leaf(whole),
            queries.back,
            queries.back,
        )
    lengths = (queries.cu, keys.cu)
    longest = (queries.longest, keys.longest)
    if kvpacked:
        together, whole = torch.stack([keys.rows, values], 1), torch.stack([k, v], 2)
        packed = (_leaf(queries.rows), _leaf(together), *lengths, *longest)
        return *packed, _leaf(q), _leaf(whole), queries.back, queries.back, keys.back
    return (
        *map(_leaf, (queries.rows, keys.rows, values)),
        None if qv is None else queries.same(qv).detach(),
        *lengths,
        queries.used,
        keys.used,
        *longest,
        *map(_leaf, (q, k, v)),
        None if qv is None else qv.detach(),
        queries.back,
        queries.back,
        keys.back,
    )


def _positions(
    seqlen_q: int,
    seqlen_k: int,
    query_padding_mask: Optional[Tensor],
    key_padding_mask: Optional[Tensor],
    key_leftpad: Optional[Tensor],
    device: Any,
) -> tuple[Tensor, Tensor, Any]:
    """Query positions, key indices, and the number of keys."""
    count = lambda mask, whole: whole if mask is None else mask.sum(-1)[:, None, None, None]  # noqa: E731
    keys = torch.arange(seqlen_k, device=device)
    if key_leftpad is not None:
        first = key_leftpad[:, None, None, None]
        keys = torch.where(keys >= first, keys - first, 2**32)  # padding is after all queries
    sk = count(key_padding_mask, seqlen_k)
    queries = (
        torch.arange(seqlen_q, device=device)[:, None] + sk - count(query_padding_mask, seqlen_q)
    )
    return queries, keys, sk


def construct_local_mask(
    seqlen_q: int,
    seqlen_k: int,
    window_size: tuple[int, int] = (-1, -1),
    sink_token_length: int = 0,
    query_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    key_leftpad: Optional[Tensor] = None,
    device: Any = None,
) -> Tensor:
    """True where a window masks a key. The right bound always applies, the left one unless it is
    -1.
    """
    masks = (query_padding_mask, key_padding_mask, key_leftpad, device)
    queries, keys, sk = _positions(seqlen_q, seqlen_k, *masks)
    left, right = window_size
    if left < 0:
        return keys > queries + right
    last = torch.minimum(queries + right, torch.as_tensor(sk, device=queries.device))
    return (keys > last) | ((keys < queries - left) & (keys >= sink_token_length))


def construct_chunk_mask(
    seqlen_q: int,
    seqlen_k: int,
    attention_chunk: int,
    query_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    key_leftpad: Optional[Tensor] = None,
    device: Any = None,
) -> Tensor:
    """True where a key is in another chunk than the query's position."""
    masks = (query_padding_mask, key_padding_mask, key_leftpad, device)
    queries, keys, _ = _positions(seqlen_q, seqlen_k, *masks)
    first = queries - queries % attention_chunk
    return (keys < first) | (keys >= first + attention_chunk)


def attention_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    key_leftpad: Optional[Tensor] = None,
    attn_bias: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    dropout_mask: Optional[Tensor] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    sink_token_length: int = 0,
    softcap: float = 0.0,
    upcast: bool = True,
    reorder_ops: bool = False,
    intermediate_dtype: Optional[torch.dtype] = None,
) -> tuple[Tensor, Tensor]:
    """(out, weights before dropout) by naive attention: in f32 with `upcast`, else in the inputs'
    dtype.

    reorder_ops scales the keys instead of the queries: the difference shows the effect of rounding.
    """
    dtype, group = q.dtype, q.shape[2] // k.shape[2]
    wide = (lambda x: x.float()) if upcast else (lambda x: x)
    scaled = lambda x, by, g=1: (  # noqa: E731
        x if by is None else (x.float() * by.repeat_interleave(g, 1)[:, None, :, None]).to(x.dtype)
    )
    q, k, v = (
        scaled(wide(q), q_descale, group),
        scaled(wide(k), k_descale),
        scaled(wide(v), v_descale),
    )
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    columns = q.shape[-1] + (0 if qv is None else v.shape[-1])
    scale = columns**-0.5
    left, right = (q, k * scale) if reorder_ops else (q * scale, k)
    scores = torch.einsum("bthd,bshd->bhts", left, right)
    if qv is not None:
        latent_q = scaled(wide(qv), q_descale, group)
        scores = scores + torch.einsum("bthd,bshd->bhts", latent_q * scale, v)
    if softcap > 0:
        scores = torch.tanh(scores / softcap) * softcap
    lengths = (q.shape[1], k.shape[1])
    masks: Any = (query_padding_mask, key_padding_mask, key_leftpad, q.device)
    hidden = None
    if causal:
        window_size = (window_size[0], 0)
    if max(window_size) >= 0:
        hidden = construct_local_mask(*lengths, window_size, sink_token_length, *masks)
    if attention_chunk > 0:
        chunks = construct_chunk_mask(*lengths, attention_chunk, *masks)
        hidden = chunks if hidden is None else hidden | chunks
    if key_padding_mask is not None:
        padded = ~key_padding_mask[:, None, None, :]
        hidden = padded if hidden is None else hidden | padded
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    if attn_bias is not None:
        scores = scores + attn_bias
    weights = torch.softmax(scores, -1).to(v.dtype)
    if hidden is not None:  # a fully masked row has weights 0 instead of NaN
        weights = weights.masked_fill(hidden | hidden.all(-1, keepdim=True), 0)
    if query_padding_mask is not None:
        weights = weights.masked_fill(~query_padding_mask[:, None, :, None], 0)
    kept = weights if dropout_mask is None else weights.masked_fill(~dropout_mask, 0)
    if intermediate_dtype is not None:
        kept = kept.to(intermediate_dtype).to(kept.dtype)
    out = torch.einsum("bhts,bshd->bthd", kept, v / (1 - dropout_p))
    if query_padding_mask is not None:
        out = out.masked_fill(~query_padding_mask[:, :, None, None], 0)
    return out.to(dtype), weights.to(dtype)
