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
from .._c.options import Options
from .._torch import calls
from ..errors import InvalidArgument, Unsupported
from . import group as groups
from . import hop, ring
from .choose import Method, choose
from .exchange import gather_rows, heads_of, scatter_rows
from .group import Team
from .layout import Layout, layout_of, named, of_spec, over_nodes, reordering
from .tiles import Sight, segments_of

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
    wanted = (q[0], q[2], q[1], work.k.length)
    for name, x in (("mask", o.mask), ("bias", o.bias)):
        if x is not None and (x.dim() != 4 or any(n not in (1, m) for n, m in zip(x.shape, wanted))):
            raise InvalidArgument(
                f"{name}: shape {tuple(x.shape)}; it must be {wanted}, this rank's rows by all keys, each of "
                "them or 1"
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


def ends_of(name: str, cu_seqlens: Tensor, length: int) -> list[int]:
    ends: list[int] = cu_seqlens.tolist()
    if len(ends) < 1 or sorted(ends) != ends or ends[0] < 0 or ends[-1] > length:
        shown = ends if len(ends) < 9 else [*ends[:4], "...", *ends[-4:]]
        raise InvalidArgument(
            f"{name}: {shown}; it must begin at 0 or more, not decrease and end at {length} at most, the rows "
            "of all ranks"
        )
    return ends


def _longest(name: str, ends: Optional[list[int]], given: int) -> int:
    longest = max((b - a for a, b in zip(ends, ends[1:])), default=0) if ends else 0
    if given and ends is not None and given < longest:
        raise InvalidArgument(f"{name}: {given}; it must be at least {longest}, the longest sequence's length")
    return max(longest, given, 1)


class _Lengths(NamedTuple):
    q: Optional[list[int]]
    k: Optional[list[int]]


def _lengths(o: Any, work: Work) -> _Lengths:
    if o.cu_seqlens_q is None:
        return _Lengths(None, None)
    found = _Lengths(
        ends_of("cu_seqlens_q", o.cu_seqlens_q, work.q.length),
        ends_of("cu_seqlens_k", o.cu_seqlens_k, work.k.length),
    )
    assert found.q is not None and found.k is not None
    if len(found.q) != len(found.k):
        raise InvalidArgument(
            f"cu_seqlens_k: {len(found.k)} numbers; it must have as many as cu_seqlens_q, {len(found.q)}"
        )
    _longest("max_seqlen_q", found.q, o.max_seqlen_q)
    _longest("max_seqlen_k", found.k, o.max_seqlen_k)
    return found


def _of_heads(o: Any, work: Work, heads: int) -> Any:
    """The options of the heads that this rank computes, with the rows of all that share them."""
    if work.method.inner == 1:
        return o
    own = work.heads(heads)
    part = slice(own.start, own.stop)

    def plane(name: str, x: Optional[Tensor]) -> Optional[Tensor]:
        if x is None:
            return None
        if x.shape[2] > 1:
            raise Unsupported(
                f"{name}: {x.shape[2]} queries, but the heads are shared by {work.method.inner} ranks; it must "
                "have 1 there, or method='ring'"
            )
        return x if x.shape[1] == 1 else x[:, part]

    return o._replace(
        alibi_slopes=None if o.alibi_slopes is None else o.alibi_slopes[..., part].contiguous(),
        sinks=None if o.sinks is None else o.sinks[part].contiguous(),
        mask=plane("mask", o.mask),
        bias=plane("bias", o.bias),
    )


class _Whole(NamedTuple):
    """A problem that one rank computes alone: all rows of some heads, by one call."""

    o: Any
    packed: bool

    def rows(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *x.shape[2:]) if self.packed else x

    def lse(self, x: Tensor, batch: int) -> Tensor:
        """(b, h, rows) from what the call has."""
        return x.view(x.shape[0], batch, -1).transpose(0, 1) if self.packed else x

    def own_lse(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).reshape(x.shape[1], -1) if self.packed else x


def _whole(q: Tensor, k: Tensor, o: Any, lengths: _Lengths, heads: hop.Heads) -> _Whole:
    """Dropout's bits count heads of the whole problem. Where this rank has some only, sequences become packed
    ones among empty ones, which bring its heads to where they are counted."""
    local = q.shape[2]
    apart = bool(o.dropout_p) and local != heads.all
    if lengths.q is None and not apart:
        return _Whole(o, False)
    ends_q, ends_k = lengths
    if ends_q is None or ends_k is None:
        ends_q, ends_k = ([n * x.shape[1] for n in range(x.shape[0] + 1)] for x in (q, k))
    o = o._replace(
        max_seqlen_q=_longest("max_seqlen_q", ends_q, o.max_seqlen_q),
        max_seqlen_k=_longest("max_seqlen_k", ends_k, o.max_seqlen_k),
    )
    if apart:
        slots, slot = heads.all // local, heads.first // local
        ends_q, ends_k = (_among_empty(ends, slots, slot) for ends in (ends_q, ends_k))

        def each(x: Optional[Tensor], full: int) -> Optional[Tensor]:
            several = x is not None and x.dim() == full and x.shape[0] > 1
            return x.repeat_interleave(slots, 0) if x is not None and several else x

        o = o._replace(
            mask=each(o.mask, 4), bias=each(o.bias, 4), alibi_slopes=each(o.alibi_slopes, 2)
        )
    cu_q, cu_k = (torch.tensor(ends, dtype=torch.int32, device=q.device) for ends in (ends_q, ends_k))
    return _Whole(o._replace(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k), True)


def _among_empty(ends: Sequence[int], slots: int, slot: int) -> list[int]:
    found = [ends[0]]
    for start, stop in zip(ends, ends[1:]):
        found += [start] * slot + [stop] * (slots - slot)
    return found


def _ring(work: Work, q: Tensor, o: Any, lengths: _Lengths, heads: hop.Heads) -> tuple[ring.Ring, Sight]:
    layouts = [over_nodes(x, work.method.inner) for x in (work.q, work.k)]
    segments = segments_of(work.q.length, work.k.length, lengths.q, lengths.k, o.attention_chunk)
    longest = max(layouts[1].rows(n) for n in range(layouts[1].ranks))
    return (
        ring.Ring(work.outer, layouts[0], layouts[1], heads),
        hop.sight_of(o, segments, q.shape[2], q.shape[0], longest),
    )


def completed(options: Sequence[Any]) -> Any:
    o = Options(*options)
    return o._replace(backend=choice.current()) if o.backend == choice.FROM_CONTEXT else o


def forward(
    q: Tensor, k: Tensor, v: Tensor, o: Any, split: Split
) -> tuple[Tensor, Tensor, Optional[Saved]]:
    """(out, lse (b, h, rows), what backward needs instead of these), all (b, rows, heads, d)."""
    work = work_of(split, q.shape, k.shape)
    check_options(o, q.shape, k.shape, v.shape, work)
    lengths = _lengths(o, work)
    all_heads = q.shape[2]
    heads = hop.Heads(work.heads(all_heads).start, all_heads)
    o = _of_heads(o, work, all_heads)
    if work.method.inner > 1:
        q, k, v = work.gather(q, work.q), work.gather(k, work.k), work.gather(v, work.k)
    if work.method.outer == 1:
        whole = _whole(q, k, o, lengths, heads)
        out, lse, _ = calls.forward(whole.rows(q), whole.rows(k), whole.rows(v), whole.o)
        out, lse = out.view(*q.shape[:3], -1), whole.lse(lse, q.shape[0])
    else:
        out, lse = ring.forward(*_in_ring(work, q, k, v, o, lengths, heads))
    if work.method.inner == 1:
        return out, lse, None
    saved = (q, k, v, out, lse.contiguous())
    own = work.scatter(out, work.q, all_heads)
    own_lse = work.scatter(lse.transpose(1, 2)[..., None], work.q, all_heads)
    return own, own_lse[..., 0].transpose(1, 2), saved


def _in_ring(
    work: Work, q: Tensor, k: Tensor, v: Tensor, o: Any, lengths: _Lengths, heads: hop.Heads
) -> Any:
    made, sight = _ring(work, q, o, lengths, heads)
    return made, q, k, v, o, sight


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
    """(dq, dk, dv, dsinks); `saved` are q, k, v, out and lse, or what forward gave instead.

    `shapes` are those of this rank's q and k.
    """
    q, k, v, out, lse = saved
    work = work_of(split, *shapes)
    all_heads, all_kv_heads = (int(shape[2]) for shape in shapes)
    lengths = _lengths(o, work)
    shared = work.method.inner > 1
    own = work.heads(all_heads)
    heads = hop.Heads(own.start, all_heads)
    o = _of_heads(o, work, all_heads)
    if shared:
        dout = work.gather(dout, work.q)
    if work.method.outer == 1:
        whole = _whole(q, k, o, lengths, heads)
        given = [whole.rows(x) for x in (dout, q, k, v, out)]
        found = calls.backward(*given, whole.own_lse(lse), whole.o, wanted)
        grads = [x if x is None else x.view(y.shape) for x, y in zip(found[:3], (q, k, v))]
        dsinks = found[3]
    else:
        made, *_, sight = _in_ring(work, q, k, v, o, lengths, heads)
        *grads, dsinks = ring.backward(made, dout, q, k, v, out, lse, o, sight, wanted)
    if shared:
        counts = (all_heads, all_kv_heads, all_kv_heads)
        layouts = (work.q, work.k, work.k)
        grads = [x if x is None else work.scatter(x, at, n) for x, at, n in zip(grads, layouts, counts)]
        if dsinks is not None:
            every = torch.zeros(all_heads, dtype=dsinks.dtype, device=dsinks.device)
            every[own.start : own.stop] = dsinks
            dsinks = every
    return (*grads, dsinks)
