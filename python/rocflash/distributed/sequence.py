"""Sharding of sequences: shard, unshard, positions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .._torch.route import is_compiling
from ..errors import InvalidArgument
from . import consistency
from .comm import all_gather_rows, all_reduce_sum
from .group import Team, team_of
from .layout import Layout, layout_of


def _arange(piece: range) -> Tensor:
    return torch.arange(piece.start, piece.stop, piece.step)


@lru_cache(maxsize=64)
def _positions(layout: Layout, rank: int) -> Tensor:
    parts = [_arange(piece) for piece in layout.pieces[rank]]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


@lru_cache(maxsize=64)
def _order(layout: Layout) -> Tensor:
    """For each position, its row in the concatenation of all ranks' rows."""
    every = torch.cat([_positions(layout, rank) for rank in range(layout.ranks)])
    return every.argsort()


def positions(
    length: int, group: Any = None, layout: Union[str, Layout] = "zigzag", *, device: Any = None
) -> Tensor:
    """int64 (rows): positions of this rank's rows in the sequence, for rotary embeddings."""
    team = team_of(group)
    return _positions(layout_of(layout, length, team.size), team.rank).to(
        device or "cpu", copy=True
    )


def shard_sequence(
    x: Tensor, group: Any = None, dim: int = 1, layout: Union[str, Layout] = "zigzag"
) -> Tensor:
    """This rank's rows of a replicated tensor. Only these rows receive gradients."""
    team = team_of(group)
    at = _positions(layout_of(layout, _size(x, dim), team.size), team.rank)
    return x.index_select(dim, at.to(x.device))


def _size(x: Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise InvalidArgument(
            f"dim is {dim}; it must be {-x.dim()} to {x.dim() - 1}, the dimensions of x"
        )
    return int(x.shape[dim])


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team, layout: Layout) -> Tensor:
        ctx.team, ctx.layout = team, layout
        rows = [layout.rows(rank) for rank in range(team.size)]
        return all_gather_rows(x.contiguous(), team, rows).index_select(
            0, _order(layout).to(x.device)
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = all_reduce_sum(grad.contiguous(), ctx.team)
        at = _positions(ctx.layout, ctx.team.rank).to(grad.device)
        return total.index_select(0, at), None, None


def unshard_sequence(
    x: Tensor,
    group: Any = None,
    dim: int = 1,
    layout: Union[str, Layout] = "zigzag",
    *,
    length: Optional[int] = None,
) -> Tensor:
    """The whole tensor on every rank, from the rows of all ranks. `length` is required if ranks
    hold different numbers.

    Gradients are those of the sum of all ranks' losses: the gradients of all ranks for a row are
    summed.
    """
    team = team_of(group)
    rows = _size(x, dim)
    if length is None:
        length = layout.length if isinstance(layout, Layout) else rows * team.size
    whole = layout_of(layout, length, team.size)
    if whole.rows(team.rank) != rows:
        raise InvalidArgument(
            f"x has {rows} rows; it must have {whole.rows(team.rank)}, which rank {team.rank} of "
            f"{team.size} holds of {length}"
        )
    x = x.movedim(dim, 0)
    if not is_compiling():
        expected = [whole.rows(rank) for rank in range(team.size)]
        arguments = {"x": consistency.describe("x", x, (0,)), "layout": repr(layout)}
        signature = consistency.Signature(
            "unshard_sequence", arguments, {"x": consistency.Rows(rows, expected)}
        )
        consistency.compare(team, signature, x.device, None)
    return _Unshard.apply(x, team, whole).movedim(0, dim)
