"""Which calls of the library make up a rank's rows against a block of keys. Pure arithmetic.

The library knows rectangles: queries and keys whose ends line up, with a window around that diagonal. Pieces
of a sequence stand elsewhere, so each pair of pieces is trimmed to the queries and keys that see each other.
After that the last query sees the last key, and whatever diagonal the pair has is a window with bounds
of 0 or more. Stripes are the same with positions divided by their step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple, Optional

from .layout import Layout, Pieces

ANY = -1  # as the library has it: no bound


class Segment(NamedTuple):
    """Queries that may see keys, as rows of the whole tensors: one sequence, or one chunk of it."""

    sequence: int
    q: range
    k: range
    shift: int  # a query's row plus this is its place among the keys' rows
    first_q: int  # row of the sequence's first query
    first_k: int


class Alibi(NamedTuple):
    """How a tile's distances are made of what the library offers.

    Scores of the library differ from the true ones by a number for each query, slope * (base + step * i),
    which is added to its lse. `linear` says that distances go as a bias over the keys, falling to the
    past (-1) or to the future (1) of the key next to the queries; 0, that the library's own slopes
    do, times `scale`.
    """

    linear: int
    scale: int
    base: int
    step: int


class Tile(NamedTuple):
    """One call: rows of this rank's queries, rows of the block of keys, and a window."""

    q: range  # of local rows
    k: range
    left: int
    right: int
    sequence: int = 0
    query: range = range(0)  # the queries' indices within their sequence, and the keys'
    key: range = range(0)
    alibi: Optional[Alibi] = None
    behind: int = 0  # a query's index plus this is its place among the keys' indices

    @property
    def full(self) -> bool:
        return self.left == ANY and self.right == ANY


class Sight(NamedTuple):
    """All that decides which keys are seen and how calls have to be cut."""

    segments: tuple[Segment, ...]
    left: Optional[int]  # None: no bound
    right: Optional[int]
    alibi: bool = False
    rows: int = 0  # most queries of a call; 0: any number
    apart: bool = False  # calls need the indices within their sequences, so pieces are not joined


def segments_of(
    sq: int,
    sk: int,
    cu_q: Optional[Sequence[int]] = None,
    cu_k: Optional[Sequence[int]] = None,
    chunk: int = 0,
) -> tuple[Segment, ...]:
    """The sequences, all rows of which are in use, cut into chunks where there are any."""
    ends_q, ends_k = cu_q or (0, sq), cu_k or (0, sk)
    return segments_in_use(
        [range(a, b) for a, b in zip(ends_q, ends_q[1:])],
        [range(a, b) for a, b in zip(ends_k, ends_k[1:])],
        chunk,
    )


def segments_in_use(q: Sequence[range], k: Sequence[range], chunk: int = 0) -> tuple[Segment, ...]:
    """From the rows in use of each sequence, whose ends line up."""
    found = []
    for n, (queries, keys) in enumerate(zip(q, k)):
        if not len(queries) or not len(keys):
            continue
        shift = keys.stop - queries.stop
        if not chunk:
            found.append(Segment(n, queries, keys, shift, queries.start, keys.start))
            continue
        for start in range(keys.start, keys.stop, chunk):
            first = max(queries.start, start - shift)
            part = range(first, min(queries.stop, start + chunk - shift))
            if len(part):
                seen = range(start, min(start + chunk, keys.stop))
                found.append(Segment(n, part, seen, shift, queries.start, keys.start))
    return tuple(found)


def within(piece: range, bounds: range) -> range:
    """Indices into `piece` of those of its positions that lie in `bounds`."""
    step = piece.step
    first = max(0, -((piece.start - bounds.start) // step))
    last = min(len(piece), -((piece.start - bounds.stop) // step))
    return range(first, max(first, last))


class _Rows(NamedTuple):
    """Some rows of a piece: where they lie in memory, and their positions among the keys."""

    row: int
    position: int
    count: int
    step: int

    def part(self, start: int, stop: int) -> _Rows:
        return _Rows(self.row + start, self.position + start * self.step, stop - start, self.step)


def _trimmed(
    q: _Rows, k: _Rows, left: Optional[int], right: Optional[int]
) -> Optional[tuple[_Rows, _Rows, int, int]]:
    """The queries and keys that see each other, and the library's window; None: nobody sees anything."""
    step, between = q.step, q.position - k.position
    low = -q.count - k.count if left is None else -((left - between) // step)  # j - i is at least this
    high = q.count + k.count if right is None else (between + right) // step  # and at most this
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
        ANY if bounds[0] >= k.count - 1 else bounds[0],
        ANY if bounds[1] >= q.count - 1 else bounds[1],
    )


def _with_distances(
    q: _Rows, k: _Rows, left: Optional[int], right: Optional[int]
) -> Iterator[tuple[_Rows, _Rows, int, int, Alibi]]:
    """Tiles under ALiBi, cut until each one's distances can be expressed."""
    whole = _trimmed(q, k, left, right)
    if whole is None:
        return
    q, k = whole[:2]
    away = q.position - k.position - q.step * (k.count - q.count)  # of the library's diagonal
    if q.step == 1 and away == 0:
        yield (*whole, Alibi(0, 1, 0, 0))
        return
    past = _trimmed(q, k, left, 0 if right is None else min(right, 0))
    if past is not None:
        yield from _past(*past, left)
    future = _trimmed(q, k, -1 if left is None else min(left, -1), right)
    if future is not None:
        yield from _future(*future, right)


def _past(
    q: _Rows, k: _Rows, _: int, bound: int, left: Optional[int]
) -> Iterator[tuple[_Rows, _Rows, int, int, Alibi]]:
    """Keys at or before their queries."""
    if bound == ANY:  # the last key is before all queries: distances count from it
        found = _trimmed(q, k, left, None)
        assert found is not None
        q, k = found[:2]
        nearest = k.position + k.step * (k.count - 1)
        yield (*found, Alibi(-1, k.step, nearest - q.position, -q.step))
        return
    # Queries up to the one at the last key have their diagonal where the library has it.
    for part in (q.part(0, q.count - bound), q.part(q.count - bound, q.count)):
        if bound and part.count:
            found = _trimmed(part, k, left, 0)
            if found is not None:
                yield from _past(*found, left)
        elif part.count:
            found = _trimmed(part, k, left, 0)
            assert found is not None
            q, k = found[:2]
            away = q.position - k.position - q.step * (k.count - q.count)
            yield (*found, Alibi(0, q.step, -away, 0))


def _future(
    q: _Rows, k: _Rows, bound: int, _: int, right: Optional[int]
) -> Iterator[tuple[_Rows, _Rows, int, int, Alibi]]:
    """Keys after their queries."""
    if bound == ANY:  # the first key is behind all queries
        found = _trimmed(q, k, None, right)
        assert found is not None
        q, k = found[:2]
        yield (*found, Alibi(1, k.step, q.position - k.position, q.step))
        return
    for part in (k.part(0, k.count - bound), k.part(k.count - bound, k.count)):
        if bound and part.count:
            found = _trimmed(q, part, -1, right)
            if found is not None:
                yield from _future(*found, right)
        elif part.count:
            found = _trimmed(q, part, -1, right)
            assert found is not None
            q, k = found[:2]
            away = q.position - k.position - q.step * (k.count - q.count)
            yield (*found, Alibi(0, q.step, away, 0))


def _cut(q: _Rows, most: int) -> Iterator[_Rows]:
    for start in range(0, q.count, most or max(q.count, 1)):
        yield q.part(start, min(q.count, start + (most or q.count)))


def _first_behind(segments: Sequence[Segment], row: int) -> int:
    """The first segment whose queries do not all lie before a row."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].q.stop <= row:
            low = middle + 1
        else:
            high = middle
    return low


def _keys_of(sight: Sight, q_piece: range) -> range:
    """Rows between which the keys lie of all segments that a piece of queries has to do with."""
    first = _first_behind(sight.segments, q_piece[0])
    behind = takewhile(lambda x: x.q.start <= q_piece[-1], islice(sight.segments, first, None))
    found = [segment.k for segment in behind]
    return range(found[0].start, found[-1].stop) if found else range(0)


def _of_pair(
    sight: Sight, q_piece: range, q_row: int, k_piece: range, k_row: int
) -> Iterator[Tile]:
    """The calls for one piece of queries and one of keys, whose first rows lie at q_row and k_row."""
    step = max(x.step if len(x) > 1 else 1 for x in (q_piece, k_piece))
    for segment in sight.segments[_first_behind(sight.segments, q_piece[0]) :]:
        if segment.q.start > q_piece[-1]:
            break
        i, j = within(q_piece, segment.q), within(k_piece, segment.k)
        if not len(i) or not len(j):
            continue
        q = _Rows(q_row + i.start, q_piece[i.start] + segment.shift, len(i), step)
        k = _Rows(k_row + j.start, k_piece[j.start], len(j), step)
        for part in _cut(q, sight.rows):
            if sight.alibi:
                yield from (
                    _tile(segment, *found)
                    for found in _with_distances(part, k, sight.left, sight.right)
                )
            else:
                found = _trimmed(part, k, sight.left, sight.right)
                if found is not None:
                    yield _tile(segment, *found)


def _tile(
    segment: Segment, q: _Rows, k: _Rows, left: int, right: int, alibi: Optional[Alibi] = None
) -> Tile:
    query, key = q.position - segment.shift - segment.first_q, k.position - segment.first_k
    return Tile(
        range(q.row, q.row + q.count),
        range(k.row, k.row + k.count),
        left,
        right,
        segment.sequence,
        range(query, query + q.count * q.step, q.step),
        range(key, key + k.count * k.step, k.step),
        alibi,
        segment.shift + segment.first_q - segment.first_k,
    )


def _fused(tiles: list[Tile]) -> list[Tile]:
    """Joins calls on neighbouring rows: keys that all see before others, then queries that see all."""
    by_keys: list[Tile] = []
    for tile in sorted(tiles, key=lambda t: (t.q.start, t.q.stop, t.k.start)):
        last = by_keys[-1] if by_keys else None
        if last and last.q == tile.q and last.full and tile.left == ANY and last.k.stop == tile.k.start:
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
    return _along_the_diagonal(found)


def _along_the_diagonal(tiles: list[Tile]) -> list[Tile]:
    """Joins queries to those before them whose diagonal theirs continues, as at home in causal zigzag."""
    found: list[Tile] = []
    for tile in sorted(tiles, key=lambda t: (t.k.start, t.q.start)):
        last = found[-1] if found else tile
        if (
            (last.left, last.right) == (tile.left, tile.right) == (ANY, 0)
            and last.q.stop == tile.q.start
            and last.k.start == tile.k.start
            and len(tile.k) - len(tile.q) == len(last.k)
        ):
            found[-1] = tile._replace(q=range(last.q.start, tile.q.stop))
        else:
            found.append(tile)
    return found


def _starts(pieces: Pieces) -> list[int]:
    found, row = [], 0
    for piece in pieces:
        found.append(row)
        row += len(piece)
    return found


@lru_cache(maxsize=4096)
def tiles_of(sight: Sight, q: Pieces, k: Pieces) -> tuple[Tile, ...]:
    """The calls that make up all of these queries against all of these keys."""
    keys = list(zip(k, _starts(k)))
    tiles = []
    for q_piece, q_row in zip(q, _starts(q)):
        seen = _keys_of(sight, q_piece)
        for k_piece, k_row in keys:
            if k_piece.start < seen.stop and k_piece[-1] >= seen.start:
                tiles.extend(_of_pair(sight, q_piece, q_row, k_piece, k_row))
    return tuple(tiles if sight.alibi or sight.apart or sight.rows else _fused(tiles))


@lru_cache(maxsize=256)
def hops(sight: Sight, q: Layout, k: Layout) -> tuple[int, ...]:
    """Over which distances blocks of keys travel: those at which some rank sees something of them."""
    ranks = q.ranks
    return tuple(
        distance
        for distance in range(ranks)
        if distance == 0
        or any(
            tiles_of(sight, q.pieces[rank], k.pieces[(rank - distance) % ranks])
            for rank in range(ranks)
        )
    )


def _simple(tile: Tile) -> bool:
    """Whether distances, if they matter at all, are the library's own."""
    return tile.alibi is None or tile.alibi == Alibi(0, 1, 0, 0)


def groups(tiles: Sequence[Tile]) -> list[list[Tile]]:
    """Calls that can be one call on packed sequences: one window, and rows that follow each other."""
    found: dict[tuple[int, int], list[list[Tile]]] = {}
    for tile in sorted(tiles, key=lambda t: (t.q.start, t.k.start)):
        same = found.setdefault((tile.left, tile.right), [])
        for group in same:
            last = group[-1]
            behind = last.q.stop <= tile.q.start and last.k.stop <= tile.k.start
            if behind and _simple(tile) and _simple(last):
                group.append(tile)
                break
        else:
            same.append([tile])
    return [group for same in found.values() for group in same]


def ends(group: Sequence[Tile], rows_q: int, rows_k: int) -> tuple[list[int], list[int]]:
    """cu_seqlens of queries and keys for a group: rows between its tiles are sequences that see nothing."""
    cu_q, cu_k = [0], [0]
    for tile in group:
        # Queries without keys, keys without queries, then the tile.
        cu_q += [tile.q.start, tile.q.start, tile.q.stop]
        cu_k += [cu_k[-1], tile.k.start, tile.k.stop]
    return cu_q + [rows_q, rows_q], cu_k + [cu_k[-1], rows_k]
