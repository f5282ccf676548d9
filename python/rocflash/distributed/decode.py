"""`rocflash.distributed.decode`: attention over a cache whose keys are split between ranks.

Every rank computes all queries over the keys it has; one all-gather brings the parts together, which merge as any
parts do. Nobody has to be asked for lengths: which rank has a position follows from the position.
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
from . import agree
from .exchange import all_rows
from .group import Team, team_of

LAYOUTS = ("striped", "contiguous")


class Places(NamedTuple):
    """Which positions a rank's cache has: row j holds position first + step * j."""

    first: int
    step: int
    rows: int

    def before(self, position: Tensor) -> Tensor:
        """How many of the cache's rows hold smaller positions."""
        return (-((self.first - position) // self.step)).clamp(0, self.rows)


def places(layout: str, rank: int, ranks: int, capacity: int) -> Places:
    """`capacity` is the number of rows of one rank's cache."""
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout: {layout!r}; of a cache it must be one of {', '.join(LAYOUTS)}")
    if layout == "striped":
        return Places(rank, ranks, capacity)
    return Places(rank * capacity, 1, capacity)


def _lengths(name: str, given: Any, batch: int, device: torch.device, most: int) -> Tensor:
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given <= most:
            raise InvalidArgument(f"{name}: {given}; it must be 0 to {most}, what all ranks' caches hold")
        return torch.full((batch,), given, dtype=torch.int64, device=device)
    check_tensor(name, given)
    if given.shape != (batch,) or given.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(
            f"{name}: {given.dtype} of shape {tuple(given.shape)}; it must be an int or int32 of shape ({batch},)"
        )
    return given.to(device=device, dtype=torch.int64)


class _Cache(NamedTuple):
    """A rank's keys and values, and where its rows lie in them."""

    k: Tensor
    v: Tensor
    page_table: Optional[Tensor]
    batch_idx: Optional[Tensor]

    @property
    def capacity(self) -> int:
        """Rows for each sequence."""
        if self.page_table is None:
            return int(self.k.shape[1])
        return int(self.page_table.shape[1] * self.k.shape[1])

    def write(self, held: Places, rows: appending.Rows, before: Tensor, keys: Tensor, values: Tensor) -> None:
        """Those of the rows whose positions this cache has. Waits for a GPU, to know how many these are."""
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
            name, entry, row = "page_table", self.page_table.long()[sequence, row // size], row % size
        elif self.batch_idx is not None:
            entry = self.batch_idx.long()[sequence]
        if bool(((entry < 0) | (entry >= self.k.shape[0])).any()):
            raise InvalidArgument(
                f"{name}: has {entry.tolist()} for new keys; it must be 0 to {self.k.shape[0] - 1}, what k_cache has"
            )
        place = entry, row
        for cache, new in ((self.k, keys), (self.v, values)):
            cache[place] = new[at]


class _Queries(NamedTuple):
    """Each query by itself: its sequence, its place among all positions, and whether it is one at all (None: all are)."""

    sequence: Tensor
    place: Tensor
    valid: Optional[Tensor]


def _queries(q: Tensor, cu: Optional[Tensor], total: Tensor) -> _Queries:
    rows = appending.rows_of(total.numel(), q.shape[-3], cu, q.device)
    count = q.shape[1] if cu is None else cu.long().diff()[rows.sequence]
    return _Queries(rows.sequence, total[rows.sequence] - count + rows.index, rows.valid)


class _Interval(NamedTuple):
    """The keys that each query sees, as rows of this rank's cache."""

    begin: Tensor
    end: Tensor

    def split(self, at: Tensor) -> tuple[_Interval, _Interval]:
        middle = torch.minimum(torch.maximum(at, self.begin), self.end)
        return _Interval(self.begin, middle), _Interval(middle, self.end)


def _interval(
    held: Places, queries: _Queries, total: Tensor, pads: Optional[Tensor], causal: bool, window: Any, chunk: int
) -> _Interval:
    place = queries.place
    first = torch.zeros_like(place) if pads is None else pads[queries.sequence]
    low, high = first, total[queries.sequence]
    if window[0] >= 0:
        low = torch.maximum(low, place - window[0])
    right = 0 if causal else window[1]
    if right >= 0:
        high = torch.minimum(high, place + right + 1)
    if chunk:
        start = first + torch.div(place - first, chunk, rounding_mode="floor") * chunk
        low, high = torch.maximum(low, start), torch.minimum(high, start + chunk)
    if queries.valid is not None:
        high = torch.where(queries.valid, high, low)
    begin, end = held.before(low), held.before(high)
    return _Interval(begin, torch.maximum(begin, end))


def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, group: Any = None, cache_seqlens: Union[int, Tensor],
    layout: str = "striped", k: Optional[Tensor] = None, v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
    rotary_interleaved: bool = True, rotary_seqlens: Optional[Tensor] = None,
    cache_batch_idx: Optional[Tensor] = None, cache_leftpad: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None, max_seqlen_q: int = 0, causal: bool = False, window: Any = None,
    attention_chunk: int = 0, softmax_scale: Optional[float] = None, softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None, sinks: Optional[Tensor] = None, num_splits: int = 0,
    num_threads: int = 0, check: Optional[bool] = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q, which every rank has whole, over the keys of all ranks' caches. No gradients.

    q is (b, sq, h, d), or packed with cu_seqlens_q; the caches are (b, capacity, hk, d) on each rank or, with a page
    table, which is each rank's own, (pages, page, hk, d). cache_seqlens and cache_leftpad count keys of the whole
    sequences, an int or int32 (b). layout: "striped", position p is row p // ranks of rank p % ranks, so that
    growing caches stay even; "contiguous", rank n has the positions from n * capacity on.
    k, v: new keys and values, (b, new, hk, d) or packed with cu_seqlens_k_new, the same on every rank; each writes
    those it holds, behind the ``cache_seqlens`` keys that there are. Others are those of `rocflash.decode`.
    """
    team = team_of(group)
    if agree.asked_for(check):
        own = page_table is not None or cache_batch_idx is not None  # caches of any number of pages or sequences
        k_told, v_told = (x[:0] if own and isinstance(x, Tensor) else x for x in (k_cache, v_cache))
        given = {
            **{"q": q, "k_cache": k_told, "v_cache": v_told, "k": k, "v": v, "qv": qv, "layout": layout},
            **{"causal": causal, "window": window, "attention_chunk": attention_chunk},
            **{"softmax_scale": softmax_scale, "softcap": softcap, "sinks": sinks, "rotary_cos": rotary_cos},
            **{"alibi_slopes": alibi_slopes, "page_table": page_table, "cache_batch_idx": cache_batch_idx},
            **{"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k_new": cu_seqlens_k_new},
        }
        lengths = cache_seqlens.tolist() if isinstance(cache_seqlens, Tensor) else cache_seqlens
        agree.compare(team, "decode", {**given, "cache_seqlens": lengths}, {})
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, x)
        if x.dim() != (3 if name == "q" and cu_seqlens_q is not None else 4):
            raise InvalidArgument(f"{name}: shape {tuple(x.shape)}; it must be (b, rows, heads, head size)")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
    cache = _Cache(k_cache, v_cache, page_table, cache_batch_idx)
    _check_cache(cache, batch)
    held = places(layout, team.rank, team.size, cache.capacity)
    most = cache.capacity * team.size
    before = _lengths("cache_seqlens", cache_seqlens, batch, q.device, most)
    pads = None if cache_leftpad is None else _lengths("cache_leftpad", cache_leftpad, batch, q.device, most)
    if (k is None) != (v is None):
        raise InvalidArgument(f"{'k' if k is None else 'v'}: is None, but its counterpart is given; give both")
    if k is None and rotary_cos is not None:
        raise InvalidArgument("rotary_cos: is given, but k is None; it turns appended keys")
    bounds = window_pair(window)
    total = before
    if k is not None and v is not None:
        new = Append(k, v, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_seqlens)
        moves = causal or attention_chunk or bounds != (-1, -1)
        q, total = _appended(cache, held, q, cu_seqlens_q, new, before, most, rotary_interleaved, bool(moves))
    queries = _queries(q, cu_seqlens_q, total)
    seen = _interval(held, queries, total, pads, causal, bounds, attention_chunk)
    told = {"softmax_scale": softmax_scale, "softcap": softcap, "num_splits": num_splits, "num_threads": num_threads}
    if qv is not None:
        told["qv"] = qv.reshape(-1, 1, *qv.shape[-2:])
    with torch.no_grad():
        rows = q.reshape(-1, 1, *q.shape[-2:])
        parts = [
            _attend(rows, cache, queries, part, slopes, missing, told)
            for part, slopes, missing in _distances(alibi_slopes, seen, queries, held, batch)
        ]
        out, lse = _merged([x for x, _ in parts], [x for _, x in parts], sinks, team)
        if queries.valid is not None:
            lse = torch.where(queries.valid[:, None], lse, torch.inf)
            out = torch.where(queries.valid[:, None, None], out, 0.0)
    out = out.view(*q.shape[:-1], out.shape[-1]).to(q.dtype)
    lse = lse.t() if cu_seqlens_q is not None else lse.view(*q.shape[:2], -1).transpose(1, 2)
    return out, lse.contiguous()


def _check_cache(cache: _Cache, batch: int) -> None:
    k, v = cache.k, cache.v
    entries = batch if cache.page_table is None and cache.batch_idx is None else k.shape[0]
    if k.shape[0] != entries or v.shape[:3] != k.shape[:3]:
        raise InvalidArgument(
            f"v_cache: shape {tuple(v.shape)}, k_cache {tuple(k.shape)}; both must have {entries} "
            "sequences, and but for the last size be alike"
        )
    if cache.page_table is not None and cache.batch_idx is not None:
        raise InvalidArgument("cache_batch_idx: is given together with page_table; one of them must be None")
    for name, x, dims in (("page_table", cache.page_table, 2), ("cache_batch_idx", cache.batch_idx, 1)):
        if x is not None:
            check_tensor(name, x)
            if x.dtype is not torch.int32 or x.dim() != dims or x.shape[0] != batch:
                form = f"({batch}, pages)" if dims == 2 else f"({batch},)"
                raise InvalidArgument(f"{name}: {x.dtype} of shape {tuple(x.shape)}; it must be int32 of shape {form}")


def _appended(
    cache: _Cache,
    held: Places,
    q: Tensor,
    cu_q: Optional[Tensor],
    new: Any,  # Append
    before: Tensor,
    most: int,
    interleaved: bool,
    moves: bool,
) -> tuple[Tensor, Tensor]:
    """Appends; returns q, rotated if asked, and the lengths after it. Lengths on a GPU are not looked at."""
    batch = before.numel()
    appending.check(cache.k, cache.v, new, batch, ("k", "v"))
    added = new.k_new.shape[1] if new.cu_seqlens_k_new is None else new.cu_seqlens_k_new.long().diff()
    after = before + added
    if not after.is_cuda and after.numel() and int(after.max()) > most:
        worst = int(after.argmax())
        raise InvalidArgument(
            f"cache_seqlens: {int(before[worst])} keys and {int((after - before)[worst])} new ones; all ranks' caches hold {most}"
        )
    rows = appending.rows_of(batch, new.k_new.shape[-3], new.cu_seqlens_k_new, q.device)
    keys, values = (x.reshape(-1, *x.shape[-2:]) for x in (new.k_new, new.v_new))
    if new.rotary_cos is not None:
        start = before if new.rotary_seqlens is None else new.rotary_seqlens.long()
        keys = appending.turned(keys, start[rows.sequence] + rows.index, new, interleaved)
        of_q = appending.rows_of(batch, q.shape[-3], cu_q, q.device)
        position = start[of_q.sequence] + (of_q.index if moves else 0)
        q = appending.turned(q.reshape(-1, *q.shape[-2:]), position, new, interleaved).view(q.shape)
    cache.write(held, rows, before, keys, values)
    return q, after


def _attend(
    rows: Tensor, cache: _Cache, queries: _Queries, seen: _Interval, slopes: Optional[Tensor],
    missing: Optional[Tensor], told: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """(queries, h, dv) and (queries, h): each query is a sequence of its own, whose keys are an interval of its cache."""
    pages, entry = cache.page_table, queries.sequence
    if cache.batch_idx is not None:
        entry = cache.batch_idx[queries.sequence]
    out, lse = attention_with_kvcache(
        rows, cache.k, cache.v, cache_seqlens=seen.end.int(), cache_leftpad=seen.begin.int(),
        cache_batch_idx=entry.int() if pages is None else None,
        page_table=None if pages is None else pages[queries.sequence].contiguous(), alibi_slopes=slopes, **told,
    )
    out, lse = out[:, 0].float(), lse[..., 0]
    if missing is not None:
        lse = torch.where(lse == torch.inf, lse, lse + missing)
    return out, lse


def _distances(
    given: Optional[Tensor], seen: _Interval, queries: _Queries, held: Places, batch: int
) -> list[tuple[_Interval, Optional[Tensor], Optional[Tensor]]]:
    """What each query sees in parts, with slopes and with what its scores lack for the distance to the last key of a part.

    Keys in the past are one part. Those in the future, where there may be any, are another: towards the last of them
    distances grow, which a slope of the other sign says.
    """
    if given is None:
        return [(seen, None, None)]
    slopes = (given if given.dim() == 2 else given[None].expand(batch, -1)).float()[queries.sequence]
    found = []
    for part, sign in zip(seen.split(held.before(queries.place + 1)), (1, -1)):
        last = held.first + held.step * (part.end - 1)
        away = (queries.place - last).abs()
        found.append((part, (slopes * (sign * held.step)).contiguous(), -slopes * away[:, None]))
    return found


def _merged(
    outs: list[Tensor], lses: list[Tensor], sinks: Optional[Tensor], team: Team
) -> tuple[Tensor, Tensor]:
    """All ranks' parts of (queries, h, dv) and (queries, h), in one all-gather; a sink is one more part."""
    part = torch.stack([torch.cat([out, lse[..., None]], dim=-1) for out, lse in zip(outs, lses)])
    parts = all_rows(part, team, [len(outs)] * team.size)[:, None]  # a batch of one
    out, lse = parts[..., :-1], parts[..., -1].transpose(2, 3)
    if sinks is not None:
        share = sinks.float()[None, None, :, None].expand(1, *lse.shape[1:])
        out, lse = torch.cat([out, torch.zeros_like(out[:1])]), torch.cat([lse, share])
    if not out.is_cuda:
        merged, total = torch.empty_like(out[0]), torch.empty_like(lse[0])
        calls.combine(out.contiguous(), lse.contiguous(), merged, total)
        return merged[0], total[0].t()
    lse = torch.where(lse == torch.inf, -lse, lse)  # as the library's combine, which is on the CPU
    total = torch.logsumexp(lse, 0)
    weight = torch.where(total == -torch.inf, 0.0, (lse - total).exp())
    merged = (out * weight.transpose(2, 3)[..., None]).sum(0)
    return merged[0], torch.where(total == -torch.inf, torch.inf, total)[0].t()
