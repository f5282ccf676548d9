"""flash_attn's S_dmask: exp(score - the row's maximum) in the dtype of q, negative where dropped.

The library returns weights; S_dmask is these divided by the maximum of the row. They are f32, since
a dropped weight that rounds to zero would lose its sign. Without dropped weights they are computed
a few heads at a time: clients pass a tiny dropout because upstream then returns lse, and discard
S_dmask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._c import shapes
from . import calls

_BLOCK = 1 << 24  # weights that are in f32 at a time: 64 MB


def drops_nothing(dropout_p: float) -> bool:
    """Whether a dropout is so small that 1 - p is 1: no weight is dropped, and none is scaled."""
    return dropout_p < 2.0**-25


def signed_softmax(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """S_dmask from weights, in place."""
    if not weights.shape[-1]:
        return weights.to(dtype)
    highest = torch.maximum(weights.amax(-1, keepdim=True), -weights.amin(-1, keepdim=True))
    return weights.div_(highest.where(highest > 0, torch.ones_like(highest))).to(dtype)


def softmax_by_heads(q: Tensor, k: Tensor, v: Tensor, o: Any) -> Tensor:
    """S_dmask of a call without dropped weights."""
    o = o._replace(dropout_p=0.0, rng_state=None)
    lengths = (o.max_seqlen_q, o.max_seqlen_k)
    starts, table = (None if x is None else x.shape for x in (o.cu_seqlens_q, o.block_table))
    shape = shapes.weights_shape(q.shape, k.shape, starts, table, *lengths)
    found = q.new_empty(shape)
    key_heads = k.shape[-2]
    group = q.shape[-2] // key_heads
    each = max(1, group * shape[0] * shape[2] * shape[3])  # of one key head
    step = max(1, _BLOCK // each)
    for first in range(0, key_heads, step):
        keys = slice(first, first + step)
        queries = slice(first * group, (first + step) * group)
        slopes = None if o.alibi_slopes is None else o.alibi_slopes[..., queries]
        part = o._replace(alibi_slopes=slopes)
        heads = (q[..., queries, :], k[..., keys, :], v[..., keys, :])
        weights = calls.forward(*heads, part, True)[2]
        found[:, queries] = signed_softmax(weights, q.dtype)  # type: ignore[arg-type]
    return found
