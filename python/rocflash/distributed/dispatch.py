"""Dispatch of a call to Ulysses, ring attention, or both.

Every method is a grid of ranks: `inner` consecutive ranks share the heads (Ulysses: each then has
the rows of all of them), and `outer` such groups form rings that share the sequence. A ring has
inner = 1, Ulysses alone outer = 1.
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
from ..errors import InvalidArgument, Unsupported
from . import consistency, hop, ring
from . import group as groups
from .comm import any_of, gather_rows_scatter_heads, heads_of, scatter_rows_gather_heads
from .group import Team
from .heuristic import Method, choose
from .layout import (
    Layout,
    flatten_batch,
    layout_from_spec,
    layout_of,
    named,
    node_layout,
    reordering,
)
from .lengths import PER_SEQUENCE, Sequences, all_rows_in_use, read_lengths
from .tiles import MaskBounds, segments_in_use, segments_of

Saved = tuple[Tensor, ...]  # q, k, v, out and lse after the all-to-all


class Split(NamedTuple):
    """The operator's arguments about ranks and rows; layout is a name or a Layout's spec.

    A length of -1 means that all ranks have the same number of rows.
    """

    group: str
    method: str
    layout: str
    length: int
    length_k: int
    # Comparison of arguments between ranks: 0 never, 1 on every call, -1 by transport.
    check: int = -1
    # Whether the caller gets lse, and with it a gradient of lse: the same on all ranks.
    return_lse: bool = False

    @property
    def given_check(self) -> Optional[bool]:
        return None if self.check < 0 else bool(self.check)


class Plan(NamedTuple):
    """Ranks, method and layouts of a call."""

    team: Team
    method: Method
    inner: Team
    outer: Team
    q: Layout
    k: Layout

    def rows(self, layout: Layout) -> list[int]:
        """Rows of each rank of this rank's Ulysses group."""
        first = self.outer.rank * self.method.inner
        return [layout.rows(n) for n in range(first, first + self.method.inner)]

    def heads(self, heads: int) -> range:
        return heads_of(heads, self.inner.rank, self.method.inner)

    def gather(self, x: Tensor, layout: Layout) -> Tensor:
        """The rows of the Ulysses group for this rank's heads, in the order of `node_layout`."""
        x = gather_rows_scatter_heads(x, self.inner, self.rows(layout))
        order = _order(layout, self.method.inner, self.outer.rank, x.device)
        return x if order is None else x.index_select(1, order[0])

    def scatter(self, x: Tensor, layout: Layout, heads: int) -> Tensor:
        order = _order(layout, self.method.inner, self.outer.rank, x.device)
        x = x if order is None else x.index_select(1, order[1])
        return scatter_rows_gather_heads(x.contiguous(), self.inner, self.rows(layout), heads)


@lru_cache(maxsize=32)
def _order(
    layout: Layout, inner: int, node: int, device: torch.device
) -> Optional[tuple[Tensor, Tensor]]:
    """The permutation of `reordering` and its inverse; None for the identity."""
    order = torch.tensor(reordering(layout, inner, node), dtype=torch.int64)
    if torch.equal(order, torch.arange(len(order))):
        return None
    return order.to(device), order.argsort().to(device)


def _layout(name: str, rows: int, text: str, length: int, team: Team) -> Layout:
    """The layout of an argument, checked against this rank's rows."""
    if ":" in text or ";" in text:
        found = layout_from_spec(text)
        layout_of(found, found.length if length < 0 else length, team.size)
    else:
        found = named(text, rows * team.size if length < 0 else length, team.size)
    if found.rows(team.rank) != rows:
        raise InvalidArgument(
            f"{name} has {rows} rows; rank {team.rank} of {team.size} holds "
            f"{found.rows(team.rank)} of {found.length} "
            f"rows in layout {text}; if ranks hold different numbers of rows, length= is required"
        )
    return found


def plan_of(split: Split, q: Any, k: Any) -> Plan:
    """From the shapes of this rank's q and k, (b, rows, heads, d)."""
    team = groups.team_of(groups.by_name(split.group))
    rows_q, rows_k = int(q[1]), int(k[1])
    layout_q = _layout("q", rows_q, split.layout, split.length, team)
    length_k = layout_q.length if split.length_k < 0 and rows_q == rows_k else split.length_k
    layout_k = _layout("k", rows_k, split.layout, length_k, team)
    node = groups.ranks_per_node(split.group, team.size)
    # All ranks must select the same method, so this rank's own rows do not count.
    rows = -(-layout_q.length // team.size)
    method = choose(split.method, int(q[2]), int(k[2]), team.size, node, rows)
    return Plan(team, method, *groups.parts(team, method), layout_q, layout_k)


def check_options(o: Any, q: Any, k: Any, v: Any, plan: Plan) -> None:
    """Validates options of the whole problem that no single kernel call contains."""
    if tuple(v[:3]) != tuple(k[:3]) or k[0] != q[0] or k[3] != q[3]:
        raise InvalidArgument(
            f"k has shape {tuple(k)}, and v {tuple(v)}; k must have the batch and head dimension "
            f"of q {tuple(q)}, and v the batch, rows and heads of k"
        )
    if o.mask is not None and o.mask.dtype not in (torch.bool, torch.uint8):
        raise InvalidArgument(f"mask has dtype {o.mask.dtype}; it must be bool or uint8")
    heads = q[2]
    sequences = q[0] if o.cu_seqlens_q is None else o.cu_seqlens_q.numel() - 1
    if o.alibi_slopes is not None and o.alibi_slopes.shape not in ((heads,), (sequences, heads)):
        raise InvalidArgument(
            f"alibi_slopes has shape {tuple(o.alibi_slopes.shape)}; it must be ({heads},) or "
            f"({sequences}, {heads})"
        )
    if o.sinks is not None and o.sinks.shape != (heads,):
        raise InvalidArgument(f"sinks has shape {tuple(o.sinks.shape)}; it must be ({heads},)")
    for name in ("window_left", "window_right"):
        if getattr(o, name) < -1:
            raise InvalidArgument(
                f"window is {getattr(o, name)}; a bound must be 0 or more, or -1 for none"
            )
    if o.attention_chunk < 0:
        raise InvalidArgument(f"attention_chunk is {o.attention_chunk}; it must be 0 or more")
    if not 0 <= o.dropout_p < 1:
        raise InvalidArgument(f"dropout_p is {o.dropout_p}; it must be in [0, 1)")


def _check_per_score(o: Any, q: Any, plan: Plan, lengths: Optional[Sequences]) -> None:
    wanted, what = (q[0], q[2], q[1], plan.k.length), "this rank's rows x all keys"
    if lengths is not None and lengths.packed:
        wanted, what = (len(lengths.q), q[2], *lengths.longest(o)), "max_seqlen_q x max_seqlen_k"
    for name, x in (("mask", o.mask), ("bias", o.bias)):
        if x is not None and (
            x.dim() != 4 or any(n not in (1, m) for n, m in zip(x.shape, wanted))
        ):
            raise InvalidArgument(
                f"{name} has shape {tuple(x.shape)}; it must be {wanted}, {what}, where each size "
                "may be 1"
            )


def _by_rows(per_score: Tensor, plan: Plan) -> bool:
    """Whether a bias or mask has one row per query, not one for all.

    Ranks with one row or none cannot know.
    """
    rows = plan.rows(plan.q)
    if max(rows) <= 1:
        return True
    return (
        per_score.shape[2] > 1
        if min(rows) > 1
        else any_of(per_score.shape[2] > 1, plan.inner, per_score.device)
    )


class _LocalOptions(NamedTuple):
    """Options of the heads that this rank computes, for the rows of its Ulysses group."""

    o: Any
    bias_by_rows: bool = False


def _local_options(o: Any, plan: Plan, heads: int, lengths: Optional[Sequences]) -> _LocalOptions:
    if plan.method.inner == 1:
        return _LocalOptions(o)
    own = plan.heads(heads)
    part = slice(own.start, own.stop)
    of_sequences = lengths is not None and lengths.packed

    def per_score(x: Optional[Tensor]) -> tuple[Optional[Tensor], bool]:
        if x is None:
            return None, False
        if not of_sequences and _by_rows(x, plan):  # rows are exchanged like those of q
            x = x[:, :, : plan.q.rows(plan.team.rank)]
            x = plan.gather(_as_bytes(x).transpose(1, 2), plan.q).transpose(1, 2)
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
    return _LocalOptions(o, by_rows)


def _as_bytes(x: Tensor) -> Tensor:
    """bool as uint8, since not every backend sends bool."""
    return x.to(torch.uint8) if x.dtype is torch.bool else x


def _global_option_gradients(
    given: Sequence[Optional[Tensor]], o: Any, plan: Plan, heads: int, bias_by_rows: bool
) -> list[Optional[Tensor]]:
    """Gradients of sinks, bias and slopes in the shapes of the arguments, from those of
    `_local_options`.
    """
    own = plan.heads(heads)

    def in_all_heads(x: Tensor, dim: int) -> Tensor:
        every = x.new_zeros([heads if n == dim else size for n, size in enumerate(x.shape)])
        every.narrow(dim, own.start, len(own)).copy_(x)
        return every

    dsinks, dbias, dslopes = given
    if dbias is not None and bias_by_rows:
        dbias = plan.scatter(dbias.transpose(1, 2), plan.q, o.bias.shape[1]).transpose(1, 2)
        # This rank has no rows.
        dbias = dbias if dbias.shape == o.bias.shape else torch.zeros_like(o.bias)
    elif dbias is not None and o.bias.shape[1] > 1:
        dbias = in_all_heads(dbias, 1)
    return [
        None if dsinks is None else in_all_heads(dsinks, 0),
        dbias,
        None if dslopes is None else in_all_heads(dslopes, dslopes.dim() - 1),
    ]


class _UlyssesCall(NamedTuple):
    """One kernel call on all rows of some heads."""

    o: Any
    packed: bool
    slots: int = 1  # sequences per sequence of the caller, all but one of them empty

    def rows(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1) if self.packed else x

    def lse(self, x: Tensor, batch: int) -> Tensor:
        """(b, h, rows) from the call's LSE."""
        return x.unflatten(1, (batch, x.shape[1] // batch)).transpose(0, 1) if self.packed else x

    def own_lse(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1) if self.packed else x

    def option(self, x: Optional[Tensor], given: Optional[Tensor]) -> Optional[Tensor]:
        """The gradient of an option in the option's shape."""
        if x is None or given is None or x.shape == given.shape:
            return x
        return x.view(-1, self.slots, *x.shape[1:]).sum(1)


def _ulysses_call(
    q: Tensor, k: Tensor, o: Any, lengths: Optional[Sequences], heads: hop.Heads
) -> _UlyssesCall:
    """The call for this rank's heads.

    Dropout bits depend on sequence * heads + head of the whole problem. A rank with some of the
    heads packs each sequence between empty ones, so that the call's own index is the global one.
    """
    local = q.shape[2]
    needs_global_heads = bool(o.dropout_p) and local != heads.all
    packed = lengths is not None and lengths.packed
    if not packed and not needs_global_heads:
        return _UlyssesCall(o, False)
    if lengths is None:
        lengths = all_rows_in_use(q.shape[0], q.shape[1], k.shape[1])
    longest_q, longest_k = lengths.longest(o)
    o = o._replace(max_seqlen_q=longest_q, max_seqlen_k=longest_k)
    ends_q, ends_k, slots = lengths.ends_q, lengths.ends_k, 1
    if needs_global_heads:
        slots, slot = heads.all // local, heads.first // local
        ends_q, ends_k = (_pack_between_empty(ends, slots, slot) for ends in (ends_q, ends_k))

        def each(x: Optional[Tensor]) -> Optional[Tensor]:
            return x if x is None or x.shape[0] == 1 else x.repeat_interleave(slots, 0)

        def among_zeros(x: Optional[Tensor]) -> Optional[Tensor]:
            if x is None:
                return None
            every = x.new_zeros((x.shape[0], slots))
            every[:, slot] = x
            return every.flatten()

        slopes = o.alibi_slopes
        # Per sequence; unlike a mask, it does not broadcast.
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes.repeat_interleave(slots, 0)
        o = o._replace(
            **{"mask": each(o.mask), "bias": each(o.bias), "alibi_slopes": slopes},
            **{name: among_zeros(getattr(o, name)) for name in PER_SEQUENCE},
        )
    cu_q, cu_k = (
        torch.tensor(ends, dtype=torch.int32, device=q.device) for ends in (ends_q, ends_k)
    )
    return _UlyssesCall(o._replace(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k), True, slots)


def _pack_between_empty(ends: Sequence[int], slots: int, slot: int) -> tuple[int, ...]:
    found = [ends[0]]
    for start, stop in zip(ends, ends[1:]):
        found += [start] * slot + [stop] * (slots - slot)
    return tuple(found)


class _RingCall(NamedTuple):
    """Ranks, mask bounds and tensor shapes of ring attention.

    A batch whose entries have lengths of their own is flattened to packed rows.
    """

    ring: ring.Ring
    bounds: MaskBounds
    batch: int  # entries of the flattened batch; 1: not flattened
    lengths: Optional[Sequences]

    def queries_in_use(self, device: torch.device) -> Optional[Tensor]:
        """(rows) of this rank, False past seqused_q and outside all varlen sequences; None if all
        are in use.
        """
        if self.lengths is None:
            return None
        layout = self.ring.q
        found = torch.zeros(layout.length, dtype=torch.bool)
        for rows in self.lengths.q:
            found[rows.start : rows.stop] = True
        pieces = layout.pieces[self.ring.team.rank]
        own = [found[piece.start : piece.stop : piece.step] for piece in pieces]
        return torch.cat([found[:0], *own]).to(device)

    def rows(self, x: Tensor) -> Tensor:
        return x if self.batch == 1 else x.flatten(0, 1)[None]

    def back(self, x: Optional[Tensor]) -> Optional[Tensor]:
        return (
            x
            if x is None or self.batch == 1
            else x[0].unflatten(0, (self.batch, x.shape[1] // self.batch))
        )

    def lse(self, x: Tensor) -> Tensor:
        """(1, h, b * rows) from (b, h, rows)."""
        return x if self.batch == 1 else x.transpose(0, 1).flatten(1)[None]

    def lse_back(self, x: Tensor) -> Tensor:
        return (
            x
            if self.batch == 1
            else x[0].unflatten(1, (self.batch, x.shape[2] // self.batch)).transpose(0, 1)
        )


def _ring_call(
    plan: Plan,
    q: Tensor,
    o: Any,
    lengths: Optional[Sequences],
    heads: hop.Heads,
    explicit: bool = False,
) -> _RingCall:
    layouts = [node_layout(x, plan.method.inner) for x in (plan.q, plan.k)]
    batch, indexing = 1, hop.RowIndexing()
    if lengths is None:
        segments = segments_of(plan.q.length, plan.k.length, None, None, o.attention_chunk)
    else:
        segments = segments_in_use(lengths.q, lengths.k, o.attention_chunk)
        indexing = hop.RowIndexing(packed=True)
        if not lengths.packed:
            batch, indexing = q.shape[0], hop.RowIndexing(entry=q.shape[1])
            layouts = [flatten_batch(x, batch) for x in layouts]
    longest = max(layouts[1].rows(n) for n in range(layouts[1].ranks))
    bounds = hop.mask_bounds_of(o, segments, q.shape[2], q.shape[0] // batch, longest, explicit)
    of_q, of_k = layouts
    found = ring.Ring(plan.outer, of_q, of_k, heads, indexing)
    return _RingCall(found, bounds, batch, lengths)


def completed(options: Sequence[Any]) -> Any:
    o = Options(*options)
    return o._replace(backend=choice.current()) if o.backend == choice.FROM_CONTEXT else o


def forward(
    q: Tensor, k: Tensor, v: Tensor, o: Any, split: Split
) -> tuple[Tensor, Tensor, Optional[Saved]]:
    """(out, lse (b, h, rows), tensors to save instead of arguments), all (b, rows, heads, d)."""
    team = groups.team_of(groups.by_name(split.group))
    with consistency.reporting_failures(team, "attention", q.device, split.given_check):
        plan = plan_of(split, q.shape, k.shape)
        check_options(o, q.shape, k.shape, v.shape, plan)
        lengths = read_lengths(o, q.shape[0], plan.q.length, plan.k.length)
        _check_per_score(o, q.shape, plan, lengths)
    consistency.compare(team, _signature(q, k, v, o, split, plan), q.device, split.given_check)
    all_heads = q.shape[2]
    heads = hop.Heads(plan.heads(all_heads).start, all_heads)
    o = _local_options(o, plan, all_heads, lengths).o
    if plan.method.inner > 1:
        q, k, v = plan.gather(q, plan.q), plan.gather(k, plan.k), plan.gather(v, plan.k)
    if plan.method.outer == 1:
        ulysses_call = _ulysses_call(q, k, o, lengths, heads)
        out, lse, _ = calls.forward(
            ulysses_call.rows(q), ulysses_call.rows(k), ulysses_call.rows(v), ulysses_call.o
        )
        out, lse = out.view(*q.shape[:3], v.shape[3]), ulysses_call.lse(lse, q.shape[0])
    else:
        ring_call = _ring_call(plan, q, o, lengths, heads)
        in_use = None if o.sinks is None else ring_call.queries_in_use(q.device)
        of_q, of_k, of_v = (ring_call.rows(x) for x in (q, k, v))
        out, lse = ring.forward(ring_call.ring, of_q, of_k, of_v, o, ring_call.bounds, in_use)
        out, lse = out.view(*q.shape[:3], v.shape[3]), ring_call.lse_back(lse)
    if plan.method.inner == 1:
        return out, lse, None
    saved = (q, k, v, out, lse.contiguous())
    own = plan.scatter(out, plan.q, all_heads)
    own_lse = plan.scatter(lse.transpose(1, 2)[..., None], plan.q, all_heads)
    return own, own_lse[..., 0].transpose(1, 2), saved


_COMPARED = (
    "causal", "attention_chunk", "softmax_scale", "softcap", "dropout_p", "alibi_slopes", "sinks",
    "cu_seqlens_q",
    "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k",
)  # fmt: skip


def _split_rows(plan: Plan) -> dict[str, consistency.Rows]:
    ranks = range(plan.team.size)
    return {
        name: consistency.Rows(x.rows(plan.team.rank), [x.rows(n) for n in ranks])
        for name, x in (("q", plan.q), ("k", plan.k))
    }


def _signature(
    q: Tensor, k: Tensor, v: Tensor, o: Any, split: Split, plan: Plan
) -> consistency.Signature:
    """The arguments that determine messages and results."""
    values = consistency.thorough(split.given_check)
    rows = _split_rows(plan)
    found = {
        name: consistency.describe(name, x, (1,)) for name, x in (("q", q), ("k", k), ("v", v))
    }
    found["method"], found["layout"] = repr(split.method), repr(split.layout)
    found["window"] = repr((o.window_left, o.window_right))
    found.update(
        {name: consistency.describe(name, getattr(o, name), (), values) for name in _COMPARED}
    )
    for name in ("mask", "bias"):
        x = getattr(o, name)
        # With one row per rank, a row that all queries share cannot be distinguished from the
        # rank's own.
        by_rows = (
            x is not None
            and o.cu_seqlens_q is None
            and (x.shape[2] > 1 or min(rows["q"].expected) <= 1)
        )
        found[name] = consistency.describe(name, x, (2,) if by_rows else ())
    if values:
        found["rng_state"] = consistency.describe("rng_state", o.rng_state, (), values)
    return consistency.Signature("attention", found, rows)


def _backward_signature(
    dout: Tensor, split: Split, shapes: tuple[Any, Any], wanted: tuple[bool, ...], plan: Plan
) -> consistency.Signature:
    found = {name: f"of shape ({x[0]}, rows, {x[2]}, {x[3]})" for name, x in zip("qk", shapes)}
    found["dout"] = consistency.describe("dout", dout, (1,))
    found["method"], found["layout"] = repr(split.method), repr(split.layout)
    gradients = ("q", "k", "v", *GRADED)
    found["requires_grad"] = ", ".join(name for name, needed in zip(gradients, wanted) if needed)
    return consistency.Signature("the backward of attention", found, _split_rows(plan))


def saved_shapes(q: Any, k: Any, v: Any, split: Split) -> Optional[list[tuple[int, ...]]]:
    """Shapes of the tensors that `forward` saves, from those of its inputs; None if it saves its
    arguments.
    """
    plan = plan_of(split, q, k)
    if plan.method.inner == 1:
        return None
    rows_q, rows_k = sum(plan.rows(plan.q)), sum(plan.rows(plan.k))
    h, hk = len(plan.heads(q[2])), len(plan.heads(k[2]))
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
    dlse: Optional[Tensor] = None,
) -> tuple[Optional[Tensor], ...]:
    """(dq, dk, dv, dsinks, dbias, dslopes). `saved` is q, k, v, out and lse, or the tensors that
    `forward` saved.

    `shapes` are those of this rank's q and k. `dlse` is the gradient of this rank's lse.
    """
    q, k, v, out, lse = saved
    plan = plan_of(split, *shapes)
    if plan.method.outer > 1 and o.backend == choice.OF_LIBRARY["reference"]:
        raise Unsupported(
            "backend: reference; it ignores the lse, which ring attention's gradients of a KV "
            "block need: it must be "
            "another one, or the method 'ulysses'"
        )
    signature = _backward_signature(dout, split, shapes, wanted, plan)
    consistency.compare(plan.team, signature, dout.device, split.given_check)
    all_heads, all_kv_heads = (int(shape[2]) for shape in shapes)
    lengths = read_lengths(o, shapes[0][0], plan.q.length, plan.k.length)
    shared = plan.method.inner > 1
    heads = hop.Heads(plan.heads(all_heads).start, all_heads)
    given = o
    o, bias_by_rows = _local_options(o, plan, all_heads, lengths)
    if shared:
        dout = plan.gather(dout, plan.q)
        if dlse is not None:
            dlse = plan.gather(dlse.transpose(1, 2)[..., None], plan.q)[..., 0].transpose(1, 2)
    if plan.method.outer == 1:
        ulysses_call = _ulysses_call(q, k, o, lengths, heads)
        of_dout, of_q, of_k, of_v, of_out = (ulysses_call.rows(x) for x in (dout, q, k, v, out))
        of_lse, of_dlse = (x if x is None else ulysses_call.own_lse(x) for x in (lse, dlse))
        assert of_lse is not None
        found: Sequence[Any] = calls.backward(
            of_dout, of_q, of_k, of_v, of_out, of_lse, ulysses_call.o, wanted, dlse=of_dlse
        )
        grads = [x if x is None else x.view(y.shape) for x, y in zip(found[:3], (q, k, v))]
        extras = [ulysses_call.option(x, getattr(o, name)) for x, name in zip(found[3:], GRADED)]
    else:
        ring_call = _ring_call(plan, q, o, lengths, heads, explicit=wanted[5])
        tensors = [ring_call.rows(x) for x in (dout, q, k, v, out)]
        of_rows = (x if x is None else ring_call.lse(x) for x in (lse, dlse))
        found = ring.backward(ring_call.ring, (*tensors, *of_rows), o, ring_call.bounds, wanted)
        grads, extras = [ring_call.back(x) for x in found[:3]], list(found[3:])
    if shared:
        counts = (all_heads, all_kv_heads, all_kv_heads)
        layouts = (plan.q, plan.k, plan.k)
        grads = [
            x if x is None else plan.scatter(x, at, n) for x, at, n in zip(grads, layouts, counts)
        ]
        extras = _global_option_gradients(extras, given, plan, all_heads, bias_by_rows)
    return (*grads, *extras)
