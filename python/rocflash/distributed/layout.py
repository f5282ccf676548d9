"""Layouts: the positions of the sequence that each rank holds. Pure arithmetic: no tensors, no
communication.

A rank holds a few pieces. Each piece is a `range` of positions: contiguous (step 1) or striped
(step N).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Union

from ..errors import InvalidArgument

Pieces = tuple[range, ...]

NAMES = ("zigzag", "striped", "contiguous")


def even_parts(length: int, parts: int) -> list[range]:
    """Consecutive ranges whose sizes differ by at most one, the longer ones first."""
    base, longer = divmod(length, parts)
    starts = [n * base + min(n, longer) for n in range(parts + 1)]
    return [range(a, b) for a, b in zip(starts, starts[1:])]


def _zigzag(length: int, ranks: int) -> tuple[Pieces, ...]:
    """Rank r has parts r and 2N - 1 - r of 2N: with causal masking, all ranks attend to the same
    number of keys.
    """
    parts = even_parts(length, 2 * ranks)
    return tuple((parts[r], parts[2 * ranks - 1 - r]) for r in range(ranks))


def _striped(length: int, ranks: int) -> tuple[Pieces, ...]:
    return tuple((range(r, length, ranks),) for r in range(ranks))


def _contiguous(length: int, ranks: int) -> tuple[Pieces, ...]:
    return tuple((part,) for part in even_parts(length, ranks))


_NAMED = {"zigzag": _zigzag, "striped": _striped, "contiguous": _contiguous}


class Layout:
    """For every rank, the ranges of positions of its rows, in the order of its tensor.

    Each position from 0 to the length must occur exactly once. All pieces of more than one row must
    have the same step.
    """

    __slots__ = ("length", "pieces")

    def __init__(self, pieces: Sequence[Sequence[range]]) -> None:
        self.pieces: tuple[Pieces, ...] = tuple(
            tuple(piece for piece in rank if len(piece)) for rank in pieces
        )
        self.length = sum(map(len, self.flat()))
        self._check()

    def flat(self) -> list[range]:
        return [piece for rank in self.pieces for piece in rank]

    def _check(self) -> None:
        steps = {piece.step for piece in self.flat() if len(piece) > 1}
        if len(steps) > 1 or min(steps, default=1) < 1:
            raise InvalidArgument(
                f"layout has steps {sorted(steps)}; all pieces must have one positive step"
            )
        step = min(steps, default=1)
        # The pieces of each residue class must be consecutive.
        ends: dict[int, int] = {}
        for piece in sorted(self.flat(), key=lambda x: x.start):
            residue = piece.start % step
            if piece.start != ends.get(residue, residue):
                raise InvalidArgument(
                    f"layout has piece {piece}, which leaves a gap or overlaps another; positions "
                    f"0 to {self.length - 1} must "
                    "each occur once"
                )
            ends[residue] = piece[-1] + step
        reached = sum(len(range(residue, end, step)) for residue, end in ends.items())
        highest = max((piece[-1] for piece in self.flat()), default=-1)
        if reached != self.length or highest != self.length - 1:
            raise InvalidArgument(
                f"layout has {self.length} rows up to position {highest}; positions 0 to "
                f"{self.length - 1} must each occur once"
            )

    @property
    def ranks(self) -> int:
        return len(self.pieces)

    def rows(self, rank: int) -> int:
        """The number of rows of a rank."""
        return sum(map(len, self.pieces[rank]))

    def positions(self, rank: int) -> list[int]:
        return [position for piece in self.pieces[rank] for position in piece]

    @property
    def spec(self) -> str:
        """The layout as a string, for operator schemas; `layout_from_spec` parses it."""
        return ";".join(
            ",".join(f"{piece.start}:{piece.stop}:{piece.step}" for piece in rank)
            for rank in self.pieces
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.pieces == other.pieces

    def __hash__(self) -> int:
        return hash(self.pieces)

    def __repr__(self) -> str:
        return f"Layout({[list(rank) for rank in self.pieces]})"


@lru_cache(maxsize=256)
def layout_from_spec(spec: str) -> Layout:
    return Layout(
        [
            [range(*map(int, piece.split(":"))) for piece in rank.split(",") if piece]
            for rank in spec.split(";")
        ]
    )


@lru_cache(maxsize=256)
def named(name: str, length: int, ranks: int) -> Layout:
    if name not in _NAMED:
        raise InvalidArgument(
            f"layout is {name!r}; it must be one of {', '.join(NAMES)}, or a Layout"
        )
    if length < 0:
        raise InvalidArgument(f"length is {length}; it must be 0 or more")
    return Layout(_NAMED[name](length, ranks))


def layout_of(layout: Union[str, Layout], length: int, ranks: int) -> Layout:
    """A layout by name, or a given one, checked against the length and the number of ranks."""
    if isinstance(layout, Layout):
        if layout.ranks != ranks or layout.length != length:
            raise InvalidArgument(
                f"layout has {layout.length} rows on {layout.ranks} ranks; it must have {length} "
                f"rows on {ranks}"
            )
        return layout
    return named(layout, length, ranks)


def order(layout: Layout) -> list[int]:
    """For each position, its row in the concatenation of all ranks' rows."""
    found = [0] * layout.length
    row = 0
    for piece in layout.flat():
        for position in piece:
            found[position] = row
            row += 1
    return found


def join_pieces(pieces: Sequence[range]) -> Pieces:
    """Joins adjacent contiguous pieces, and stripes that are complete together, in ascending order.

    Other pieces are returned unchanged.
    """
    pieces = [piece for piece in pieces if len(piece)]
    ordered = sorted(pieces, key=lambda piece: piece.start)
    if all(piece.step == 1 or len(piece) == 1 for piece in ordered):
        found: list[range] = []
        for piece in ordered:
            if found and found[-1].stop == piece.start:
                found[-1] = range(found[-1].start, piece.start + len(piece))
            else:
                found.append(range(piece.start, piece.start + len(piece)))
        return tuple(found)
    first, count = ordered[0].start, sum(map(len, ordered))
    step = max(piece.step for piece in ordered if len(piece) > 1)
    complete = all(
        piece.start == first + n and piece == range(first + n, first + count, step)
        for n, piece in enumerate(ordered)
    )
    if complete and len(ordered) == min(step, count):
        return (range(first, first + count),)
    return tuple(pieces)


@lru_cache(maxsize=256)
def node_layout(layout: Layout, inner: int) -> Layout:
    """The layout of groups of `inner` consecutive ranks, each of which holds the rows of its
    members.

    With inner = 1 the order of rows is unchanged.
    """
    if inner == 1:
        return layout
    nodes = [
        [piece for rank in layout.pieces[n : n + inner] for piece in rank]
        for n in range(0, layout.ranks, inner)
    ]
    together = [join_pieces(node) for node in nodes]
    steps = {piece.step for node in together for piece in node if len(piece) > 1}
    return Layout(nodes if len(steps) > 1 else together)  # one step for all nodes


@lru_cache(maxsize=64)
def reordering(layout: Layout, inner: int, node: int) -> list[int]:
    """For each row of a node of `node_layout`, its row in the members' concatenated rows."""
    members = layout.pieces[node * inner : (node + 1) * inner]
    row_of = {
        position: n
        for n, position in enumerate(p for rank in members for piece in rank for p in piece)
    }
    return [row_of[p] for piece in node_layout(layout, inner).pieces[node] for p in piece]


@lru_cache(maxsize=64)
def flatten_batch(layout: Layout, batch: int) -> Layout:
    """The layout of a batch flattened to packed rows; a rank's rows keep their tensor's order."""
    return Layout(
        [
            [
                range(piece.start + n * layout.length, piece.stop + n * layout.length, piece.step)
                for n in range(batch)
                for piece in rank
            ]
            for rank in layout.pieces
        ]
    )
