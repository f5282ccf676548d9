"""Append to a KV cache with torch's operators, for backends without append.

Defined in docs/reference/semantics.md (KV cache): new rows follow the used ones, and rotary
embedding applies to queries and new keys. Only the length check of the cos and sin tables
synchronizes with a GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ..errors import InvalidArgument
from .rotary import at_positions, check_tables, formula


class Rows(NamedTuple):
    """The sequence of each row, its index within it, and which rows belong to a sequence (None:
    all).
    """

    sequence: Tensor
    index: Tensor  # type: ignore[assignment]  # hides the method of tuple
    valid: Optional[Tensor] = None


def rows_of(batch: int, length: int, cu: Optional[Tensor], device: torch.device) -> Rows:
    """Rows in memory order. Packed rows may precede the first sequence or follow the last one."""
    at = torch.arange(batch * length if cu is None else length, device=device)
    if cu is None:
        return Rows(at // max(length, 1), at % max(length, 1))
    ends = cu.long()
    sequence = torch.bucketize(at, ends[1:], right=True).clamp(max=batch - 1)
    index = at - ends[sequence]
    valid = (index >= 0) & (index < ends.diff()[sequence])
    return Rows(sequence, torch.where(valid, index, 0), valid)


def _check_new(name: str, x: Any, cache: Tensor, packed: bool, batch: int) -> None:
    dims = "(total, heads, head dimension)" if packed else "(b, new, heads, head dimension)"
    expected = (
        (x.shape[0] if packed else batch, *cache.shape[2:])
        if x.dim() == (3 if packed else 4)
        else None
    )
    shape = None if expected is None else tuple(x.shape if packed else (x.shape[0], *x.shape[2:]))
    if shape != expected or expected is None:
        raise InvalidArgument(
            f"{name} has shape {tuple(x.shape)}; it must be {dims} with the heads of the cache"
        )
    if x.dtype != cache.dtype or x.device != cache.device:
        raise InvalidArgument(
            f"{name} is {x.dtype} on {x.device}; it must be {cache.dtype} on {cache.device}"
        )


def lengths_after(o: Any, new: Any, batch: int) -> Tensor:
    """seqused_k after the append."""
    if new.cu_seqlens_k_new is None:
        return (o.seqused_k + new.k_new.shape[1]).to(torch.int32)
    return (o.seqused_k + new.cu_seqlens_k_new.diff()).to(torch.int32)


def check(
    k: Tensor, v: Tensor, new: Any, batch: int, names: tuple[str, str] = ("k_new", "v_new")
) -> None:
    """Validates everything before the first write. `names` are the caller's argument names."""
    packed = new.cu_seqlens_k_new is not None
    if (new.k_new is None) != (new.v_new is None):
        raise InvalidArgument(
            f"{names[new.v_new is None]} is None, but its counterpart is given; give both"
        )
    if packed and tuple(new.cu_seqlens_k_new.shape) != (batch + 1,):
        shape = tuple(new.cu_seqlens_k_new.shape)
        raise InvalidArgument(
            f"cu_seqlens_k_new has shape {shape}; it must be (b + 1,) = ({batch + 1},)"
        )
    _check_new(names[0], new.k_new, k, packed, batch)
    _check_new(names[1], new.v_new, v, packed, batch)
    if new.k_new.shape[:-1] != new.v_new.shape[:-1]:
        shape = tuple(new.v_new.shape)
        raise InvalidArgument(
            f"{names[1]} has shape {shape}; but for its last size it must be {names[0]}'s"
        )
    if (new.rotary_cos is None) != (new.rotary_sin is None):
        missing = "rotary_sin" if new.rotary_sin is None else "rotary_cos"
        raise InvalidArgument(f"{missing} is None, but its counterpart is given; give both")
    if new.rotary_cos is not None:
        check_tables(new.rotary_cos, new.rotary_sin, k.shape[-1], ("rotary_cos", "rotary_sin"))


def append(
    q: Tensor, k: Tensor, v: Tensor, o: Any, new: Any, interleaved: bool, batch: int
) -> Tensor:
    """Appends new keys and values to the `o.seqused_k` rows of each sequence; returns q, rotated if
    tables are given.
    """
    device, before = k.device, o.seqused_k.long()
    rows = rows_of(batch, new.k_new.shape[-3], new.cu_seqlens_k_new, device)
    keys, values = (x.reshape(-1, *x.shape[-2:]) for x in (new.k_new, new.v_new))
    if new.rotary_cos is not None:
        start = before if new.rotary_seqlens is None else new.rotary_seqlens.long()
        keys = rotated(keys, start[rows.sequence] + rows.index, new, interleaved)
        of_q = rows_of(batch, q.shape[-3], o.cu_seqlens_q, device)
        moves = o.causal or o.attention_chunk or o.window_left >= 0 or o.window_right >= 0
        position = start[of_q.sequence] + (of_q.index if moves else 0)
        q = rotated(q.reshape(-1, *q.shape[-2:]), position, new, interleaved).view(q.shape)
    if rows.valid is not None and rows.valid.numel():
        # Unused rows repeat the first row of a sequence: writing it twice with equal values avoids
        # a synchronization.
        some = rows.valid.any()
        at = torch.where(
            rows.valid, torch.arange(rows.valid.numel(), device=device), rows.valid.int().argmax()
        )
        rows = Rows(rows.sequence[at], rows.index[at], some)
        keys, values = keys[at], values[at]
    at = before[rows.sequence] + rows.index
    if o.block_table is not None:
        size = k.shape[1]
        page = o.block_table.long()[
            rows.sequence, (at // size).clamp(max=o.block_table.shape[1] - 1)
        ]
        entry_row = (page, at % size)
    else:
        entry = (
            rows.sequence if o.cache_batch_idx is None else o.cache_batch_idx.long()[rows.sequence]
        )
        entry_row = (entry, at.clamp(max=k.shape[1] - 1))
    for cache, found in ((k, keys), (v, values)):
        cache[entry_row] = (
            found if rows.valid is None else torch.where(rows.valid, found, cache[entry_row])
        )
    return q


def rotated(x: Tensor, position: Tensor, new: Any, interleaved: bool) -> Tensor:
    cos = at_positions(new.rotary_cos, position, "rotary_cos")
    sin = at_positions(new.rotary_sin, position, "rotary_sin")
    return formula(x, cos, sin, interleaved)
