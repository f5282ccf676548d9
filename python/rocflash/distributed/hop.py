"""One hop of ring attention: this rank's queries against one KV block, as kernel calls.

A kernel call has its own diagonal and its own indices, and some options need those of the whole
sequence. ALiBi distances that do not start on the call's diagonal become a bias over the keys and a
constant per query, which is added to its LSE. Dropout bits depend on the indices, so they are drawn
here and passed as a mask: one call computes the kept weights, a second one the softmax denominator.
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
from .dropout import keep_mask
from .tiles import MaskBounds, Tile, cu_seqlens_of, varlen_groups

_BIAS = GRADIENTS.index("dbias")
_MAX_MASK = 2**24  # elements of a dropout mask or of a bias of distances


class Heads(NamedTuple):
    """The first head that a rank computes, and the number of all heads; dropout bits depend on
    them.
    """

    first: int
    all: int


class RowIndexing(NamedTuple):
    """How masks, biases and slopes index the rows of a ring's tensors.

    The default is a dense batch.
    """

    packed: bool = False  # varlen: by sequence and by index within it
    entry: int = 0  # a flattened batch, with this number of rows per entry on this rank

    @property
    def by_sequence(self) -> bool:
        return self.packed or self.entry > 0


def mask_bounds_of(
    o: Any, segments: tuple[Any, ...], heads: int, batch: int, longest: int, explicit: bool = False
) -> MaskBounds:
    """The mask bounds of a call's options. `longest` is the largest number of keys of a block.

    `explicit`: ALiBi distances are passed as a bias, whose gradient gives that of the slopes.
    """
    right = 0 if o.causal else (o.window_right if o.window_right >= 0 else None)
    rows = 0
    if o.dropout_p or explicit:
        rows = max(1, _MAX_MASK // max(1, batch * heads * longest))
    return MaskBounds(
        segments,
        o.window_left if o.window_left >= 0 else None,
        right,
        o.alibi_slopes is not None and not explicit,
        rows,
        explicit or o.dropout_p > 0 or o.mask is not None or o.bias is not None,
    )


def shared_options(o: Any) -> Any:
    """Options of every kernel call of a hop.

    Tiles apply the others; sinks are added after the last hop.
    """
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


def _tile_index(per_score: Tensor, tile: Tile, indexing: RowIndexing) -> tuple[slice, ...]:
    """Index of a tile in a mask or bias, whose keys are those of the whole sequence.

    Its queries are this rank's rows, or for varlen batches those of the sequence.
    """
    every = slice(None)
    sequence, rows = every, _slice(tile.q)
    if indexing.by_sequence:
        sequence = slice(tile.sequence, tile.sequence + 1)
        first = tile.sequence * indexing.entry
        rows = (
            _slice(tile.query)
            if indexing.packed
            else slice(tile.q.start - first, tile.q.stop - first)
        )
    found = (sequence, every, rows, _slice(tile.key))
    return tuple(part if size > 1 else every for part, size in zip(found, per_score.shape))


def _tile_slice(per_score: Optional[Tensor], tile: Tile, indexing: RowIndexing) -> Optional[Tensor]:
    return None if per_score is None else per_score[_tile_index(per_score, tile, indexing)]


class _Call(NamedTuple):
    """The options of a tile's kernel call, and the term (b|1, h, sq) that is added to its LSE.

    `distances`, (sq, sk), are the explicit ALiBi distances, if the bias contains them times the
    slopes.
    """

    options: Any
    lse_offset: Optional[Tensor] = None
    distances: Optional[Tensor] = None


def _alibi_terms(
    tile: Tile, slopes: Tensor
) -> tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """(slopes, bias, lse_offset) of a tile with ALiBi; `slopes` is (b|1, h) in f32."""
    x = tile.alibi
    assert x is not None
    lse_offset = bias = native = None
    if x.base or x.step:
        i = torch.arange(len(tile.q), device=slopes.device, dtype=torch.float64)
        lse_offset = slopes.double()[..., None] * (x.base + x.step * i)
    if x.linear == 0:
        native = slopes * x.scale
        native = native[0] if native.shape[0] == 1 else native
    else:
        j = torch.arange(len(tile.k), device=slopes.device)
        distance = (len(tile.k) - 1 - j if x.linear < 0 else j) * x.scale
        bias = -slopes[:, :, None, None] * distance
    return native, bias, lse_offset


def _call_of(tile: Tile, o: Any, shared: Any, indexing: RowIndexing) -> _Call:
    options = shared._replace(
        window_left=tile.left,
        window_right=tile.right,
        mask=_tile_slice(o.mask, tile, indexing),
        bias=_tile_slice(o.bias, tile, indexing),
    )
    if o.alibi_slopes is None:
        return _Call(options)
    slopes = o.alibi_slopes if o.alibi_slopes.dim() == 2 else o.alibi_slopes[None]
    if indexing.by_sequence and slopes.shape[0] > 1:
        slopes = slopes[tile.sequence : tile.sequence + 1]
    distances = None
    if tile.alibi is None:
        i, j = (
            torch.arange(x.start, x.stop, x.step, device=slopes.device)
            for x in (tile.query, tile.key)
        )
        distances = (i[:, None] + tile.position_offset - j).abs()
        native, lse_offset, bias = None, None, -slopes[:, :, None, None] * distances
    else:
        native, bias, lse_offset = _alibi_terms(tile, slopes)
    if bias is not None and options.bias is not None:
        bias = bias + options.bias
    options = options._replace(alibi_slopes=native, bias=options.bias if bias is None else bias)
    return _Call(options, lse_offset, distances)


def _dropout_mask(tile: Tile, o: Any, heads: Heads, batch: int, local: int, device: Any) -> Tensor:
    """(b, h, sq, sk): True for the weights that dropout keeps."""
    sequence = torch.arange(batch, device=device) + tile.sequence
    bh = sequence[:, None] * heads.all + heads.first + torch.arange(local, device=device)
    probability = ctypes.c_float(o.dropout_p).value  # the library rounds it to f32
    return keep_mask(*seed_and_offset(o.rng_state), probability, bh, tile.query, tile.key)


@lru_cache(maxsize=256)
def _varlen_cu_seqlens(
    group: tuple[Tile, ...], rows_q: int, rows_k: int, batch: int, device: Any
) -> Any:
    """cu_seqlens_q, cu_seqlens_k and their longest sequences, of a group of tiles in a flattened
    batch.
    """
    cu_q, cu_k = cu_seqlens_of(group, rows_q, rows_k)
    found = []
    for cu, rows in ((cu_q, rows_q), (cu_k, rows_k)):
        inner = torch.tensor(cu[1:], dtype=torch.int32)
        several = inner[None] + rows * torch.arange(batch, dtype=torch.int32)[:, None]
        found.append(torch.cat([torch.zeros(1, dtype=torch.int32), several.flatten()]).to(device))
    longest = [max(b - a for a, b in zip(cu, cu[1:])) for cu in (cu_q, cu_k)]
    return (*found, *longest)


class Hop(NamedTuple):
    """Queries, a KV block and the tiles of attention between them.

    All tensors are (b, rows, h, d).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Any
    tiles: tuple[Tile, ...]
    heads: Heads
    indexing: RowIndexing

    def calls(self) -> list[tuple[Tile, ...]]:
        """The tiles of each kernel call; several tiles make one varlen call."""
        o = self.o
        slopes = o.alibi_slopes
        by_tile = o.mask is not None or o.bias is not None or o.dropout_p
        if by_tile or (slopes is not None and slopes.dim() == 2 and self.indexing.by_sequence):
            return [(tile,) for tile in self.tiles]
        return [tuple(group) for group in varlen_groups(self.tiles)]

    def packed(self, group: tuple[Tile, ...]) -> Any:
        """Options of the varlen call of a group of tiles, on all rows."""
        batch, rows_q = self.q.shape[:2]
        cu_q, cu_k, longest_q, longest_k = _varlen_cu_seqlens(
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


class LseMerge:
    """Online-softmax merge of partial results: out in f32, LSE in f64, since its rounding error is
    amplified by exp.
    """

    def __init__(self, q: Tensor, dv: int) -> None:
        b, rows, h, _ = q.shape
        self.out = torch.zeros((b, rows, h, dv), dtype=torch.float32, device=q.device)
        self.lse = torch.full((b, h, rows), -torch.inf, dtype=torch.float64, device=q.device)

    def add(self, rows: slice, out: Tensor, lse: Tensor) -> None:
        """Merges a partial result over other keys.

        Its LSE is infinite, of either sign, in fully masked rows.
        """
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

    def finish(
        self, dtype: torch.dtype, sinks: Optional[Tensor], in_use: Optional[Tensor] = None
    ) -> tuple[Tensor, Tensor]:
        """(out, lse) with sinks, fully masked rows as the library returns them.

        Rows without a query have no sink.
        """
        if sinks is not None:
            logits = sinks.double()[None, :, None]
            if in_use is not None:
                logits = torch.where(in_use, logits, -torch.inf)
            total = torch.logaddexp(self.lse, logits)
            total = torch.where(total == torch.inf, torch.nan, total)
            share = torch.where(total == -torch.inf, 0.0, (self.lse - total).exp())
            self.out *= share.transpose(1, 2)[..., None].float()
            self.lse = total
        lse = torch.where(self.lse == -torch.inf, torch.inf, self.lse)
        return self.out.to(dtype), lse.float()


def forward(hop: Hop, merge: LseMerge) -> None:
    """Merges attention over this KV block."""
    shared = shared_options(hop.o)
    for group in hop.calls():
        if len(group) > 1:
            _forward_varlen(hop, group, merge)
            continue
        (tile,) = group
        rows = slice(tile.q.start, tile.q.stop)
        q = hop.q[:, rows]
        k, v = (x[:, tile.k.start : tile.k.stop] for x in (hop.k, hop.v))
        options, lse_offset, _ = _call_of(tile, hop.o, shared, hop.indexing)
        if hop.o.dropout_p:
            out, lse = _forward_dropout(hop, tile, q, k, v, options)
        else:
            out, lse, _ = calls.forward(q, k, v, options)
        merge.add(rows, out, lse if lse_offset is None else lse + lse_offset)


def _forward_varlen(hop: Hop, group: tuple[Tile, ...], merge: LseMerge) -> None:
    b, rows, h, _ = hop.q.shape
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (hop.q, hop.k, hop.v))
    out, lse, _ = calls.forward(q, k, v, hop.packed(group))
    merge.add(slice(None), out.view(b, rows, h, -1), lse.view(h, b, rows).transpose(0, 1))


def _mask(given: Optional[Tensor], keep: Tensor) -> Tensor:
    return keep if given is None else keep & given.bool()


def _forward_dropout(
    hop: Hop, tile: Tile, q: Tensor, k: Tensor, v: Tensor, options: Any
) -> tuple[Tensor, Tensor]:
    """Kept weights over the denominator of all weights.

    The second call needs its LSE only: one column of v.
    """
    keep = _dropout_mask(tile, hop.o, hop.heads, q.shape[0], q.shape[2], q.device)
    out, part, _ = calls.forward(q, k, v, options._replace(mask=_mask(options.mask, keep)))
    _, lse, _ = calls.forward(q, k, v[..., :1], options)
    share = torch.where(part == torch.inf, torch.zeros_like(part), (part - lse).exp())
    scale = (share / (1 - hop.o.dropout_p)).transpose(1, 2)[..., None]
    return out * scale, lse


class Gradients(NamedTuple):
    """f32 accumulators of a hop, None where not wanted: dq of this rank, dk and dv of the block,
    and this rank's share of dbias and dslopes.
    """

    dq: Optional[Tensor] = None
    dk: Optional[Tensor] = None
    dv: Optional[Tensor] = None
    dbias: Optional[Tensor] = None
    dslopes: Optional[Tensor] = None

    def wanted(self) -> tuple[bool, ...]:
        """The library's flags for q, k, v, sinks and bias.

        The gradient of slopes comes from that of the bias.
        """
        of_scores = self.dbias is not None or self.dslopes is not None
        return (*(x is not None for x in self[:3]), False, of_scores)

    def add(self, rows: slice, keys: slice, found: Sequence[Any], factor: float = 1.0) -> None:
        for gradients, at, x in zip(self[:3], (rows, keys, keys), found):
            if gradients is not None and x is not None:
                gradients[:, at].add_(x.view(gradients[:, at].shape), alpha=factor)

    def add_per_score(
        self,
        per_score: Optional[Tensor],
        tile: Tile,
        call: _Call,
        indexing: RowIndexing,
        factor: float = 1.0,
    ) -> None:
        """Accumulates dbias and dslopes from the gradient of a tile's bias."""
        if per_score is None:
            return
        if self.dbias is not None:
            part = self.dbias[_tile_index(self.dbias, tile, indexing)]
            part.add_(per_score.sum_to_size(part.shape), alpha=factor)
        if self.dslopes is not None and call.distances is not None:
            part = self.dslopes
            if indexing.by_sequence and part.dim() == 2:
                part = part[tile.sequence : tile.sequence + 1]
            share = -(per_score.double() * call.distances).sum((2, 3))
            part.add_(share.sum_to_size(part.shape).float(), alpha=factor)


def backward(
    hop: Hop,
    dout: Tensor,
    out: Tensor,
    lse: Tensor,
    dlse: Optional[Tensor],
    gradients: Gradients,
) -> None:
    """Accumulates the gradients of attention over this KV block.

    `out`, `lse` and its gradient are those over all keys.
    """
    shared = shared_options(hop.o)
    for group in hop.calls() if gradients.dslopes is None else [(tile,) for tile in hop.tiles]:
        if len(group) > 1:
            _backward_varlen(hop, group, dout, out, lse, dlse, gradients)
            continue
        (tile,) = group
        rows, keys = slice(tile.q.start, tile.q.stop), slice(tile.k.start, tile.k.stop)
        q, k, v = hop.q[:, rows], hop.k[:, keys], hop.v[:, keys]
        call = _call_of(tile, hop.o, shared, hop.indexing)
        if gradients.dbias is not None:  # dbias is accumulated in f32
            call = call._replace(options=call.options._replace(bias=call.options.bias.float()))
        own_lse = lse[:, :, rows]
        if call.lse_offset is not None:
            own_lse = (own_lse - call.lse_offset).float()
        given = (dout[:, rows], q, k, v, out[:, rows], own_lse)
        own_dlse = None if dlse is None else dlse[:, :, rows]
        if hop.o.dropout_p:
            _backward_dropout(hop, tile, (*given, own_dlse), call, rows, keys, gradients)
        else:
            found = calls.backward(*given, call.options, gradients.wanted(), dlse=own_dlse)
            gradients.add(rows, keys, found[:3])
            gradients.add_per_score(found[_BIAS], tile, call, hop.indexing)


def _packed_rows(x: Tensor) -> Tensor:
    """(h, b * rows) of a row statistic (b, h, rows)."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def _backward_varlen(
    hop: Hop,
    group: tuple[Tile, ...],
    dout: Tensor,
    out: Tensor,
    lse: Tensor,
    dlse: Optional[Tensor],
    gradients: Gradients,
) -> None:
    q, k, v, dout, out = (x.reshape(-1, *x.shape[2:]) for x in (hop.q, hop.k, hop.v, dout, out))
    of_lse = None if dlse is None else _packed_rows(dlse)
    given = (dout, q, k, v, out, _packed_rows(lse))
    found = calls.backward(*given, hop.packed(group), gradients.wanted(), dlse=of_lse)
    gradients.add(slice(None), slice(None), found[:3])


def _backward_dropout(
    hop: Hop,
    tile: Tile,
    given: tuple[Any, ...],
    call: _Call,
    rows: slice,
    keys: slice,
    gradients: Gradients,
) -> None:
    """One call for the kept weights, and one for the dropped ones, which contribute through the
    softmax only.

    The first call does not scale dP by 1 / (1 - p), so delta = rowsum(dO * O) must not be scaled
    either: its out is multiplied by 1 - p, and its gradients are divided by it. So is its dlse.
    """
    dout, q, k, v, out, lse, dlse = given
    options = call.options
    keep = _dropout_mask(tile, hop.o, hop.heads, q.shape[0], q.shape[2], q.device)
    rest = 1 - hop.o.dropout_p
    masked = options._replace(mask=_mask(options.mask, keep))
    wanted = gradients.wanted()
    scaled = (dout, q, k, v, (out.float() * rest).to(out.dtype), lse)
    found = calls.backward(*scaled, masked, wanted, dlse=None if dlse is None else dlse * rest)
    gradients.add(rows, keys, found[:3], 1 / rest)
    gradients.add_per_score(found[_BIAS], tile, call, hop.indexing, 1 / rest)
    masked = options._replace(mask=_mask(options.mask, ~keep))
    nothing = torch.zeros((), dtype=v.dtype, device=v.device).expand(v.shape)
    wanted = (*wanted[:2], False, *wanted[3:])
    if any(wanted):
        dropped = (dout, q, k, nothing.contiguous(), out, lse)
        found = calls.backward(*dropped, masked, wanted, dlse=dlse)
        gradients.add(rows, keys, found[:3])
        gradients.add_per_score(found[_BIAS], tile, call, hop.indexing)


def sinks_gradient(
    sinks: Tensor, dout: Tensor, out: Tensor, lse: Tensor, dlse: Optional[Tensor]
) -> Tensor:
    """(h): the gradient of sinks from this rank's queries, in f32."""
    share = (sinks.double()[None, :, None] - lse.double()).exp()
    share = torch.where(lse == torch.inf, torch.zeros_like(share), share)
    product = (dout.double() * out.double()).sum(-1).transpose(1, 2)
    if dlse is not None:
        product = product - dlse.double()
    # Rows without a query may have any dout, NaN included.
    product = torch.where(lse == torch.inf, torch.zeros_like(product), product)
    return -(share * product).sum((0, 2)).float()
