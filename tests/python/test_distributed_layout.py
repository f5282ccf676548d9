"""The arithmetic of rocflash.distributed: layouts, tiles, hop distances, selection of a method.

Tiles of random layouts are compared with dense attention masks.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rocflash.distributed import layout as layouts
from rocflash.distributed import tiles
from rocflash.distributed.heuristic import Method, choose
from rocflash.distributed.layout import (
    Layout,
    join_pieces,
    layout_of,
    named,
    node_layout,
    reordering,
)
from rocflash.errors import InvalidArgument


def random_layout(draw: random.Random, length: int, ranks: int) -> Layout:
    """A named layout, or random pieces in random order."""
    kind = draw.choice((*layouts.NAMES, "any", "permuted"))
    if kind == "permuted":
        pieces = list(named(draw.choice(layouts.NAMES), length, ranks).pieces)
        draw.shuffle(pieces)
        return Layout(pieces)
    if kind != "any":
        return named(kind, length, ranks)
    cuts = sorted(draw.randint(0, length) for _ in range(draw.randint(0, 3 * ranks)))
    parts = [range(a, b) for a, b in zip([0, *cuts], [*cuts, length])]
    draw.shuffle(parts)
    held: list[list[range]] = [[] for _ in range(ranks)]
    for part in parts:
        held[draw.randrange(ranks)].append(part)
    return Layout(held)


def test_named_layouts() -> None:
    assert named("zigzag", 8, 2).positions(0) == [0, 1, 6, 7]
    assert named("zigzag", 8, 2).positions(1) == [2, 3, 4, 5]
    assert named("striped", 7, 3).positions(1) == [1, 4]
    assert named("contiguous", 7, 3).positions(0) == [0, 1, 2]
    # If the length is divisible, every rank holds the same number of rows, odd numbers included.
    for name in layouts.NAMES:
        for ranks in (1, 2, 3, 5):
            for rows in (1, 2, 3, 8):
                found = named(name, ranks * rows, ranks)
                assert [found.rows(r) for r in range(ranks)] == [rows] * ranks, (name, ranks, rows)


def test_zigzag_balances_causal_work() -> None:
    for ranks in (2, 4, 7):
        for length in (2 * ranks * 5, 2 * ranks * 16):
            visible = [
                sum(p + 1 for p in named("zigzag", length, ranks).positions(r))
                for r in range(ranks)
            ]
            assert len(set(visible)) == 1, (ranks, length, visible)


def test_layouts_hold_every_position_once() -> None:
    draw = random.Random(1)
    for _ in range(300):
        length, ranks = draw.randint(0, 40), draw.randint(1, 6)
        found = random_layout(draw, length, ranks)
        everything = [p for r in range(ranks) for p in found.positions(r)]
        assert sorted(everything) == list(range(length))
        assert [everything[row] for row in layouts.order(found)] == list(range(length))
        assert layouts.layout_from_spec(found.spec).pieces == tuple(
            tuple(range(p.start, p.stop, p.step) for p in rank) for rank in found.pieces
        )


@pytest.mark.parametrize(
    "pieces",
    [
        [[range(0, 3)], [range(4, 6)]],
        [[range(0, 3)], [range(2, 6)]],
        [[range(1, 3)]],
        [[range(0, 6, 2)], [range(1, 3)], [range(3, 6, 2)]],
        [[range(3, 0, -1)], [range(0, 1)]],
    ],
)
def test_invalid_layouts_are_rejected(pieces: Any) -> None:
    with pytest.raises(InvalidArgument, match="^layout has .*must"):
        Layout(pieces)


def test_layout_errors_name_the_argument() -> None:
    with pytest.raises(InvalidArgument, match="layout is 'zickzack'.*zigzag, striped, contiguous"):
        layout_of("zickzack", 8, 2)
    with pytest.raises(
        InvalidArgument, match="layout has 8 rows on 2 ranks; it must have 8 rows on 4"
    ):
        layout_of(named("zigzag", 8, 2), 8, 4)


def test_node_layouts_hold_the_rows_of_their_members() -> None:
    draw = random.Random(2)
    for _ in range(200):
        inner, outer, length = draw.randint(1, 3), draw.randint(1, 3), draw.randint(0, 30)
        whole = random_layout(draw, length, inner * outer)
        nodes = node_layout(whole, inner)
        for node in range(outer):
            positions = [
                p for r in range(node * inner, (node + 1) * inner) for p in whole.positions(r)
            ]
            assert [positions[row] for row in reordering(whole, inner, node)] == nodes.positions(
                node
            )
    for name in layouts.NAMES:
        assert node_layout(named(name, 24, 4), 4).pieces == ((range(24),),)
    assert join_pieces([range(3, 5), range(0, 3), range(7, 9)]) == (range(0, 5), range(7, 9))


def segments_by_hand(sq: int, sk: int, cu_q: Any, cu_k: Any, chunk: int) -> tuple[np.ndarray, ...]:
    """(sequence, position) of each query and (sequence, index) of each key."""
    cu_q, cu_k = cu_q or (0, sq), cu_k or (0, sk)
    of_q, of_k = np.full((2, sq), -1), np.full((2, sk), -2)
    for n in range(len(cu_q) - 1):
        nq, nk = cu_q[n + 1] - cu_q[n], cu_k[n + 1] - cu_k[n]
        of_q[:, cu_q[n] : cu_q[n + 1]] = [[n] * nq, np.arange(nq) + nk - nq]
        of_k[:, cu_k[n] : cu_k[n + 1]] = [[n] * nk, np.arange(nk)]
    return of_q, of_k


def visible_by_hand(of_q: Any, of_k: Any, left: Any, right: Any, chunk: int) -> np.ndarray:
    distance = of_k[1][None] - of_q[1][:, None]
    visible = of_q[0][:, None] == of_k[0][None]
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    if chunk:
        visible &= of_q[1][:, None] // chunk == of_k[1][None] // chunk
    return visible


def drawn_ends(draw: random.Random, length: int, count: int) -> list[int]:
    return [0, *sorted(draw.randint(0, length) for _ in range(count - 1)), length]


def test_tiles_cover_visible_pairs_once() -> None:
    """Windows, chunks, varlen, unequal lengths. Tiles also reproduce the ALiBi distances."""
    draw = random.Random(3)
    for n in range(600):
        ranks = draw.randint(1, 6)
        sq = draw.randint(1, 30) if n % 3 else draw.randint(1, ranks)
        sk = draw.choice((sq, draw.randint(1, 30)))
        same = sq == sk
        chosen = random_layout(draw, sq, ranks)
        q = chosen if same else named(draw.choice(layouts.NAMES), sq, ranks)
        k = (
            chosen
            if same
            else named(next(m for m in layouts.NAMES if named(m, sq, ranks) == q), sk, ranks)
        )
        # A node joins stripes of one row only.
        inner = draw.choice([m for m in (1, 2, 3) if ranks % m == 0])
        q, k, ranks = node_layout(q, inner), node_layout(k, inner), ranks // inner
        packed = draw.random() < 0.4
        count = draw.randint(1, 4)
        cu_q = drawn_ends(draw, sq, count) if packed else None
        cu_k = (
            (cu_q if same and draw.random() < 0.7 else drawn_ends(draw, sk, count))
            if packed
            else None
        )
        chunk = draw.choice((0, 0, 1, 3, 7))
        left, right = draw.choice((None, None, 0, 2, 9)), draw.choice((None, 0, 0, 3))
        alibi = draw.random() < 0.5
        rows = draw.choice((0, 0, 2))
        bounds = tiles.MaskBounds(
            tiles.segments_of(sq, sk, cu_q, cu_k, chunk),
            left,
            right,
            alibi,
            rows,
            draw.random() < 0.3,
        )
        of_q, of_k = segments_by_hand(sq, sk, cu_q, cu_k, chunk)
        wanted = visible_by_hand(of_q, of_k, left, right, chunk)
        alibi_distances = abs(of_q[1][:, None] - of_k[1][None])
        times = np.zeros((sq, sk), int)
        needed = set()
        for a in range(ranks):
            mine = np.array(q.positions(a), int)
            for b in range(ranks):
                theirs = np.array(k.positions(b), int)
                found = tiles.tiles_of(bounds, q.pieces[a], k.pieces[b])
                needed |= {(a - b) % ranks} if found else set()
                for tile in found:
                    nq, nk = len(tile.q), len(tile.k)
                    assert nq and nk and tile.left >= -1 and tile.right >= -1
                    assert not rows or nq <= rows
                    # Query position - key.
                    gap = np.arange(nq)[:, None] + nk - nq - np.arange(nk)[None]
                    visible = np.ones((nq, nk), bool)
                    if tile.left >= 0:
                        visible &= gap <= tile.left
                    if tile.right >= 0:
                        visible &= gap >= -tile.right
                    at = np.ix_(
                        mine[tile.q.start : tile.q.stop], theirs[tile.k.start : tile.k.stop]
                    )
                    times[at] += visible
                    assert visible.any(1).all() and visible.any(0).all(), (
                        "fully masked rows are trimmed"
                    )
                    if alibi:
                        x = tile.alibi
                        assert x is not None
                        j = np.arange(nk)[None]
                        own = {0: abs(gap), -1: nk - 1 - j, 1: j}[x.linear] * x.scale
                        distance = own - (x.base + x.step * np.arange(nq)[:, None])
                        assert (distance == alibi_distances[at])[visible].all()
                    if bounds.needs_indices or alibi or rows:
                        firsts = (cu_q or [0])[tile.sequence], (cu_k or [0])[tile.sequence]
                        assert list(at[0][:, 0] - firsts[0]) == list(tile.query)
                        assert list(at[1][0] - firsts[1]) == list(tile.key)
                for group in tiles.varlen_groups(found):
                    check_group(group, len(mine), len(theirs))
        assert (times == wanted).all(), (n, q, k, bounds)
        assert set(tiles.hop_distances(bounds, q, k)) == needed | {0}


def check_group(group: list[tiles.Tile], rows_q: int, rows_k: int) -> None:
    cu_q, cu_k = tiles.cu_seqlens_of(group, rows_q, rows_k)
    assert cu_q == sorted(cu_q) and cu_k == sorted(cu_k) and len(cu_q) == len(cu_k)
    assert (cu_q[0], cu_q[-1], cu_k[0], cu_k[-1]) == (0, rows_q, 0, rows_k)
    pairs = zip(cu_q, cu_q[1:], cu_k, cu_k[1:])
    calls = [(range(a, b), range(c, d)) for a, b, c, d in pairs if a < b and c < d]
    assert calls == [(tile.q, tile.k) for tile in group]


def test_causal_zigzag_needs_one_call_per_hop() -> None:
    """One call per hop: unmasked tiles merge with causal ones, and diagonals that continue each
    other merge.
    """
    whole = named("zigzag", 64, 4)
    bounds = tiles.MaskBounds(tiles.segments_of(64, 64), None, 0)
    for rank in range(4):
        counts = [
            len(tiles.tiles_of(bounds, whole.pieces[rank], whole.pieces[k])) for k in range(4)
        ]
        assert counts == [1, 1, 1, 1]


def test_windows_skip_hops() -> None:
    whole = named("contiguous", 64, 8)
    segments = tiles.segments_of(64, 64)
    assert tiles.hop_distances(tiles.MaskBounds(segments, 7, 0), whole, whole) == (0, 1)
    assert tiles.hop_distances(tiles.MaskBounds(segments, 9, 0), whole, whole) == (0, 1, 2)
    assert tiles.hop_distances(tiles.MaskBounds(segments, 3, 3), whole, whole) == (0, 1, 7)
    assert tiles.hop_distances(tiles.MaskBounds(segments, None, 0), whole, whole) == tuple(range(8))


@pytest.mark.parametrize(
    "heads, kv_heads, ranks, node, rows, wanted",
    [
        (32, 8, 1, 8, 1024, Method(1, 1)),
        (32, 8, 8, 8, 65536, Method(1, 8)),  # many rows hide the communication of a ring
        (32, 8, 8, 8, 512, Method(8, 1)),  # few rows do not, and the heads are divisible
        (32, 8, 64, 8, 512, Method(8, 8)),  # a ring between nodes
        (32, 32, 64, 8, 512, Method(8, 8)),
        (6, 6, 4, 4, 512, Method(2, 2)),  # the largest divisor of the heads
        (5, 5, 4, 4, 512, Method(1, 4)),
    ],
)
def test_auto_method(
    heads: int, kv_heads: int, ranks: int, node: int, rows: int, wanted: Method
) -> None:
    assert choose("auto", heads, kv_heads, ranks, node, rows) == wanted


def test_method_by_name() -> None:
    assert choose("ring", 32, 8, 8, 8, 64) == Method(1, 8)
    assert choose("ulysses", 32, 8, 8, 8, 64) == Method(8, 1)
    assert choose("ulysses", 32, 2, 8, 8, 64) == Method(8, 1)  # several ranks have the same KV head
    assert choose("2d", 32, 8, 16, 8, 64) == Method(8, 2)
    assert choose("2d", 8, 8, 4, 4, 64) == Method(2, 2)
    with pytest.raises(InvalidArgument, match="method is 'ulysses'.*6 heads.*4 ranks"):
        choose("ulysses", 6, 6, 4, 4, 64)
    with pytest.raises(InvalidArgument, match="method is '2d'.*5 heads.*4 ranks"):
        choose("2d", 5, 5, 4, 4, 64)
    with pytest.raises(InvalidArgument, match="method is 'rings'.*auto, ring, ulysses, 2d"):
        choose("rings", 6, 6, 4, 4, 64)
