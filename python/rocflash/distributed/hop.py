"""One hop of a ring: this rank's queries against one block of keys, by calls of the library.

What a call cannot be told is put around it. Distances of ALiBi that start elsewhere than on the call's own diagonal become a bias over
the keys and a number for each query, which only moves its lse. Dropout counts the call's own rows, so its bits
are drawn here and given as a mask: once for what is kept, once more for what the softmax divides by.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .._c.options import Options
from .._torch import calls
from .._torch.plan import GRADIENTS, seed_and_offset
from .dropout import keeps
from .tiles import Sight, Tile, ends, groups

_BIAS = GRADIENTS.index("dbias")
_MASKED = 2**24  # most weights whose dropout bits are in memory at once


class Heads(NamedTuple):
    """Which heads of all a rank computes: dropout's bits depend on it."""

    first: int
    all: int


class Form(NamedTuple):
    """How masks, biases and slopes name the rows of a ring's tensors: a dense batch unless said otherwise."""

    packed: bool = False  # packed rows: planes are those of sequences, by indices within them
    entry: int = 0  # a batch's entries one behind the other, this rank having so many rows of each

    @property
    def by_sequence(self) -> bool:
        return self.packed or self.entry > 0


def sight_of(
    o: Any, segments: tuple[Any, ...], heads: int, batch: int, longest: int, explicit: bool = False
) -> Sight:
    """What decides on tiles, from options. `longest` is the most keys that a block has.

    `explicit`: distances of ALiBi go as a bias of their own, whose gradient is that of the slopes.
    """
    right = 0 if o.causal else (o.window_right if o.window_right >= 0 else None)
    rows = 0
    if o.dropout_p or explicit:
        rows = max(1, _MASKED // max(1, batch * heads * longest))
    return Sight(
        segments,
        o.window_left if o.window_left >= 0 else None,
        right,
        o.alibi_slopes is not None and not explicit,
        rows,
        explicit or o.dropout_p > 0 or o.mask is not None or o.bias is not None,
    )


def shared_options(o: Any) -> Any:
    """The options that every call of a hop shares; the others are expressed by tiles, or at the end."""
    return Options(
        softmax_scale=o.softmax_scale,
        softcap=o.softcap,
        deterministic=o.deterministic,
        num_splits=o.num_splits,
        num_threads=o.num_threads,
        backend=o.backend,
    )


def _slice(x: range) -> slice:
    return slice(x.start, x.stop, x.step)


def _at(per_score: Tensor, tile: Tile, form: Form) -> tuple[slice, ...]:
    """A mask's or bias's part. Its keys are those of the whole sequence; its queries this rank's rows, or the sequence's."""
    every = slice(None)
    sequence, rows = every, _slice(tile.q)
    if form.by_sequence:
        sequence = slice(tile.sequence, tile.sequence + 1)
        first = tile.sequence * form.entry
        rows = _slice(tile.query) if form.packed else slice(tile.q.start - first, tile.q.stop - first)
    found = (sequence, every, rows, _slice(tile.key))
    return tuple(part if size > 1 else every for part, size in zip(found, per_score.shape))


def _cut(per_score: Optional[Tensor], tile: Tile, form: Form) -> Optional[Tensor]:
    return None if per_score is None else per_score[_at(per_score, tile, form)]


class _Call(NamedTuple):
    """A tile's options, and what its scores lack: a number for each query, (b|1, h, sq).

    `distances`, (sq, sk), are those that the bias has times the slopes, where nothing else expresses them.
    """

    options: Any
    missing: Optional[Tensor] = None
    distances: Optional[Tensor] = None


def _distances(tile: Tile, slopes: Tensor) -> tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """(slopes, bias, missing) of a tile under ALiBi; `slopes` is (b|1, h) in f32."""
    x = tile.alibi
    assert x is not None
    missing = bias = native = None
    if x.base or x.step:
        i = torch.arange(len(tile.q), device=slopes.device, dtype=torch.float64)
        missing = slopes.double()[..., None] * (x.base + x.step * i)
    if x.linear == 0:
        native = slopes * x.scale
        native = native[0] if native.shape[0] == 1 else native
    else:
        j = torch.arange(len(tile.k), device=slopes.device)
        away = (len(tile.k) - 1 - j if x.linear < 0 else j) * x.scale
        bias = -slopes[:, :, None, None] * away
    return native, bias, missing


def _call_of(tile: Tile, o: Any, shared: Any, form: Form) -> _Call:
    options = shared._replace(
        window_left=tile.left,
        window_right=tile.right,
        mask=_cut(o.mask, tile, form),
        bias=_cut(o.bias, tile, form),
    )
    if o.alibi_slopes is None:
        return _Call(options)
    slopes = o.alibi_slopes if o.alibi_slopes.dim() == 2 else o.alibi_slopes[None]
    if form.by_sequence and slopes.shape[0] > 1:
        slopes = slopes[tile.sequence : tile.sequence + 1]
    distances = None
    if tile.alibi is None:
        i, j = (torch.arange(x.start, x.stop, x.step, device=slopes.device) for x in (tile.query, tile.key))
        distances = (i[:, None] + tile.behind - j).abs()
        native, missing, bias = None, None, -slopes[:, :, None, None] * distances
    else:
        native, bias, missing = _distances(tile, slopes)
    if bias is not None and options.bias is not None:
        bias = bias + options.bias
    options = options._replace(alibi_slopes=native, bias=options.bias if bias is None else bias)
    return _Call(options, missing, distances)


def _kept(tile: Tile, o: Any, heads: Heads, batch: int, local: int, device: Any) -> Tensor:
    """(b, h, sq, sk): which weights dropout keeps."""
    sequence = torch.arange(batch, device=device) + tile.sequence
    planes = sequence[:, None] * heads.all + heads.first + torch.arange(local, device=device)
    probability = ctypes.c_float(o.dropout_p).value  # as the library has it
    return keeps(*seed_and_offset(o.rng_state), probability, planes, tile.query, tile.key)


@lru_cache(maxsize=256)
def _packed_ends(group: tuple[Tile, ...], rows_q: int, rows_k: int, batch: int, device: Any) -> Any:
    """cu_seqlens of a group for each entry of a batch, laid one behind the other, and the longest."""
    cu_q, cu_k = ends(group, rows_q, rows_k)
    found = []
    for cu, rows in ((cu_q, rows_q), (cu_k, rows_k)):
        inner = torch.tensor(cu[1:], dtype=torch.int32)
        several = inner[None] + rows * torch.arange(batch, dtype=torch.int32)[:, None]
        found.append(torch.cat([torch.zeros(1, dtype=torch.int32), several.flatten()]).to(device))
    longest = [max(b - a for a, b in zip(cu, cu[1:])) for cu in (cu_q, cu_k)]
    return (*found, *longest)


class Hop(NamedTuple):
    """Queries, a block of keys and values, and how they see each other. All tensors are (b, rows, h, d)."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Any
    tiles: tuple[Tile, ...]
    heads: Heads
    form: Form

    def calls(self) -> list[tuple[Tile, ...]]:
        """The tiles, together where they can be one call on packed sequences."""
        o = self.o
        slopes = o.alibi_slopes
        by_tile = o.mask is not None or o.bias is not None or o.dropout_p
        if by_tile or (slopes is not None and slopes.dim() == 2 and self.form.by_sequence):
            return [(tile,) for tile in self.tiles]
        return [tuple(group) for group in groups(self.tiles)]

    def packed(self, group: tuple[Tile, ...]) -> Any:
        """Options of a call on all rows, as packed sequences."""
        batch, rows_q = self.q.shape[:2]
        cu_q, cu_k, longest_q, longest_k = _packed_ends(
            group, rows_q, self.k.shape[1], batch, self.q.device
        )
        slopes = self.o.alibi_slopes
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes.repeat_interleave((cu_q.numel() - 1) // batch, 0)
        return shared_options(self.o)._replace(
            window_left=group[0].left,
            window_right=group[0].right,
            alibi_slopes=slopes,
            cu_seqlens_q=cu_q,
            cu_seqlens_k=cu_k,
            max_seqlen_q=longest_q,
            max_seqlen_k=longest_k,
        )


class Merged:
    """Partial results, merged as they come: out in f32, lse in f64, whose rounding weighs most."""

    def __init__(self, q: Tensor, dv: int) -> None:
        b, rows, h, _ = q.shape
        self.out = torch.zeros((b, rows, h, dv), dtype=torch.float32, device=q.device)
        self.lse = torch.full((b, h, rows), -torch.inf, dtype=torch.float64, device=q.device)

    def add(self, rows: slice, out: Tensor, lse: Tensor) -> None:
        """A part over other keys. Its lse is infinite, of either sign, where it saw nothing."""
        lse = lse.double()
        lse = torch.where(lse == torch.inf, -lse, lse)
        old = self.lse[:, :, rows]
        highest = torch.maximum(old, lse)
        highest = torch.where(highest == -torch.inf, 0.0, highest)
        ours, theirs = (old - highest).exp(), (lse - highest).exp()
        total = ours + theirs
        self.lse[:, :, rows] = highest + total.log()
        total = torch.where(total == 0, 1.0, total)
        mine = self.out[:, rows]
        mine *= (ours / total).transpose(1, 2)[..., None].float()
        mine += out * (theirs / total).transpose(1, 2)[..., None].float()

    def finish(self, dtype: torch.dtype, sinks: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """(out, lse) with the sinks' share, in the form of the library."""
        if sinks is not None:
            total = torch.logaddexp(self.lse, sinks.double()[None, :, None])
            total = torch.where(total == torch.inf, torch.nan, total)
            share = torch.where(total == -torch.inf, 0.0, (self.lse - total).exp())
            self.out *= share.transpose(1, 2)[..., None].float()
            self.lse = total
        lse = torch.where(self.lse == -torch.inf, torch.inf, self.lse)
        return self.out.to(dtype), lse.float()


def forward(hop: Hop, merged: Merged) -> None:
    """Adds this block's share."""
    shared = shared_options(hop.o)
    for group in hop.calls():
        if len(group) > 1:
            _forward_packed(hop, group, merged)
            continue
        (tile,) = group
        rows = slice(tile.q.start, tile.q.stop)
        q = hop.q[:, rows]
        k, v = (x[:, tile.k.start : tile.k.stop] for x in (hop.k, hop.v))
        options, missing, _ = _call_of(tile, hop.o, shared, hop.form)
        if hop.o.dropout_p:
            out, lse = _forward_dropped(hop, tile, q, k, v, options)
        else:
            out, lse, _ = calls.forward(q, k, v, options)
        merged.add(rows, out, lse if missing is None else lse + missing)


def _forward_packed(hop: Hop, group: tuple[Tile, ...], merged: Merged) -> None:
    b, rows, h, _ = hop.q.shape
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (hop.q, hop.k, hop.v))
    out, lse, _ = calls.forward(q, k, v, hop.packed(group))
    merged.add(slice(None), out.view(b, rows, h, -1), lse.view(h, b, rows).transpose(0, 1))


def _mask(given: Optional[Tensor], kept: Tensor) -> Tensor:
    return kept if given is None else kept & given.bool()


def _forward_dropped(
    hop: Hop, tile: Tile, q: Tensor, k: Tensor, v: Tensor, options: Any
) -> tuple[Tensor, Tensor]:
    """The kept weights' sum over all weights' sum. For the latter, one column of values will do."""
    kept = _kept(tile, hop.o, hop.heads, q.shape[0], q.shape[2], q.device)
    out, part, _ = calls.forward(q, k, v, options._replace(mask=_mask(options.mask, kept)))
    _, lse, _ = calls.forward(q, k, v[..., :1], options)
    share = torch.where(part == torch.inf, torch.zeros_like(part), (part - lse).exp())
    scale = (share / (1 - hop.o.dropout_p)).transpose(1, 2)[..., None]
    return out * scale, lse


class Gradients(NamedTuple):
    """What a hop adds to, all in f32; each may be None: dq of this rank's queries, dk and dv of the block, and this
    rank's share of those of bias and slopes, shaped as they are."""

    dq: Optional[Tensor] = None
    dk: Optional[Tensor] = None
    dv: Optional[Tensor] = None
    dbias: Optional[Tensor] = None
    dslopes: Optional[Tensor] = None

    def wanted(self) -> tuple[bool, ...]:
        """For the library: those of q, k, v, sinks and bias. A bias stands for slopes, too."""
        of_scores = self.dbias is not None or self.dslopes is not None
        return (*(x is not None for x in self[:3]), False, of_scores)

    def add(self, rows: slice, keys: slice, found: Sequence[Any], factor: float = 1.0) -> None:
        for into, at, x in zip(self[:3], (rows, keys, keys), found):
            if into is not None and x is not None:
                into[:, at].add_(x.view(into[:, at].shape), alpha=factor)

    def add_per_score(self, per_score: Optional[Tensor], tile: Tile, call: _Call, form: Form, factor: float = 1.0) -> None:
        """From the gradient of a tile's bias."""
        if per_score is None:
            return
        if self.dbias is not None:
            part = self.dbias[_at(self.dbias, tile, form)]
            part.add_(per_score.sum_to_size(part.shape), alpha=factor)
        if self.dslopes is not None and call.distances is not None:
            part = self.dslopes
            if form.by_sequence and part.dim() == 2:
                part = part[tile.sequence : tile.sequence + 1]
            share = -(per_score.double() * call.distances).sum((2, 3))
            part.add_(share.sum_to_size(part.shape).float(), alpha=factor)


def backward(hop: Hop, dout: Tensor, out: Tensor, lse: Tensor, into: Gradients) -> None:
    """Adds this block's share to the gradients. `out` and `lse` are those over all keys."""
    shared = shared_options(hop.o)
    for group in hop.calls() if into.dslopes is None else [(tile,) for tile in hop.tiles]:
        if len(group) > 1:
            _backward_packed(hop, group, dout, out, lse, into)
            continue
        (tile,) = group
        rows, keys = slice(tile.q.start, tile.q.stop), slice(tile.k.start, tile.k.stop)
        q, k, v = hop.q[:, rows], hop.k[:, keys], hop.v[:, keys]
        call = _call_of(tile, hop.o, shared, hop.form)
        if into.dbias is not None:  # parts of its gradient are added up: not rounded before
            call = call._replace(options=call.options._replace(bias=call.options.bias.float()))
        own_lse = lse[:, :, rows]
        if call.missing is not None:
            own_lse = (own_lse - call.missing).float()
        given = (dout[:, rows], q, k, v, out[:, rows], own_lse)
        if hop.o.dropout_p:
            _backward_dropped(hop, tile, given, call, rows, keys, into)
        else:
            found = calls.backward(*given, call.options, into.wanted())
            into.add(rows, keys, found[:3])
            into.add_per_score(found[_BIAS], tile, call, hop.form)


def _backward_packed(
    hop: Hop, group: tuple[Tile, ...], dout: Tensor, out: Tensor, lse: Tensor, into: Gradients
) -> None:
    q, k, v, dout, out = (x.reshape(-1, *x.shape[2:]) for x in (hop.q, hop.k, hop.v, dout, out))
    lse = lse.transpose(0, 1).reshape(lse.shape[1], -1)
    found = calls.backward(dout, q, k, v, out, lse, hop.packed(group), into.wanted())
    into.add(slice(None), slice(None), found[:3])


def _backward_dropped(
    hop: Hop, tile: Tile, given: tuple[Tensor, ...], call: _Call, rows: slice, keys: slice, into: Gradients
) -> None:
    """Kept weights by one call, dropped ones, which take part in the softmax alone, by another.

    The first has dp without dropout's scale, so its D must have none either: out goes scaled down, and
    the results up.
    """
    dout, q, k, v, out, lse = given
    options = call.options
    kept = _kept(tile, hop.o, hop.heads, q.shape[0], q.shape[2], q.device)
    rest = 1 - hop.o.dropout_p
    masked = options._replace(mask=_mask(options.mask, kept))
    wanted = into.wanted()
    found = calls.backward(dout, q, k, v, (out.float() * rest).to(out.dtype), lse, masked, wanted)
    into.add(rows, keys, found[:3], 1 / rest)
    into.add_per_score(found[_BIAS], tile, call, hop.form, 1 / rest)
    masked = options._replace(mask=_mask(options.mask, ~kept))
    nothing = torch.zeros((), dtype=v.dtype, device=v.device).expand(v.shape)
    wanted = (*wanted[:2], False, *wanted[3:])
    if any(wanted):
        found = calls.backward(dout, q, k, nothing.contiguous(), out, lse, masked, wanted)
        into.add(rows, keys, found[:3])
        into.add_per_score(found[_BIAS], tile, call, hop.form)


def sinks_gradient(sinks: Tensor, dout: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """(h): this rank's queries' share of the sinks' gradient, in f32."""
    share = (sinks.double()[None, :, None] - lse.double()).exp()
    share = torch.where(lse == torch.inf, torch.zeros_like(share), share)
    product = (dout.double() * out.double()).sum(-1).transpose(1, 2)
    return -(share * product).sum((0, 2)).float()
