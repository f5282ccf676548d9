"""Ring attention: keys and values travel past all ranks while each computes its queries against what it has.

The next block is on its way while the present one is computed; with the rank's own tensors there are never more than
two blocks. Blocks go over the distances that `tiles.hops` names: where windows let nobody see a
block, it is not sent. In backward the gradients of keys and values travel behind their block, in f32,
and go home at the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import hop
from .exchange import Travel
from .group import Team
from .layout import Layout
from .tiles import Sight, hops, tiles_of


class Ring(NamedTuple):
    """The ranks that share a sequence, and who has which rows."""

    team: Team
    q: Layout
    k: Layout
    heads: hop.Heads
    form: hop.Form

    def owner(self, distance: int) -> int:
        """Whose keys this rank has after they travelled so far."""
        return (self.team.rank - distance) % self.team.size

    def hop(self, q: Tensor, k: Tensor, v: Tensor, o: Any, sight: Sight, distance: int) -> hop.Hop:
        pieces = self.q.pieces[self.team.rank], self.k.pieces[self.owner(distance)]
        return hop.Hop(q, k, v, o, tiles_of(sight, *pieces), self.heads, self.form)

    def send(
        self, sent: Optional[Tensor], into: Optional[Tensor], by: int, what: str
    ) -> Optional[Travel]:
        """Everybody's block goes on by so many ranks; None where that is nowhere."""
        by %= self.team.size
        if by == 0:
            return None
        to, source = (self.team.rank + by) % self.team.size, (self.team.rank - by) % self.team.size
        return Travel(self.team, sent, to, into, source, what)


class _Block:
    """A rank's keys and values, or their gradients, as one flat tensor that travels whole."""

    def __init__(self, k: Tensor, v: Tensor, rows: int, dtype: torch.dtype) -> None:
        """Room for so many rows of what is shaped like k and v otherwise."""
        shapes = [(x.shape[0], rows, *x.shape[2:]) for x in (k, v)]
        sizes = [b * rows * h * d for b, _, h, d in shapes]
        self.flat = torch.empty(sum(sizes), dtype=dtype, device=k.device)
        parts = self.flat.split(sizes)
        self.k, self.v = (part.view(shape) for part, shape in zip(parts, shapes))


def _first(k: Tensor, v: Tensor) -> _Block:
    block = _Block(k, v, k.shape[1], k.dtype)
    block.k.copy_(k)
    block.v.copy_(v)
    return block


def _send_on(
    ring: Ring, k: Tensor, v: Tensor, block: Optional[_Block], way: Any, n: int
) -> tuple[Optional[_Block], Optional[Travel]]:
    """Room for the block of the next hop, and its way here; None and None after the last one."""
    if n + 1 == len(way):
        return None, None
    assert block is not None
    following = _Block(k, v, ring.k.rows(ring.owner(way[n + 1])), k.dtype)
    what = f"hop {n + 1} of keys and values"
    return following, ring.send(block.flat, following.flat, way[n + 1] - way[n], what)


def forward(ring: Ring, q: Tensor, k: Tensor, v: Tensor, o: Any, sight: Sight) -> tuple[Tensor, Tensor]:
    """(out, lse (b, h, rows)) of this rank's queries over all ranks' keys."""
    merged = hop.Merged(q, v.shape[-1])
    way = hops(sight, ring.q, ring.k)
    block = _first(k, v) if len(way) > 1 else None
    for n, distance in enumerate(way):
        following, travel = _send_on(ring, k, v, block, way, n)
        here = (k, v) if block is None else (block.k, block.v)
        hop.forward(ring.hop(q, *here, o, sight, distance), merged)
        if travel is not None:
            travel.arrived()
            block = following
    return merged.finish(q.dtype, o.sinks)


def backward(
    ring: Ring, saved: tuple[Tensor, ...], o: Any, sight: Sight, wanted: tuple[bool, ...]
) -> tuple[Optional[Tensor], ...]:
    """(dq, dk, dv, dsinks, dbias, dslopes), None where not wanted. All ranks must want the same."""
    dout, q, k, v, out, lse = saved
    way = hops(sight, ring.q, ring.k)

    def zeros(x: Optional[Tensor], is_wanted: bool) -> Optional[Tensor]:
        return torch.zeros(x.shape, dtype=torch.float32, device=q.device) if x is not None and is_wanted else None

    dq = zeros(q, wanted[0])
    dbias, dslopes = zeros(o.bias, wanted[4]), zeros(o.alibi_slopes, wanted[5])
    with_keys = wanted[1] or wanted[2]
    block = _first(k, v) if len(way) > 1 else None
    sums: Optional[_Block] = None
    coming: Optional[Travel] = None  # what others found for the present block
    for n, distance in enumerate(way):
        following, travel = _send_on(ring, k, v, block, way, n)
        rows = ring.k.rows(ring.owner(distance))
        here = (k, v) if block is None else (block.k, block.v)
        own = _Block(k, v, rows, torch.float32) if with_keys else None
        if own is not None:
            own.flat.zero_()
        into = hop.Gradients(
            dq,
            own.k if own is not None and wanted[1] else None,
            own.v if own is not None and wanted[2] else None,
            dbias,
            dslopes,
        )
        hop.backward(ring.hop(q, *here, o, sight, distance), dout, out, lse, into)
        if travel is not None:
            travel.arrived()
            block = following
        if own is None:
            continue
        if coming is not None:
            coming.arrived()
            assert sums is not None
            own.flat += sums.flat
        last = n + 1 == len(way)
        onwards = 0 if last else way[n + 1]
        sums = _Block(k, v, ring.k.rows(ring.owner(onwards)), torch.float32)
        coming = ring.send(own.flat, sums.flat, onwards - distance, f"hop {n + 1} of gradients")
        if last:
            if coming is None:
                sums = own
            else:
                coming.arrived()
    dk, dv = (None, None) if sums is None else (sums.k, sums.v)
    dsinks = hop.sinks_gradient(o.sinks, dout, out, lse) if wanted[3] and o.sinks is not None else None
    return (
        None if dq is None else dq.to(q.dtype),
        dk.to(k.dtype) if dk is not None and wanted[1] else None,
        dv.to(v.dtype) if dv is not None and wanted[2] else None,
        dsinks,
        dbias,
        dslopes,
    )
