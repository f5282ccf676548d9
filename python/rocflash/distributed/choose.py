"""How many ranks share the heads and how many the sequence: one pure function.

Sharing heads (Ulysses) moves each of q, k, v and out once, and nothing is computed meanwhile. Sharing the
sequence (a ring) moves k and v past all other ranks while attention is computed. So a ring is right where
the rows of a rank are many enough to hide its traffic, and between nodes; heads are shared otherwise, as far
as they can be divided.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InvalidArgument

METHODS = ("auto", "ring", "ulysses", "2d")

# Operations for each byte of a hop grow with rows * heads / kv_heads. From so many on, backward, whose gradients
# travel in f32, hides its traffic on the fastest card over 400 Gb/s (bench/ring_model.py).
_HIDDEN = 65536


class Method(NamedTuple):
    inner: int  # neighbouring ranks that share the heads
    outer: int  # rings' length: groups of those that share the sequence


def shares_heads(heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether so many ranks can share the heads; those of keys may go to several ranks."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def _most_inner(heads: int, kv_heads: int, ranks: int, at_most: int) -> int:
    return max(
        n
        for n in range(1, min(ranks, at_most) + 1)
        if ranks % n == 0 and shares_heads(heads, kv_heads, n)
    )


def choose(
    method: str, heads: int, kv_heads: int, ranks: int, ranks_per_node: int, rows: int
) -> Method:
    """`rows` are a rank's queries; `ranks_per_node` neighbouring ranks have fast links."""
    if method not in METHODS:
        raise InvalidArgument(f"method: {method!r}; it must be one of {', '.join(METHODS)}")
    ring = Method(1, ranks)
    if method == "ring" or ranks == 1:
        return ring
    if method == "ulysses":
        if not shares_heads(heads, kv_heads, ranks):
            raise InvalidArgument(
                f"method: 'ulysses', but {heads} heads of q and {kv_heads} of k cannot be shared by {ranks} "
                "ranks; q's must be a multiple of them, and k's a multiple or a divisor"
            )
        return Method(ranks, 1)
    if method == "2d":
        at_most = ranks_per_node if ranks_per_node < ranks else ranks // 2
        inner = _most_inner(heads, kv_heads, ranks, at_most)
        if inner == 1:
            raise InvalidArgument(
                f"method: '2d', but {heads} heads of q and {kv_heads} of k cannot be shared within {ranks} "
                f"ranks of {ranks_per_node} a node; use 'ring'"
            )
        return Method(inner, ranks // inner)
    if rows * heads >= kv_heads * _HIDDEN:
        return ring
    inner = _most_inner(heads, kv_heads, ranks, ranks_per_node)
    return Method(inner, ranks // inner)
