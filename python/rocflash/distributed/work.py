"""What a call of this rank means: who takes part, which rows it has, and the way the method takes.

All methods are one: neighbouring ranks share the heads (each of them then has the rows of all), and rings of
such groups share the sequence. Either may be of one rank: a ring alone, or Ulysses alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .._c import choice
from .._c.options import GRADED, Options
from .._torch import calls
from ..errors import InvalidArgument
from . import group as groups
from . import hop, ring
from .choose import Method, choose
from .exchange import any_of, gather_rows, heads_of, scatter_rows
from .group import Team
from .layout import Layout, laid_end_to_end, layout_of, named, of_spec, over_nodes, reordering
from .lengths import OF_SEQUENCES, Sequences, every_row, read
from .tiles import Sight, segments_in_use, segments_of

Saved = tuple[Tensor, ...]  # q, k, v, out and lse as the ranks that share heads have them


class Split(NamedTuple):
    """How an operator is told about ranks and rows; layout is a name or a Layout's spec.

    A length of -1 is not given: all ranks have as many rows as this one.
    """

    group: str
    method: str
    layout: str
    length: int
    length_k: int


class Work(NamedTuple):
    team: Team
    method: Method
    inner: Team
    outer: Team
    q: Layout
    k: Layout

    def rows(self, layout: Layout) -> list[int]:
        """Rows of each rank that shares heads with this one."""
        first = self.outer.rank * self.method.inner
        return [layout.rows(n) for n in range(first, first + self.method.inner)]

    def heads(self, heads: int) -> range:
        return heads_of(heads, self.inner.rank, self.method.inner)

    def gather(self, x: Tensor, layout: Layout) -> Tensor:
        """This group's rows of some heads, in the order of `over_nodes`."""
        x = gather_rows(x, self.inner, self.rows(layout))
        order = _order(layout, self.method.inner, self.outer.rank, x.device)
        return x if order is None else x.index_select(1, order[0])

    def scatter(self, x: Tensor, layout: Layout, heads: int) -> Tensor:
        order = _order(layout, self.method.inner, self.outer.rank, x.device)
        x = x if order is None else x.index_select(1, order[1])
        return scatter_rows(x.contiguous(), self.inner, self.rows(layout), heads)


@lru_cache(maxsize=32)
def _order(
    layout: Layout, inner: int, node: int, device: torch.device
) -> Optional[tuple[Tensor, Tensor]]:
    """The rows' order, and back; None where they are in it already."""
    order = torch.tensor(reordering(layout, inner, node), dtype=torch.int64)
    if torch.equal(order, torch.arange(len(order))):
        return None
    return order.to(device), order.argsort().to(device)


def _layout(name: str, rows: int, text: str, length: int, team: Team) -> Layout:
    """Who has which rows, held to those that this rank has."""
    if ":" in text or ";" in text:
        found = of_spec(text)
        layout_of(found, found.length if length < 0 else length, team.size)
    else:
        found = named(text, rows * team.size if length < 0 else length, team.size)
    if found.rows(team.rank) != rows:
        raise InvalidArgument(
            f"{name}: {rows} rows; rank {team.rank} of {team.size} holds {found.rows(team.rank)} of {found.length} "
            f"rows in layout {text}; where ranks hold different numbers, length= must be given"
        )
    return found


def work_of(split: Split, q: Any, k: Any) -> Work:
    """From the shapes of this rank's q and k, (b, rows, heads, d)."""
    team = groups.team_of(groups.by_name(split.group))
    rows_q, rows_k = int(q[1]), int(k[1])
    layout_q = _layout("q", rows_q, split.layout, split.length, team)
    length_k = layout_q.length if split.length_k < 0 and rows_q == rows_k else split.length_k
    layout_k = _layout("k", rows_k, split.layout, length_k, team)
    node = groups.ranks_per_node(split.group, team.size)
    # Not by this rank's rows: all ranks must choose alike.
    rows = -(-layout_q.length // team.size)
    method = choose(split.method, int(q[2]), int(k[2]), team.size, node, rows)
    return Work(team, method, *groups.parts(team, method), layout_q, layout_k)


def check_options(o: Any, q: Any, k: Any, v: Any, work: Work) -> None:
    """What the library would say of the whole problem, and no single call of it can."""
    if tuple(v[:3]) != tuple(k[:3]) or k[0] != q[0] or k[3] != q[3]:
        raise InvalidArgument(
            f"k: shape {tuple(k)}, v {tuple(v)}; with q {tuple(q)}, k must have its batch and head size, and v k's "
            "batch, rows and heads"
        )
    if o.mask is not None and o.mask.dtype not in (torch.bool, torch.uint8):
        raise InvalidArgument(f"mask: dtype {o.mask.dtype}; it must be bool or uint8")
    heads = q[2]
    sequences = q[0] if o.cu_seqlens_q is None else o.cu_seqlens_q.numel() - 1
    if o.alibi_slopes is not None and o.alibi_slopes.shape not in ((heads,), (sequences, heads)):
        raise InvalidArgument(
            f"alibi_slopes: shape {tuple(o.alibi_slopes.shape)}; it must be ({heads},) or ({sequences}, {heads})"
        )
    if o.sinks is not None and o.sinks.shape != (heads,):
        raise InvalidArgument(f"sinks: shape {tuple(o.sinks.shape)}; it must be ({heads},)")
    for name in ("window_left", "window_right"):
        if getattr(o, name) < -1:
            raise InvalidArgument(f"window: {getattr(o, name)}; a bound must be 0 or more, or -1 for none")
    if o.attention_chunk < 0:
        raise InvalidArgument(f"attention_chunk: {o.attention_chunk}; it must be 0 or more")
    if not 0 <= o.dropout_p < 1:
        raise InvalidArgument(f"dropout_p: {o.dropout_p}; it must be at least 0 and below 1")


def _check_per_score(o: Any, q: Any, work: Work, lengths: Optional[Sequences]) -> None:
    wanted, what = (q[0], q[2], q[1], work.k.length), "this rank's rows by all keys"
    if lengths is not None and lengths.packed:
        wanted, what = (len(lengths.q), q[2], *lengths.longest(o)), "the longest sequence's queries by its keys"
    for name, x in (("mask", o.mask), ("bias", o.bias)):
        if x is not None and (x.dim() != 4 or any(n not in (1, m) for n, m in zip(x.shape, wanted))):
            raise InvalidArgument(f"{name}: shape {tuple(x.shape)}; it must be {wanted}, {what}, each of them or 1")


def _by_rows(per_score: Tensor, work: Work) -> bool:
    """Whether a bias or mask has rows of its own for each query, which is to be asked where a rank has one row or none."""
    rows = work.rows(work.q)
    if max(rows) <= 1:
        return True
    return per_score.shape[2] > 1 if min(rows) > 1 else any_of(per_score.shape[2] > 1, work.inner, per_score.device)


class _OfHeads(NamedTuple):
    """The options of the heads that this rank computes, with the rows of all that share them."""

    o: Any
    bias_by_rows: bool = False


def _of_heads(o: Any, work: Work, heads: int, lengths: Optional[Sequences]) -> _OfHeads:
    if work.method.inner == 1:
        return _OfHeads(o)
    own = work.heads(heads)
    part = slice(own.start, own.stop)
    of_sequences = lengths is not None and lengths.packed

    def per_score(x: Optional[Tensor]) -> tuple[Optional[Tensor], bool]:
        if x is None:
            return None, False
        if not of_sequences and _by_rows(x, work):  # rows are exchanged as those of q are
            x = x[:, :, : work.q.rows(work.team.rank)]
            x = work.gather(_as_bytes(x).transpose(1, 2), work.q).transpose(1, 2)
            return (x.bool() if x.dtype is torch.uint8 else x), True
        return (x if x.shape[1] == 1 else x[:, part]), False

    mask, _ = per_score(o.mask)
    bias, by_rows = per_score(o.bias)
    o = o._replace(
        alibi_slopes=None if o.alibi_slopes is None else o.alibi_slopes[..., part].contiguous(),
        sinks=None if o.sinks is None else o.sinks[part].contiguous(),
        mask=mask,
        bias=bias,
    )
    return _OfHeads(o, by_rows)


def _as_bytes(x: Tensor) -> Tensor:
    """Not every transport sends bool."""
    return x.to(torch.uint8) if x.dtype is torch.bool else x


def _to_all_heads(
    given: Sequence[Optional[Tensor]], o: Any, work: Work, heads: int, bias_by_rows: bool
) -> list[Optional[Tensor]]:
    """Gradients of sinks, bias and slopes as their owners have them, from those of `_of_heads`."""
    own = work.heads(heads)

    def placed(x: Tensor, dim: int) -> Tensor:
        every = x.new_zeros([heads if n == dim else size for n, size in enumerate(x.shape)])
        every.narrow(dim, own.start, len(own)).copy_(x)
        return every

    dsinks, dbias, dslopes = given
    if dbias is not None and bias_by_rows:
        dbias = work.scatter(dbias.transpose(1, 2), work.q, o.bias.shape[1]).transpose(1, 2)
        dbias = dbias if dbias.shape == o.bias.shape else torch.zeros_like(o.bias)  # of a rank without rows
    elif dbias is not None and o.bias.shape[1] > 1:
        dbias = placed(dbias, 1)
    return [
        None if dsinks is None else placed(dsinks, 0),
        dbias,
        None if dslopes is None else placed(dslopes, dslopes.dim() - 1),
    ]


class _Whole(NamedTuple):
    """A problem that one rank computes alone: all rows of some heads, by one call."""

    o: Any
    packed: bool
    slots: int = 1  # of a sequence, which has one of them; the others are empty

    def rows(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1) if self.packed else x

    def lse(self, x: Tensor, batch: int) -> Tensor:
        """(b, h, rows) from what the call has."""
        return x.unflatten(1, (batch, x.shape[1] // batch)).transpose(0, 1) if self.packed else x

    def own_lse(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1) if self.packed else x

    def option(self, x: Optional[Tensor], given: Optional[Tensor]) -> Optional[Tensor]:
        """A gradient of an option, shaped as it was given."""
        if x is None or given is None or x.shape == given.shape:
            return x
        return x.view(-1, self.slots, *x.shape[1:]).sum(1)


def _whole(q: Tensor, k: Tensor, o: Any, lengths: Optional[Sequences], heads: hop.Heads) -> _Whole:
    """Dropout's bits count heads of the whole problem. Where this rank has some only, sequences become packed
    ones among empty ones, which bring its heads to where they are counted."""
    local = q.shape[2]
    apart = bool(o.dropout_p) and local != heads.all
    packed = lengths is not None and lengths.packed
    if not packed and not apart:
        return _Whole(o, False)
    if lengths is None:
        lengths = every_row(q.shape[0], q.shape[1], k.shape[1])
    longest_q, longest_k = lengths.longest(o)
    o = o._replace(max_seqlen_q=longest_q, max_seqlen_k=longest_k)
    ends_q, ends_k, slots = lengths.ends_q, lengths.ends_k, 1
    if apart:
        slots, slot = heads.all // local, heads.first // local
        ends_q, ends_k = (_among_empty(ends, slots, slot) for ends in (ends_q, ends_k))

        def each(x: Optional[Tensor], full: int) -> Optional[Tensor]:
            several = x is not None and x.dim() == full and x.shape[0] > 1
            return x.repeat_interleave(slots, 0) if x is not None and several else x

        def among_zeros(x: Optional[Tensor]) -> Optional[Tensor]:
            if x is None:
                return None
            every = x.new_zeros((x.shape[0], slots))
            every[:, slot] = x
            return every.flatten()

        o = o._replace(
            **{"mask": each(o.mask, 4), "bias": each(o.bias, 4), "alibi_slopes": each(o.alibi_slopes, 2)},
            **{name: among_zeros(getattr(o, name)) for name in OF_SEQUENCES},
        )
    cu_q, cu_k = (torch.tensor(ends, dtype=torch.int32, device=q.device) for ends in (ends_q, ends_k))
    return _Whole(o._replace(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k), True, slots)


def _among_empty(ends: Sequence[int], slots: int, slot: int) -> tuple[int, ...]:
    found = [ends[0]]
    for start, stop in zip(ends, ends[1:]):
        found += [start] * slot + [stop] * (slots - slot)
    return tuple(found)


class _InRing(NamedTuple):
    """A ring's problem: its ranks, what they see, and tensors as it has them.

    Where entries of a batch have lengths of their own, they lie one behind the other, as packed rows do.
    """

    ring: ring.Ring
    sight: Sight
    batch: int  # of entries that became one

    def rows(self, x: Tensor) -> Tensor:
        return x if self.batch == 1 else x.flatten(0, 1)[None]

    def back(self, x: Optional[Tensor]) -> Optional[Tensor]:
        return x if x is None or self.batch == 1 else x[0].unflatten(0, (self.batch, x.shape[1] // self.batch))

    def lse(self, x: Tensor) -> Tensor:
        """(1, h, b * rows) from (b, h, rows)."""
        return x if self.batch == 1 else x.transpose(0, 1).flatten(1)[None]

    def lse_back(self, x: Tensor) -> Tensor:
        return x if self.batch == 1 else x[0].unflatten(1, (self.batch, x.shape[2] // self.batch)).transpose(0, 1)


def _in_ring(
    work: Work, q: Tensor, o: Any, lengths: Optional[Sequences], heads: hop.Heads, explicit: bool = False
) -> _InRing:
    layouts = [over_nodes(x, work.method.inner) for x in (work.q, work.k)]
    batch, form = 1, hop.Form()
    if lengths is None:
        segments = segments_of(work.q.length, work.k.length, None, None, o.attention_chunk)
    else:
        segments = segments_in_use(lengths.q, lengths.k, o.attention_chunk)
        form = hop.Form(packed=True)
        if not lengths.packed:
            batch, form = q.shape[0], hop.Form(entry=q.shape[1])
            layouts = [laid_end_to_end(x, batch) for x in layouts]
    longest = max(layouts[1].rows(n) for n in range(layouts[1].ranks))
    sight = hop.sight_of(o, segments, q.shape[2], q.shape[0] // batch, longest, explicit)
    return _InRing(ring.Ring(work.outer, *layouts, heads, form), sight, batch)


def completed(options: Sequence[Any]) -> Any:
    o = Options(*options)
    return o._replace(backend=choice.current()) if o.backend == choice.FROM_CONTEXT else o


def forward(
    q: Tensor, k: Tensor, v: Tensor, o: Any, split: Split
) -> tuple[Tensor, Tensor, Optional[Saved]]:
    """(out, lse (b, h, rows), what backward needs instead of these), all (b, rows, heads, d)."""
    work = work_of(split, q.shape, k.shape)
    check_options(o, q.shape, k.shape, v.shape, work)
    lengths = read(o, q.shape[0], work.q.length, work.k.length)
    _check_per_score(o, q.shape, work, lengths)
    all_heads = q.shape[2]
    heads = hop.Heads(work.heads(all_heads).start, all_heads)
    o = _of_heads(o, work, all_heads, lengths).o
    if work.method.inner > 1:
        q, k, v = work.gather(q, work.q), work.gather(k, work.k), work.gather(v, work.k)
    if work.method.outer == 1:
        whole = _whole(q, k, o, lengths, heads)
        out, lse, _ = calls.forward(whole.rows(q), whole.rows(k), whole.rows(v), whole.o)
        out, lse = out.view(*q.shape[:3], v.shape[3]), whole.lse(lse, q.shape[0])
    else:
        way = _in_ring(work, q, o, lengths, heads)
        out, lse = ring.forward(way.ring, *map(way.rows, (q, k, v)), o, way.sight)
        out, lse = out.view(*q.shape[:3], v.shape[3]), way.lse_back(lse)
    if work.method.inner == 1:
        return out, lse, None
    saved = (q, k, v, out, lse.contiguous())
    own = work.scatter(out, work.q, all_heads)
    own_lse = work.scatter(lse.transpose(1, 2)[..., None], work.q, all_heads)
    return own, own_lse[..., 0].transpose(1, 2), saved


def saved_shapes(q: Any, k: Any, v: Any, split: Split) -> Optional[list[tuple[int, ...]]]:
    """Shapes of what `forward` saves, from those of its inputs; None where it saves nothing else."""
    work = work_of(split, q, k)
    if work.method.inner == 1:
        return None
    rows_q, rows_k = sum(work.rows(work.q)), sum(work.rows(work.k))
    h, hk = len(work.heads(q[2])), len(work.heads(k[2]))
    return [
        (q[0], rows_q, h, q[3]),
        (q[0], rows_k, hk, k[3]),
        (q[0], rows_k, hk, v[3]),
        (q[0], rows_q, h, v[3]),
        (q[0], h, rows_q),
    ]


def backward(
    dout: Tensor,
    saved: Saved,
    o: Any,
    split: Split,
    wanted: tuple[bool, ...],
    shapes: tuple[Any, Any],
) -> tuple[Optional[Tensor], ...]:
    """(dq, dk, dv, dsinks, dbias, dslopes); `saved` are q, k, v, out and lse, or what forward gave instead.

    `shapes` are those of this rank's q and k.
    """
    q, k, v, out, lse = saved
    work = work_of(split, *shapes)
    all_heads, all_kv_heads = (int(shape[2]) for shape in shapes)
    lengths = read(o, shapes[0][0], work.q.length, work.k.length)
    shared = work.method.inner > 1
    heads = hop.Heads(work.heads(all_heads).start, all_heads)
    given = o
    o, bias_by_rows = _of_heads(o, work, all_heads, lengths)
    if shared:
        dout = work.gather(dout, work.q)
    if work.method.outer == 1:
        whole = _whole(q, k, o, lengths, heads)
        tensors = [whole.rows(x) for x in (dout, q, k, v, out)]
        found = calls.backward(*tensors, whole.own_lse(lse), whole.o, wanted)
        grads = [x if x is None else x.view(y.shape) for x, y in zip(found[:3], (q, k, v))]
        extras = [whole.option(x, getattr(o, name)) for x, name in zip(found[3:], GRADED)]
    else:
        way = _in_ring(work, q, o, lengths, heads, explicit=wanted[5])
        tensors = [way.rows(x) for x in (dout, q, k, v, out)]
        found = ring.backward(way.ring, (*tensors, way.lse(lse)), o, way.sight, wanted)
        grads, extras = [way.back(x) for x in found[:3]], list(found[3:])
    if shared:
        counts = (all_heads, all_kv_heads, all_kv_heads)
        layouts = (work.q, work.k, work.k)
        grads = [x if x is None else work.scatter(x, at, n) for x, at, n in zip(grads, layouts, counts)]
        extras = _to_all_heads(extras, given, work, all_heads, bias_by_rows)
    return (*grads, *extras)
