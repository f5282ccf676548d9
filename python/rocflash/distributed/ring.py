"""Ring attention: KV blocks circulate while each rank computes its queries against the block it
holds.

KV blocks are double buffered: one is received while attention over the other is computed. They move
by the distances of `tiles.hop_distances`, so blocks that are masked for all queries are not sent.
In the backward, dK and dV circulate after their block in f32 and return to its owner.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import hop
from .comm import Transfer
from .group import Team
from .layout import Layout
from .tiles import MaskBounds, hop_distances, tiles_of


class Ring(NamedTuple):
    """The ranks that share a sequence, and their layouts of queries and keys."""

    team: Team
    q: Layout
    k: Layout
    heads: hop.Heads
    indexing: hop.RowIndexing

    def owner(self, distance: int) -> int:
        """The rank whose KV block arrives here after a distance."""
        return (self.team.rank - distance) % self.team.size

    def hop(
        self, q: Tensor, k: Tensor, v: Tensor, o: Any, bounds: MaskBounds, distance: int
    ) -> hop.Hop:
        pieces = self.q.pieces[self.team.rank], self.k.pieces[self.owner(distance)]
        return hop.Hop(q, k, v, o, tiles_of(bounds, *pieces), self.heads, self.indexing)

    def send(
        self, sent: Optional[Tensor], into: Optional[Tensor], by: int, what: str
    ) -> Optional[Transfer]:
        """Starts to move every rank's block by that many ranks; None if the distance is 0."""
        by %= self.team.size
        if by == 0:
            return None
        to, source = (self.team.rank + by) % self.team.size, (self.team.rank - by) % self.team.size
        return Transfer(self.team, sent, to, into, source, what)


class _Block:
    """Keys and values, or their gradients, in one flat tensor: one message per hop."""

    def __init__(self, k: Tensor, v: Tensor, rows: int, dtype: torch.dtype) -> None:
        """Allocates `rows` rows with the batch, heads and head dimensions of k and v."""
        shapes = [(x.shape[0], rows, *x.shape[2:]) for x in (k, v)]
        sizes = [b * rows * h * d for b, _, h, d in shapes]
        self.flat = torch.empty(sum(sizes), dtype=dtype, device=k.device)
        parts = self.flat.split(sizes)
        self.k, self.v = (part.view(shape) for part, shape in zip(parts, shapes))


def _own_block(k: Tensor, v: Tensor) -> _Block:
    block = _Block(k, v, k.shape[1], k.dtype)
    block.k.copy_(k)
    block.v.copy_(v)
    return block


def _start_next_transfer(
    ring: Ring, k: Tensor, v: Tensor, block: Optional[_Block], distances: Any, n: int
) -> tuple[Optional[_Block], Optional[Transfer]]:
    """The buffer of the next hop's block and the transfer into it; both None in the last hop."""
    if n + 1 == len(distances):
        return None, None
    assert block is not None
    next_block = _Block(k, v, ring.k.rows(ring.owner(distances[n + 1])), k.dtype)
    what = f"hop {n + 1} of keys and values"
    return next_block, ring.send(block.flat, next_block.flat, distances[n + 1] - distances[n], what)


def forward(
    ring: Ring,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Any,
    bounds: MaskBounds,
    in_use: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse (b, h, rows)) of this rank's queries over the keys of all ranks; sinks apply to
    queries in use.
    """
    merge = hop.LseMerge(q, v.shape[-1])
    distances = hop_distances(bounds, ring.q, ring.k)
    block = _own_block(k, v) if len(distances) > 1 else None
    for n, distance in enumerate(distances):
        next_block, transfer = _start_next_transfer(ring, k, v, block, distances, n)
        k_now, v_now = (k, v) if block is None else (block.k, block.v)
        hop.forward(ring.hop(q, k_now, v_now, o, bounds, distance), merge)
        if transfer is not None:
            transfer.wait()
            block = next_block
    return merge.finish(q.dtype, o.sinks, in_use)


def backward(
    ring: Ring, saved: tuple[Any, ...], o: Any, bounds: MaskBounds, wanted: tuple[bool, ...]
) -> tuple[Optional[Tensor], ...]:
    """(dq, dk, dv, dsinks, dbias, dslopes), None where not wanted.

    `wanted` must be the same on all ranks. `saved` ends with the gradient of lse, or None.
    """
    dout, q, k, v, out, lse, dlse = saved
    distances = hop_distances(bounds, ring.q, ring.k)

    def zeros(x: Optional[Tensor], is_wanted: bool) -> Optional[Tensor]:
        return (
            torch.zeros(x.shape, dtype=torch.float32, device=q.device)
            if x is not None and is_wanted
            else None
        )

    dq = zeros(q, wanted[0])
    dbias, dslopes = zeros(o.bias, wanted[4]), zeros(o.alibi_slopes, wanted[5])
    with_keys = wanted[1] or wanted[2]
    block = _own_block(k, v) if len(distances) > 1 else None
    received: Optional[_Block] = None
    gradient_transfer: Optional[Transfer] = None  # of the sum of previous hops' gradients
    for n, distance in enumerate(distances):
        next_block, transfer = _start_next_transfer(ring, k, v, block, distances, n)
        rows = ring.k.rows(ring.owner(distance))
        k_now, v_now = (k, v) if block is None else (block.k, block.v)
        partial = _Block(k, v, rows, torch.float32) if with_keys else None
        if partial is not None:
            partial.flat.zero_()
        into = hop.Gradients(
            dq,
            partial.k if partial is not None and wanted[1] else None,
            partial.v if partial is not None and wanted[2] else None,
            dbias,
            dslopes,
        )
        hop.backward(ring.hop(q, k_now, v_now, o, bounds, distance), dout, out, lse, dlse, into)
        if transfer is not None:
            transfer.wait()
            block = next_block
        if partial is None:
            continue
        if gradient_transfer is not None:
            gradient_transfer.wait()
            assert received is not None
            partial.flat += received.flat
        last = n + 1 == len(distances)
        next_distance = 0 if last else distances[n + 1]
        received = _Block(k, v, ring.k.rows(ring.owner(next_distance)), torch.float32)
        gradient_transfer = ring.send(
            partial.flat, received.flat, next_distance - distance, f"hop {n + 1} of gradients"
        )
        if last:
            if gradient_transfer is None:
                received = partial
            else:
                gradient_transfer.wait()
    dk, dv = (None, None) if received is None else (received.k, received.v)
    dsinks = (
        hop.sinks_gradient(o.sinks, dout, out, lse, dlse)
        if wanted[3] and o.sinks is not None
        else None
    )
    return (
        None if dq is None else dq.to(q.dtype),
        dk.to(k.dtype) if dk is not None and wanted[1] else None,
        dv.to(v.dtype) if dv is not None and wanted[2] else None,
        dsinks,
        dbias,
        dslopes,
    )
