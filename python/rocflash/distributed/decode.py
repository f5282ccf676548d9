"""`rocflash.distributed.decode`: decode over a KV cache that is split by keys.

Split-KV decode with one split per rank: every rank attends to its own keys with all queries. One
all-gather exchanges the partial results, which are combined by their LSE. The rank of a key follows
from its position, so ranks exchange no lengths.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from .._c.options import Append, window_pair
from .._torch import append as appending
from .._torch import calls
from .._torch.decode import attention_with_kvcache
from .._torch.options import check_tensor
from ..errors import InvalidArgument
from . import consistency
from .comm import all_gather_rows
from .group import Team, team_of

LAYOUTS = ("striped", "contiguous")


class HeldPositions(NamedTuple):
    """Positions in a rank's cache: row j holds position first + step * j."""

    first: int
    step: int
    rows: int

    def before(self, position: Tensor) -> Tensor:
        """The number of rows with smaller positions."""
        return (-((self.first - position) // self.step)).clamp(0, self.rows)


def held_positions(layout: str, rank: int, ranks: int, capacity: int) -> HeldPositions:
    """`capacity` is the number of rows of one rank's cache."""
    if layout not in LAYOUTS:
        raise InvalidArgument(
            f"layout is {layout!r}; for a cache it must be one of {', '.join(LAYOUTS)}"
        )
    if layout == "striped":
        return HeldPositions(rank, ranks, capacity)
    return HeldPositions(rank * capacity, 1, capacity)


def _lengths(
    name: str, given: Any, batch: int, device: torch.device, total_capacity: int
) -> Tensor:
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given <= total_capacity:
            raise InvalidArgument(
                f"{name} is {given}; it must be 0 to {total_capacity}, the capacity of the caches "
                "of all ranks"
            )
        return torch.full((batch,), given, dtype=torch.int64, device=device)
    check_tensor(name, given)
    if given.shape != (batch,) or given.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(
            f"{name} is {given.dtype} of shape {tuple(given.shape)}; it must be an int or int32 of "
            f"shape ({batch},)"
        )
    return given.to(device=device, dtype=torch.int64)


class _Cache(NamedTuple):
    """A rank's KV cache: contiguous, paged, or indexed by batch_idx."""

    k: Tensor
    v: Tensor
    page_table: Optional[Tensor]
    batch_idx: Optional[Tensor]

    @property
    def capacity(self) -> int:
        """Rows per sequence."""
        if self.page_table is None:
            return int(self.k.shape[1])
        return int(self.page_table.shape[1] * self.k.shape[1])

    def locate(
        self, held: HeldPositions, rows: appending.Rows, before: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The new rows whose positions this cache holds, and their slots.

        The host waits for their number.
        """
        sequence, position = rows.sequence, before[rows.sequence] + rows.index
        row = torch.div(position - held.first, held.step, rounding_mode="floor")
        mine = (held.first + row * held.step == position) & (row >= 0) & (row < held.rows)
        if rows.valid is not None:
            mine &= rows.valid
        (at,) = mine.nonzero(as_tuple=True)
        sequence, row = sequence[at], row[at]
        name, entry = "cache_batch_idx", sequence
        if self.page_table is not None:
            size = self.k.shape[1]
            name, entry, row = (
                "page_table",
                self.page_table.long()[sequence, row // size],
                row % size,
            )
        elif self.batch_idx is not None:
            entry = self.batch_idx.long()[sequence]
        if bool(((entry < 0) | (entry >= self.k.shape[0])).any()):
            raise InvalidArgument(
                f"{name} has {entry.tolist()} for new keys; it must be 0 to {self.k.shape[0] - 1}, "
                "the entries of k_cache"
            )
        return at, (entry, row)

    def write(self, at: Tensor, slots: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> None:
        for cache, new in ((self.k, keys), (self.v, values)):
            cache[slots] = new[at]


class _Queries(NamedTuple):
    """The sequence and position of every query row.

    `valid` is False in rows of no sequence; None: all are valid.
    """

    sequence: Tensor
    position: Tensor
    valid: Optional[Tensor]


def _queries(q: Tensor, cu: Optional[Tensor], total: Tensor) -> _Queries:
    rows = appending.rows_of(total.numel(), q.shape[-3], cu, q.device)
    count = q.shape[1] if cu is None else cu.long().diff()[rows.sequence]
    return _Queries(rows.sequence, total[rows.sequence] - count + rows.index, rows.valid)


class _KeyRange(NamedTuple):
    """The visible key range of each query, as rows of this rank's cache."""

    begin: Tensor
    end: Tensor

    def split(self, at: Tensor) -> tuple[_KeyRange, _KeyRange]:
        middle = torch.minimum(torch.maximum(at, self.begin), self.end)
        return _KeyRange(self.begin, middle), _KeyRange(middle, self.end)


def _visible_keys(
    held: HeldPositions,
    queries: _Queries,
    total: Tensor,
    leftpad: Optional[Tensor],
    causal: bool,
    window: Any,
    chunk: int,
) -> _KeyRange:
    position = queries.position
    first = torch.zeros_like(position) if leftpad is None else leftpad[queries.sequence]
    low, high = first, total[queries.sequence]
    if window[0] >= 0:
        low = torch.maximum(low, position - window[0])
    right = 0 if causal else window[1]
    if right >= 0:
        high = torch.minimum(high, position + right + 1)
    if chunk:
        start = first + torch.div(position - first, chunk, rounding_mode="floor") * chunk
        low, high = torch.maximum(low, start), torch.minimum(high, start + chunk)
    if queries.valid is not None:
        high = torch.where(queries.valid, high, low)
    begin, end = held.before(low), held.before(high)
    return _KeyRange(begin, torch.maximum(begin, end))


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    group: Any = None,
    cache_seqlens: Union[int, Tensor],
    layout: str = "striped",
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    rotary_interleaved: bool = True,
    rotary_seqlens: Optional[Tensor] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    max_seqlen_q: int = 0,
    causal: bool = False,
    window: Any = None,
    attention_chunk: int = 0,
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    num_splits: int = 0,
    num_threads: int = 0,
    check: Optional[bool] = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of replicated queries over the KV caches of all ranks. No gradients.

    q is (b, sq, h, d), or packed with cu_seqlens_q. The caches are (b, capacity, hk, d) on each
    rank, or paged, (pages, page, hk, d), with a page table per rank. cache_seqlens and
    cache_leftpad count keys of the whole sequences: an int or int32 (b). layout: "striped"
    (position p is row p // ranks of rank p % ranks, so growing caches stay balanced) or
    "contiguous" (rank n holds the positions from n * capacity).
    k, v: keys and values to append, (b, new, hk, d) or packed with cu_seqlens_k_new, the same on
    every rank. Each rank writes those whose positions it holds, after the ``cache_seqlens``
    existing keys. Other options are those of `rocflash.decode`; `check` is that of `attention`.
    """
    team = team_of(group)
    device = q.device if isinstance(q, Tensor) else torch.device("cpu")
    with consistency.reporting_failures(team, "decode", device, check):
        for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
            check_tensor(name, x)
            if x.dim() != (3 if name == "q" and cu_seqlens_q is not None else 4):
                raise InvalidArgument(
                    f"{name} has shape {tuple(x.shape)}; it must be (b, rows, heads, "
                    "head dimension)"
                )
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
        cache = _Cache(k_cache, v_cache, page_table, cache_batch_idx)
        _check_cache(cache, batch)
        held = held_positions(layout, team.rank, team.size, cache.capacity)
        total_capacity = cache.capacity * team.size
        before = _lengths("cache_seqlens", cache_seqlens, batch, q.device, total_capacity)
        leftpad = (
            None
            if cache_leftpad is None
            else _lengths("cache_leftpad", cache_leftpad, batch, q.device, total_capacity)
        )
        if (k is None) != (v is None):
            raise InvalidArgument(
                f"{'k' if k is None else 'v'} is None, but its counterpart is given; give both"
            )
        if k is None and rotary_cos is not None:
            raise InvalidArgument(
                "rotary_cos is given, but k is None; rotary tables apply to appended keys, so it "
                "must be None"
            )
        bounds = window_pair(window)
        total, appended = before, None
        if k is not None and v is not None:
            new = Append(k, v, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_seqlens)
            rotates_by_position = causal or attention_chunk or bounds != (-1, -1)
            q, total, appended = _appended(
                cache,
                held,
                q,
                cu_seqlens_q,
                new,
                before,
                total_capacity,
                rotary_interleaved,
                bool(rotates_by_position),
            )
    compared = {
        **{
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "k": k,
            "v": v,
            "qv": qv,
            "layout": layout,
        },
        **{
            "causal": bool(causal),
            "window": bounds,
            "attention_chunk": attention_chunk,
            "sinks": sinks,
        },
        **{"softmax_scale": softmax_scale, "softcap": softcap, "rotary_cos": rotary_cos},
        **{"alibi_slopes": alibi_slopes, "cache_seqlens": before, "cache_leftpad": leftpad},
        **{"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k_new": cu_seqlens_k_new},
    }
    consistency.compare(team, _signature(compared, cache, check), q.device, check)
    if appended is not None:
        cache.write(*appended)
    queries = _queries(q, cu_seqlens_q, total)
    visible = _visible_keys(held, queries, total, leftpad, causal, bounds, attention_chunk)
    shared: dict[str, Any] = {
        "softmax_scale": softmax_scale,
        "softcap": softcap,
        "num_splits": num_splits,
        "num_threads": num_threads,
    }
    if qv is not None:
        shared["qv"] = qv.reshape(-1, 1, *qv.shape[-2:])
    with torch.no_grad():
        rows = q.reshape(-1, 1, *q.shape[-2:])
        parts = [
            _attend(rows, cache, queries, part, slopes, lse_offset, shared)
            for part, slopes, lse_offset in _alibi_parts(
                alibi_slopes, visible, queries, held, batch
            )
        ]
        out, lse = _combine([x for x, _ in parts], [x for _, x in parts], sinks, team)
        if queries.valid is not None:
            lse = torch.where(queries.valid[:, None], lse, torch.inf)
            out = torch.where(queries.valid[:, None, None], out, 0.0)
    out = out.view(*q.shape[:-1], out.shape[-1]).to(q.dtype)
    lse = lse.t() if cu_seqlens_q is not None else lse.view(*q.shape[:2], -1).transpose(1, 2)
    return out, lse.contiguous()


def _signature(
    compared: dict[str, Any], cache: _Cache, check: Optional[bool]
) -> consistency.Signature:
    """Page pools and indexed caches may differ in the number of entries; the capacity must be the
    same.
    """
    own_pool = cache.page_table is not None or cache.batch_idx is not None
    values = consistency.thorough(check)
    found = {
        name: consistency.describe(
            name, x, (0,) if own_pool and name in ("k_cache", "v_cache") else (), values
        )
        for name, x in compared.items()
    }
    return consistency.Signature("decode", {**found, "capacity": repr(cache.capacity)}, {})


def _check_cache(cache: _Cache, batch: int) -> None:
    k, v = cache.k, cache.v
    entries = batch if cache.page_table is None and cache.batch_idx is None else k.shape[0]
    if k.shape[0] != entries or v.shape[:3] != k.shape[:3]:
        raise InvalidArgument(
            f"v_cache has shape {tuple(v.shape)}, k_cache {tuple(k.shape)}; both must have "
            f"{entries} "
            "sequences, and may differ in the head dimension only"
        )
    if cache.page_table is not None and cache.batch_idx is not None:
        raise InvalidArgument(
            "cache_batch_idx is given together with page_table; one of them must be None"
        )
    for name, x, dims in (
        ("page_table", cache.page_table, 2),
        ("cache_batch_idx", cache.batch_idx, 1),
    ):
        if x is not None:
            check_tensor(name, x)
            if x.dtype is not torch.int32 or x.dim() != dims or x.shape[0] != batch:
                form = f"({batch}, pages)" if dims == 2 else f"({batch},)"
                raise InvalidArgument(
                    f"{name} is {x.dtype} of shape {tuple(x.shape)}; it must be int32 of shape "
                    f"{form}"
                )


def _appended(
    cache: _Cache,
    held: HeldPositions,
    q: Tensor,
    cu_q: Optional[Tensor],
    new: Any,  # Append
    before: Tensor,
    total_capacity: int,
    interleaved: bool,
    rotates_by_position: bool,
) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """q after rotary embedding, the lengths after the append, and the arguments of `_Cache.write`.

    Lengths on a GPU are not validated.
    """
    batch = before.numel()
    appending.check(cache.k, cache.v, new, batch, ("k", "v"))
    added = (
        new.k_new.shape[1] if new.cu_seqlens_k_new is None else new.cu_seqlens_k_new.long().diff()
    )
    after = before + added
    if not after.is_cuda and after.numel() and int(after.max()) > total_capacity:
        worst = int(after.argmax())
        raise InvalidArgument(
            f"cache_seqlens has {int(before[worst])} keys and {int((after - before)[worst])} new "
            f"ones; the caches of all ranks hold {total_capacity}"
        )
    rows = appending.rows_of(batch, new.k_new.shape[-3], new.cu_seqlens_k_new, q.device)
    keys, values = (x.reshape(-1, *x.shape[-2:]) for x in (new.k_new, new.v_new))
    if new.rotary_cos is not None:
        start = before if new.rotary_seqlens is None else new.rotary_seqlens.long()
        keys = appending.rotated(keys, start[rows.sequence] + rows.index, new, interleaved)
        of_q = appending.rows_of(batch, q.shape[-3], cu_q, q.device)
        position = start[of_q.sequence] + (of_q.index if rotates_by_position else 0)
        q = appending.rotated(q.reshape(-1, *q.shape[-2:]), position, new, interleaved).view(
            q.shape
        )
    return q, after, (*cache.locate(held, rows, before), keys, values)


def _attend(
    rows: Tensor,
    cache: _Cache,
    queries: _Queries,
    visible: _KeyRange,
    slopes: Optional[Tensor],
    lse_offset: Optional[Tensor],
    shared: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """out (queries, h, dv) and lse (queries, h): one sequence per query, over its range of the
    cache.
    """
    pages, entry = cache.page_table, queries.sequence
    if cache.batch_idx is not None:
        entry = cache.batch_idx[queries.sequence]
    out, lse = attention_with_kvcache(
        rows,
        cache.k,
        cache.v,
        cache_seqlens=visible.end.int(),
        cache_leftpad=visible.begin.int(),
        cache_batch_idx=entry.int() if pages is None else None,
        page_table=None if pages is None else pages[queries.sequence].contiguous(),
        alibi_slopes=slopes,
        **shared,
    )
    out, lse = out[:, 0].float(), lse[..., 0]
    if lse_offset is not None:
        lse = torch.where(lse == torch.inf, lse, lse + lse_offset)
    return out, lse


def _alibi_parts(
    given: Optional[Tensor], visible: _KeyRange, queries: _Queries, held: HeldPositions, batch: int
) -> list[tuple[_KeyRange, Optional[Tensor], Optional[Tensor]]]:
    """Visible keys in parts, with the slopes of the call and the term to add to its LSE.

    The call counts distances from the last key of a part. Keys in the past are one part. Keys in
    the future are another: their distances grow towards the last key, so the slope changes its
    sign.
    """
    if given is None:
        return [(visible, None, None)]
    slopes = (given if given.dim() == 2 else given[None].expand(batch, -1)).float()[
        queries.sequence
    ]
    found: list[tuple[_KeyRange, Optional[Tensor], Optional[Tensor]]] = []
    for part, sign in zip(visible.split(held.before(queries.position + 1)), (1, -1)):
        last = held.first + held.step * (part.end - 1)
        distance = (queries.position - last).abs()
        found.append(
            (part, (slopes * (sign * held.step)).contiguous(), -slopes * distance[:, None])
        )
    return found


def _combine(
    outs: list[Tensor], lses: list[Tensor], sinks: Optional[Tensor], team: Team
) -> tuple[Tensor, Tensor]:
    """Combines the partial results of all ranks after one all-gather; a sink is one more part
    without values.
    """
    part = torch.stack([torch.cat([out, lse[..., None]], dim=-1) for out, lse in zip(outs, lses)])
    parts = all_gather_rows(part, team, [len(outs)] * team.size)[:, None]  # batch 1
    out, lse = parts[..., :-1], parts[..., -1].transpose(2, 3)
    if sinks is not None:
        share = sinks.float()[None, None, :, None].expand(1, *lse.shape[1:])
        out, lse = torch.cat([out, torch.zeros_like(out[:1])]), torch.cat([lse, share])
    if not out.is_cuda:
        combined, total = torch.empty_like(out[0]), torch.empty_like(lse[0])
        calls.combine(out.contiguous(), lse.contiguous(), combined, total)
        return combined[0], total[0].t()
    lse = torch.where(lse == torch.inf, -lse, lse)  # `combine` is a CPU function
    total = torch.logsumexp(lse, 0)
    weight = torch.where(total == -torch.inf, 0.0, (lse - total).exp())
    combined = (out * weight.transpose(2, 3)[..., None]).sum(0)
    return combined[0], torch.where(total == -torch.inf, torch.inf, total)[0].t()
