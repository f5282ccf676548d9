"""Gathers a rank's keys from a paged KV cache, or from a cache indexed by cache_batch_idx.

Messages need contiguous rows, so a rank gathers its keys once and does not send pages. Each rank
has its own block table for the rows that it holds.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .._torch.options import check_tensor
from .._torch.route import is_compiling
from ..errors import InvalidArgument, Unsupported


def _check(name: str, x: Any, batch: int, dims: int) -> None:
    check_tensor(name, x)
    if x.dtype != torch.int32 or x.dim() != dims or x.shape[0] != batch:
        form = f"({batch}, pages)" if dims == 2 else f"({batch},)"
        raise InvalidArgument(
            f"{name} is {x.dtype} of shape {tuple(x.shape)}; it must be int32 of shape {form}"
        )


def _require(right: Tensor, name: str, given: Tensor, limit: int, of: str) -> None:
    """Validates indices on the CPU; those on a GPU are not read."""
    if not (is_compiling() or right.is_cuda) and not bool(right.all()):
        found = int(given[~right][0])
        raise InvalidArgument(
            f"{name} has {found}; it must be 0 to {limit - 1}, the {of} of k, for all keys in use"
        )


def gather_paged_kv(
    k: Tensor,
    v: Tensor,
    batch: int,
    block_table: Optional[Tensor],
    cache_batch_idx: Optional[Tensor],
    seqused_k: Optional[Tensor],
    positions: Optional[Tensor],
) -> tuple[Tensor, Tensor]:
    """k and v, (b, rows, hk, d).

    `positions` are those of this rank's rows; None: all rows of the block table.
    """
    name = "cache_batch_idx" if block_table is None else "block_table"
    if block_table is not None and cache_batch_idx is not None:
        raise Unsupported(
            "cache_batch_idx is given together with block_table; one of them must be None"
        )
    if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
        raise Unsupported(
            f"{name} is given, but k or v requires a gradient; gradients of a KV cache are not "
            "supported"
        )
    if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
        raise InvalidArgument(
            f"v has shape {tuple(v.shape)}, k {tuple(k.shape)}; both must be (pages, page, hk, d) "
            "and may differ in d only"
        )
    if block_table is None:
        assert cache_batch_idx is not None
        _check(name, cache_batch_idx, batch, 1)
        right = (cache_batch_idx >= 0) & (cache_batch_idx < k.shape[0])
        _require(right, name, cache_batch_idx, k.shape[0], "sequences")
        at = cache_batch_idx.long().clamp(0, max(k.shape[0] - 1, 0))
        return k[at], v[at]
    _check(name, block_table, batch, 2)
    pages, page = k.shape[:2]
    rows = block_table.shape[1] * page if positions is None else positions.numel()
    if rows > block_table.shape[1] * page:
        raise InvalidArgument(
            f"block_table has {block_table.shape[1]} pages of {page} keys; it must have the {rows} "
            "keys of this rank"
        )
    row = torch.arange(rows, device=k.device)
    entry = block_table[:, row // max(page, 1)].long()
    right = (entry >= 0) & (entry < pages)
    if seqused_k is not None and positions is not None:
        right = right | (positions.to(k.device)[None] >= seqused_k[:, None])
    _require(right, name, entry, pages, "pages")
    entries, rows_of = entry.clamp(0, max(pages - 1, 0)), row % max(page, 1)
    return k[entries, rows_of], v[entries, rows_of]
