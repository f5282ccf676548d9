"""Rows of the whole sequence on this rank, and back: shard, unshard, positions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional, Union

import torch
from torch import Tensor

from ..errors import InvalidArgument
from .exchange import all_rows, sum_of_all
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
    """For each position, its row among all ranks' rows one behind the other."""
    every = torch.cat([_positions(layout, rank) for rank in range(layout.ranks)])
    return every.argsort()


def positions(
    length: int, group: Any = None, layout: Union[str, Layout] = "zigzag", *, device: Any = None
) -> Tensor:
    """int64 (rows): where in the whole sequence this rank's rows stand, as rotary embeddings need it."""
    team = team_of(group)
    return _positions(layout_of(layout, length, team.size), team.rank).to(device or "cpu", copy=True)


def shard_sequence(
    x: Tensor, group: Any = None, dim: int = 1, layout: Union[str, Layout] = "zigzag"
) -> Tensor:
    """This rank's rows of a tensor that every rank has whole. Gradients reach these rows alone."""
    team = team_of(group)
    at = _positions(layout_of(layout, _size(x, dim), team.size), team.rank)
    return x.index_select(dim, at.to(x.device))


def _size(x: Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise InvalidArgument(f"dim: {dim}; x has {x.dim()} dimensions")
    return int(x.shape[dim])


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team, layout: Layout) -> Tensor:
        ctx.team, ctx.layout = team, layout
        rows = [layout.rows(rank) for rank in range(team.size)]
        return all_rows(x.contiguous(), team, rows).index_select(0, _order(layout).to(x.device))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = sum_of_all(grad.contiguous(), ctx.team)
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
    """The whole from every rank's rows, on every rank. `length` is needed where ranks hold different numbers.

    The gradient of a row is the sum of what all ranks have for it: the loss is the sum of all ranks' losses.
    """
    team = team_of(group)
    rows = _size(x, dim)
    if length is None:
        length = layout.length if isinstance(layout, Layout) else rows * team.size
    whole = layout_of(layout, length, team.size)
    if whole.rows(team.rank) != rows:
        raise InvalidArgument(
            f"x: {rows} rows; rank {team.rank} of {team.size} holds {whole.rows(team.rank)} of {length}"
        )
    return _Unshard.apply(x.movedim(dim, 0), team, whole).movedim(0, dim)
