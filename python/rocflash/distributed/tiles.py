"""Kernel calls that compute a rank's queries against one KV block of a ring. Pure arithmetic.

A call is bottom-right aligned: its last query has the position of its last key, and the window
counts from there. Pieces of a sequence have their diagonal elsewhere. So each pair of pieces is
trimmed to the queries and keys that attend to each other. The last query then attends to the last
key, and the mask is a window with bounds >= 0. Striped layouts divide positions by their step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple, Optional

from .layout import Layout, Pieces

UNBOUNDED = -1  # the library's value for a window without a bound


class Segment(NamedTuple):
    """Queries and the keys they may attend to, as rows of the whole tensors: one sequence or one
    chunk of it.
    """

    sequence: int
    q: range
    k: range
    position_offset: int  # added to a query's row, its position among the key rows
    first_q: int  # row of the sequence's first query
    first_k: int


class Alibi(NamedTuple):
    """How a kernel call applies the ALiBi distances of a tile.

    The scores of the call differ from the true ones by a constant per query, slope * (base + step *
    i), which is added to its LSE. With `linear` 0 the kernel's slopes apply, times `scale`.
    Otherwise distances are a bias over the keys: all keys are in the past (-1) or in the future (1)
    of all queries.
    """

    linear: int
    scale: int
    base: int
    step: int


class Tile(NamedTuple):
    """One kernel call: rows of this rank's queries, rows of the KV block, and a window."""

    q: range  # local rows
    k: range
    left: int
    right: int
    sequence: int = 0
    query: range = range(0)  # indices of queries and keys within their sequence
    key: range = range(0)
    alibi: Optional[Alibi] = None
    position_offset: int = 0  # added to a query's index, its position among the keys

    @property
    def full(self) -> bool:
        return self.left == UNBOUNDED and self.right == UNBOUNDED


class MaskBounds(NamedTuple):
    """The visible key range of every query, and what limits the size of calls."""

    segments: tuple[Segment, ...]
    left: Optional[int]  # None: no bound
    right: Optional[int]
    alibi: bool = False
    rows: int = 0  # the largest number of queries of a call; 0: no limit
    # Calls use `query` and `key`, so tiles of several pieces are not merged.
    needs_indices: bool = False


def segments_of(
    sq: int,
    sk: int,
    cu_q: Optional[Sequence[int]] = None,
    cu_k: Optional[Sequence[int]] = None,
    chunk: int = 0,
) -> tuple[Segment, ...]:
    """The segments of sequences whose rows are all in use."""
    ends_q, ends_k = cu_q or (0, sq), cu_k or (0, sk)
    return segments_in_use(
        [range(a, b) for a, b in zip(ends_q, ends_q[1:])],
        [range(a, b) for a, b in zip(ends_k, ends_k[1:])],
        chunk,
    )


def segments_in_use(q: Sequence[range], k: Sequence[range], chunk: int = 0) -> tuple[Segment, ...]:
    """One segment per sequence, or per chunk of it; queries and keys in use are bottom-right
    aligned.
    """
    found = []
    for n, (queries, keys) in enumerate(zip(q, k)):
        if not len(queries) or not len(keys):
            continue
        position_offset = keys.stop - queries.stop
        if not chunk:
            found.append(Segment(n, queries, keys, position_offset, queries.start, keys.start))
            continue
        for start in range(keys.start, keys.stop, chunk):
            first = max(queries.start, start - position_offset)
            part = range(first, min(queries.stop, start + chunk - position_offset))
            if len(part):
                visible = range(start, min(start + chunk, keys.stop))
                found.append(Segment(n, part, visible, position_offset, queries.start, keys.start))
    return tuple(found)


def rows_within(piece: range, bounds: range) -> range:
    """Indices into `piece` of its positions within `bounds`."""
    step = piece.step
    first = max(0, -((piece.start - bounds.start) // step))
    last = min(len(piece), -((piece.start - bounds.stop) // step))
    return range(first, max(first, last))


class _Rows(NamedTuple):
    """Some rows of a piece: the first row in memory, and the positions among the keys."""

    row: int
    position: int
    count: int  # type: ignore[assignment]  # hides the method of tuple
    step: int

    def part(self, start: int, stop: int) -> _Rows:
        return _Rows(self.row + start, self.position + start * self.step, stop - start, self.step)


def _trim(
    q: _Rows, k: _Rows, left: Optional[int], right: Optional[int]
) -> Optional[tuple[_Rows, _Rows, int, int]]:
    """The queries and keys that attend to each other, and the window of the call; None if all are
    masked.
    """
    step, between = q.step, q.position - k.position
    # Lower bound of j - i.
    low = -q.count - k.count if left is None else -((left - between) // step)
    high = q.count + k.count if right is None else (between + right) // step  # upper bound of j - i
    i0, i1 = max(0, -high), min(q.count, k.count - low)
    if low > high or i0 >= i1:
        return None
    j0, j1 = max(0, i0 + low), min(k.count, i1 + high)
    q, k = q.part(i0, i1), k.part(j0, j1)
    moved = (i0 - j0) - (k.count - q.count)
    bounds = -(moved + low), moved + high
    return (
        q,
        k,
        UNBOUNDED if bounds[0] >= k.count - 1 else bounds[0],
        UNBOUNDED if bounds[1] >= q.count - 1 else bounds[1],
    )


def _trim_alibi(
    q: _Rows, k: _Rows, left: Optional[int], right: Optional[int]
) -> Iterator[tuple[_Rows, _Rows, int, int, Alibi]]:
    """Tiles with ALiBi, split until a call can apply the distances of each."""
    whole = _trim(q, k, left, right)
    if whole is None:
        return
    q, k = whole[:2]
    distance = q.position - k.position - q.step * (k.count - q.count)  # from the call's diagonal
    if q.step == 1 and distance == 0:
        yield (*whole, Alibi(0, 1, 0, 0))
        return
    past = _trim(q, k, left, 0 if right is None else min(right, 0))
    if past is not None:
        yield from _past(*past, left)
    future = _trim(q, k, -1 if left is None else min(left, -1), right)
    if future is not None:
        yield from _future(*future, right)


def _past(
    q: _Rows, k: _Rows, _: int, bound: int, left: Optional[int]
) -> Iterator[tuple[_Rows, _Rows, int, int, Alibi]]:
    """Keys at or before their queries."""
    if bound == UNBOUNDED:  # the last key precedes all queries: distances count from it
        found = _trim(q, k, left, None)
        assert found is not None
        q, k = found[:2]
        nearest = k.position + k.step * (k.count - 1)
        yield (*found, Alibi(-1, k.step, nearest - q.position, -q.step))
        return
    # Queries up to the position of the last key have their diagonal where the call has it.
    for part in (q.part(0, q.count - bound), q.part(q.count - bound, q.count)):
        if bound and part.count:
            found = _trim(part, k, left, 0)
            if found is not None:
                yield from _past(*found, left)
        elif part.count:
            found = _trim(part, k, left, 0)
            assert found is not None
            q, k = found[:2]
            distance = q.position - k.position - q.step * (k.count - q.count)
            yield (*found, Alibi(0, q.step, -distance, 0))


def _future(
    q: _Rows, k: _Rows, bound: int, _: int, right: Optional[int]
) -> Iterator[tuple[_Rows, _Rows, int, int, Alibi]]:
    """Keys after their queries."""
    if bound == UNBOUNDED:  # the first key follows all queries
        found = _trim(q, k, None, right)
        assert found is not None
        q, k = found[:2]
        yield (*found, Alibi(1, k.step, q.position - k.position, q.step))
        return
    for part in (k.part(0, k.count - bound), k.part(k.count - bound, k.count)):
        if bound and part.count:
            found = _trim(q, part, -1, right)
            if found is not None:
                yield from _future(*found, right)
        elif part.count:
            found = _trim(q, part, -1, right)
            assert found is not None
            q, k = found[:2]
            distance = q.position - k.position - q.step * (k.count - q.count)
            yield (*found, Alibi(0, q.step, distance, 0))


def _cut_rows(q: _Rows, most: int) -> Iterator[_Rows]:
    for start in range(0, q.count, most or max(q.count, 1)):
        yield q.part(start, min(q.count, start + (most or q.count)))


def _first_segment_ending_after(segments: Sequence[Segment], row: int) -> int:
    """Index of the first segment with a query at or after a row."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].q.stop <= row:
            low = middle + 1
        else:
            high = middle
    return low


def _key_rows_of(bounds: MaskBounds, q_piece: range) -> range:
    """The key rows of all segments that contain queries of a piece."""
    first = _first_segment_ending_after(bounds.segments, q_piece[0])
    later = islice(bounds.segments, first, None)
    found = [segment.k for segment in takewhile(lambda x: x.q.start <= q_piece[-1], later)]
    return range(found[0].start, found[-1].stop) if found else range(0)


def _tiles_of_pair(
    bounds: MaskBounds, q_piece: range, q_row: int, k_piece: range, k_row: int
) -> Iterator[Tile]:
    """The calls for one piece of queries and one of keys, which start at the local rows q_row and
    k_row.
    """
    step = max(x.step if len(x) > 1 else 1 for x in (q_piece, k_piece))
    for segment in bounds.segments[_first_segment_ending_after(bounds.segments, q_piece[0]) :]:
        if segment.q.start > q_piece[-1]:
            break
        i, j = rows_within(q_piece, segment.q), rows_within(k_piece, segment.k)
        if not len(i) or not len(j):
            continue
        q = _Rows(q_row + i.start, q_piece[i.start] + segment.position_offset, len(i), step)
        k = _Rows(k_row + j.start, k_piece[j.start], len(j), step)
        for part in _cut_rows(q, bounds.rows):
            if bounds.alibi:
                yield from (
                    _tile(segment, *found)
                    for found in _trim_alibi(part, k, bounds.left, bounds.right)
                )
            else:
                found = _trim(part, k, bounds.left, bounds.right)
                if found is not None:
                    yield _tile(segment, *found)


def _pairs_of_one_step(q: Pieces, k: Pieces) -> Iterator[tuple[range, int, range, int]]:
    """(queries, their first row, keys, their first row) of all pairs of pieces, each with one step.

    A node joins stripes of one row each to a range of step 1, while longer stripes keep their step.
    Such queries and keys have no common step, so the joined piece, which has one row per stripe, is
    cut into single rows.
    """
    for q_piece, q_row in zip(q, _first_rows(q)):
        for k_piece, k_row in zip(k, _first_rows(k)):
            if len(q_piece) == 1 or len(k_piece) == 1 or q_piece.step == k_piece.step:
                yield q_piece, q_row, k_piece, k_row
            elif q_piece.step < k_piece.step:
                yield from (
                    (q_piece[n : n + 1], q_row + n, k_piece, k_row) for n in range(len(q_piece))
                )
            else:
                yield from (
                    (q_piece, q_row, k_piece[n : n + 1], k_row + n) for n in range(len(k_piece))
                )


def _tile(
    segment: Segment, q: _Rows, k: _Rows, left: int, right: int, alibi: Optional[Alibi] = None
) -> Tile:
    query, key = (
        q.position - segment.position_offset - segment.first_q,
        k.position - segment.first_k,
    )
    return Tile(
        range(q.row, q.row + q.count),
        range(k.row, k.row + k.count),
        left,
        right,
        segment.sequence,
        range(query, query + q.count * q.step, q.step),
        range(key, key + k.count * k.step, k.step),
        alibi,
        segment.position_offset + segment.first_q - segment.first_k,
    )


def _merge_adjacent(tiles: list[Tile]) -> list[Tile]:
    """Merges tiles of adjacent rows: unmasked keys before other keys, then unmasked queries."""
    by_keys: list[Tile] = []
    for tile in sorted(tiles, key=lambda t: (t.q.start, t.q.stop, t.k.start)):
        last = by_keys[-1] if by_keys else None
        if (
            last
            and last.q == tile.q
            and last.full
            and tile.left == UNBOUNDED
            and last.k.stop == tile.k.start
        ):
            by_keys[-1] = tile._replace(k=range(last.k.start, tile.k.stop))
        else:
            by_keys.append(tile)
    found: list[Tile] = []
    for tile in sorted(by_keys, key=lambda t: (t.k.start, t.k.stop, t.q.start)):
        last = found[-1] if found else None
        if last and last.k == tile.k and last.full and tile.full and last.q.stop == tile.q.start:
            found[-1] = last._replace(q=range(last.q.start, tile.q.stop))
        else:
            found.append(tile)
    return _merge_diagonals(found)


def _merge_diagonals(tiles: list[Tile]) -> list[Tile]:
    """Merges causal tiles of which one continues the diagonal of the other, as in the first hop of
    causal zigzag.
    """
    found: list[Tile] = []
    for tile in sorted(tiles, key=lambda t: (t.k.start, t.q.start)):
        last = found[-1] if found else tile
        if (
            (last.left, last.right) == (tile.left, tile.right) == (UNBOUNDED, 0)
            and last.q.stop == tile.q.start
            and last.k.start == tile.k.start
            and len(tile.k) - len(tile.q) == len(last.k)
        ):
            found[-1] = tile._replace(q=range(last.q.start, tile.q.stop))
        else:
            found.append(tile)
    return found


def _first_rows(pieces: Pieces) -> list[int]:
    found, row = [], 0
    for piece in pieces:
        found.append(row)
        row += len(piece)
    return found


@lru_cache(maxsize=4096)
def tiles_of(bounds: MaskBounds, q: Pieces, k: Pieces) -> tuple[Tile, ...]:
    """The calls that compute these queries against these keys."""
    tiles: list[Tile] = []
    visible = {}
    for q_piece, q_row, k_piece, k_row in _pairs_of_one_step(q, k):
        if q_piece not in visible:
            visible[q_piece] = _key_rows_of(bounds, q_piece)
        if k_piece.start < visible[q_piece].stop and k_piece[-1] >= visible[q_piece].start:
            tiles.extend(_tiles_of_pair(bounds, q_piece, q_row, k_piece, k_row))
    return tuple(
        tiles if bounds.alibi or bounds.needs_indices or bounds.rows else _merge_adjacent(tiles)
    )


@lru_cache(maxsize=256)
def hop_distances(bounds: MaskBounds, q: Layout, k: Layout) -> tuple[int, ...]:
    """Ring distances of the KV blocks that some rank attends to; the others are not sent."""
    ranks = q.ranks
    return tuple(
        distance
        for distance in range(ranks)
        if distance == 0
        or any(
            tiles_of(bounds, q.pieces[rank], k.pieces[(rank - distance) % ranks])
            for rank in range(ranks)
        )
    )


def _has_native_alibi(tile: Tile) -> bool:
    """Whether the kernel's slopes, if there are any, give the right distances."""
    return tile.alibi is None or tile.alibi == Alibi(0, 1, 0, 0)


def varlen_groups(tiles: Sequence[Tile]) -> list[list[Tile]]:
    """Tiles that one varlen call computes: with the same window and ascending disjoint rows."""
    found: dict[tuple[int, int], list[list[Tile]]] = {}
    for tile in sorted(tiles, key=lambda t: (t.q.start, t.k.start)):
        same = found.setdefault((tile.left, tile.right), [])
        for group in same:
            last = group[-1]
            follows = last.q.stop <= tile.q.start and last.k.stop <= tile.k.start
            if follows and _has_native_alibi(tile) and _has_native_alibi(last):
                group.append(tile)
                break
        else:
            same.append([tile])
    return [group for same in found.values() for group in same]


def cu_seqlens_of(group: Sequence[Tile], rows_q: int, rows_k: int) -> tuple[list[int], list[int]]:
    """cu_seqlens_q and cu_seqlens_k of a group: rows between its tiles become sequences without
    keys or queries.
    """
    cu_q, cu_k = [0], [0]
    for tile in group:
        # A sequence of queries without keys, one of keys without queries, then the tile.
        cu_q += [tile.q.start, tile.q.start, tile.q.stop]
        cu_k += [cu_k[-1], tile.k.start, tile.k.stop]
    return cu_q + [rows_q, rows_q], cu_k + [cu_k[-1], rows_k]
