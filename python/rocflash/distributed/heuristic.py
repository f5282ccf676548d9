"""Heuristic of `method="auto"`: how many ranks share the heads (Ulysses) and how many the sequence
(ring attention).

Ulysses moves each of q, k, v and out once, and no computation overlaps that. A ring moves k and v
past all other ranks and overlaps it with attention. So a ring is selected if a rank has enough rows
to hide its communication, and between nodes. Otherwise as many ranks of a node as possible share
the heads.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InvalidArgument

METHODS = ("auto", "ring", "ulysses", "2d")

# FLOP per byte of a hop grow with rows * heads / kv_heads. At this value the backward, whose dK and
# dV are sent in f32, hides its communication on the fastest GPU over 400 Gb/s
# (benchmarks/ring_attention_model.py).
_MIN_RING_INTENSITY = 65536


class Method(NamedTuple):
    inner: int  # consecutive ranks that share the heads
    outer: int  # length of the rings: groups that share the sequence


def can_share_heads(heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether `ranks` ranks can share the heads; several ranks may have the same KV head."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def _most_inner(heads: int, kv_heads: int, ranks: int, at_most: int) -> int:
    return max(
        n
        for n in range(1, min(ranks, at_most) + 1)
        if ranks % n == 0 and can_share_heads(heads, kv_heads, n)
    )


def choose(
    method: str, heads: int, kv_heads: int, ranks: int, ranks_per_node: int, rows: int
) -> Method:
    """`rows` is queries per rank; `ranks_per_node` consecutive ranks have fast links."""
    if method not in METHODS:
        raise InvalidArgument(f"method is {method!r}; it must be one of {', '.join(METHODS)}")
    ring = Method(1, ranks)
    if method == "ring" or ranks == 1:
        return ring
    if method == "ulysses":
        if not can_share_heads(heads, kv_heads, ranks):
            raise InvalidArgument(
                f"method is 'ulysses', but {heads} heads of q and {kv_heads} of k cannot be shared "
                f"by {ranks} "
                "ranks; the heads of q must be a multiple of the ranks, those of k a multiple or a "
                "divisor"
            )
        return Method(ranks, 1)
    if method == "2d":
        at_most = ranks_per_node if ranks_per_node < ranks else ranks // 2
        inner = _most_inner(heads, kv_heads, ranks, at_most)
        if inner == 1:
            raise InvalidArgument(
                f"method is '2d', but {heads} heads of q and {kv_heads} of k cannot be shared "
                f"within {ranks} "
                f"ranks, {ranks_per_node} per node; it must be 'ring' or 'auto'"
            )
        return Method(inner, ranks // inner)
    if rows * heads >= kv_heads * _MIN_RING_INTENSITY:
        return ring
    inner = _most_inner(heads, kv_heads, ranks, ranks_per_node)
    return Method(inner, ranks // inner)
