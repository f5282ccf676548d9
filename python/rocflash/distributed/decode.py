"""`rocflash.distributed.decode`: attention over a cache whose keys are split between ranks.

Every rank computes all queries over the keys it has; one all-gather brings the parts together, which merge as any
parts do. Nobody has to be asked for lengths: which rank has a position follows from the position.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from .._c.options import window_pair
from .._torch import calls
from .._torch.decode import attention_with_kvcache
from .._torch.options import check_tensor
from ..errors import InvalidArgument, Unsupported
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


def _lengths(given: Any, batch: int, device: torch.device, most: int) -> Tensor:
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given <= most:
            raise InvalidArgument(f"cache_seqlens: {given}; it must be 0 to {most}, what all ranks' caches hold")
        return torch.full((batch,), given, dtype=torch.int64, device=device)
    check_tensor("cache_seqlens", given)
    if given.shape != (batch,) or given.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(
            f"cache_seqlens: {given.dtype} of shape {tuple(given.shape)}; it must be an int or int32 of shape ({batch},)"
        )
    return given.to(device=device, dtype=torch.int64)


def _append(cache: Tensor, new: Tensor, start: Tensor, held: Places) -> None:
    """Writes those of the new rows, which begin at `start`, whose positions this cache has."""
    position = start[:, None] + torch.arange(new.shape[1], device=new.device)
    row = torch.div(position - held.first, held.step, rounding_mode="floor")
    mine = (held.first + row * held.step == position) & (row >= 0) & (row < held.rows)
    sequence, index = mine.nonzero(as_tuple=True)
    cache[sequence, row[sequence, index]] = new[sequence, index].to(cache.dtype)


class _Interval(NamedTuple):
    """The keys that each query sees, as rows of this rank's cache: (b * sq) each."""

    begin: Tensor
    end: Tensor
    place: Tensor  # of the query, among all positions


def _interval(
    held: Places, total: Tensor, sq: int, causal: bool, window: tuple[int, int], chunk: int
) -> _Interval:
    place = total[:, None] - sq + torch.arange(sq, device=total.device)
    low, high = torch.zeros_like(place), total[:, None].expand_as(place)
    if window[0] >= 0:
        low = torch.maximum(low, place - window[0])
    right = 0 if causal else window[1]
    if right >= 0:
        high = torch.minimum(high, place + right + 1)
    if chunk:
        start = torch.div(place, chunk, rounding_mode="floor") * chunk
        low, high = torch.maximum(low, start), torch.minimum(high, start + chunk)
    begin, end = held.before(low), held.before(high)
    return _Interval(begin.flatten(), torch.maximum(begin, end).flatten(), place.flatten())


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
    """(out, lse) of q, which every rank has whole, over the keys of all ranks' caches. No gradients.

    q is (b, sq, h, d); the caches are (b, capacity, hk, d) on each rank. cache_seqlens counts the keys of the
    whole sequences, an int or int32 (b). layout: "striped", position p is row p // ranks of rank p % ranks, so that
    growing caches stay even; "contiguous", rank n has the positions from n * capacity on.
    k, v: new keys and values, (b, new, hk, d), the same on every rank; each writes those it holds,
    behind the ``cache_seqlens`` keys that there are. Rotary embedding is the caller's.
    The others are those of `rocflash.decode`.
    """
    team = team_of(group)
    if agree.asked_for(check):
        given = {
            **{"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "layout": layout},
            **{"causal": causal, "window": window, "attention_chunk": attention_chunk},
            **{"softmax_scale": softmax_scale, "softcap": softcap, "sinks": sinks},
            **{"alibi_slopes": alibi_slopes},
        }
        lengths = cache_seqlens.tolist() if isinstance(cache_seqlens, Tensor) else cache_seqlens
        agree.compare(team, "decode", {**given, "cache_seqlens": lengths}, {})
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, x)
        if x.dim() != 4:
            raise InvalidArgument(f"{name}: shape {tuple(x.shape)}; it must be (b, rows, heads, head size)")
    b, sq, h, _ = q.shape
    if k_cache.shape[0] != b or v_cache.shape[:3] != k_cache.shape[:3]:
        raise InvalidArgument(
            f"v_cache: shape {tuple(v_cache.shape)}, k_cache {tuple(k_cache.shape)}; both must have {b} "
            "sequences, and but for the last size be alike"
        )
    if (k is None) != (v is None):
        raise InvalidArgument(f"{'k' if k is None else 'v'}: is None, but its counterpart is given; give both")
    capacity = k_cache.shape[1]
    held = places(layout, team.rank, team.size, capacity)
    total = _lengths(cache_seqlens, b, q.device, capacity * team.size)
    if k is not None and v is not None:
        total = _appended(k_cache, v_cache, k, v, total, held, capacity * team.size)
    bounds = window_pair(window)
    if alibi_slopes is not None and sq > 1 and not causal:
        raise Unsupported("alibi_slopes: is given for several queries without causal; distances must lie in the past")
    seen = _interval(held, total, sq, causal, bounds, attention_chunk)
    slopes, missing = _distances(alibi_slopes, seen, held, b, sq, h)
    # Each query is a sequence of its own, whose keys are an interval of its batch's cache.
    with torch.no_grad():
        out, lse = attention_with_kvcache(
            q.reshape(b * sq, 1, *q.shape[2:]),
            k_cache,
            v_cache,
            cache_seqlens=seen.end.int(),
            cache_leftpad=seen.begin.int(),
            cache_batch_idx=torch.arange(b, dtype=torch.int32, device=q.device).repeat_interleave(sq),
            alibi_slopes=slopes,
            softmax_scale=softmax_scale,
            softcap=softcap,
            num_splits=num_splits,
            num_threads=num_threads,
        )
        lse = lse[..., 0]  # (b * sq, h)
        if missing is not None:
            lse = torch.where(lse == torch.inf, lse, lse + missing)
        out, lse = _merged(out.view(b, sq, h, -1), lse.view(b, sq, h), sinks, team)
    return out.to(q.dtype), lse


def _appended(
    k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, before: Tensor, held: Places, most: int
) -> Tensor:
    """Appends, and returns the lengths after it. Lengths on a GPU are not looked at."""
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        wanted = (cache.shape[0], k.shape[1] if k.dim() == 4 else 0, *cache.shape[2:])
        if tuple(x.shape) != wanted:
            raise InvalidArgument(f"{name}: shape {tuple(x.shape)}; it must be (b, new, hk, d), {wanted}")
    after = before + k.shape[1]
    if not after.is_cuda and after.numel() and int(after.max()) > most:
        raise InvalidArgument(
            f"cache_seqlens: {int(before.max())} keys and {k.shape[1]} new ones; all ranks' caches hold {most}"
        )
    _append(k_cache, k, before, held)
    _append(v_cache, v, before, held)
    return after


def _distances(
    given: Optional[Tensor], seen: _Interval, held: Places, b: int, sq: int, h: int
) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """The slopes of each query, and what its scores lack for the distance to the last key it sees here."""
    if given is None:
        return None, None
    slopes = (given if given.dim() == 2 else given[None].expand(b, h)).float()
    slopes = slopes.repeat_interleave(sq, 0)
    nearest = held.first + held.step * (seen.end - 1)
    return (slopes * held.step).contiguous(), -slopes * (seen.place - nearest)[:, None]


def _merged(out: Tensor, lse: Tensor, sinks: Optional[Tensor], team: Team) -> tuple[Tensor, Tensor]:
    """All ranks' parts of (b, sq, h, dv) and (b, sq, h), in one all-gather; a sink is one more part."""
    part = torch.cat([out.float(), lse[..., None]], dim=-1)
    parts = all_rows(part[None], team, [1] * team.size)
    outs, lses = parts[..., :-1], parts[..., -1].transpose(2, 3)
    if sinks is not None:
        share = sinks.float()[None, None, :, None].expand(1, *lses.shape[1:])
        outs, lses = torch.cat([outs, torch.zeros_like(outs[:1])]), torch.cat([lses, share])
    if not outs.is_cuda:
        merged = torch.empty_like(outs[0])
        total = torch.empty_like(lses[0])
        calls.combine(outs.contiguous(), lses.contiguous(), merged, total)
        return merged, total
    lses = torch.where(lses == torch.inf, -lses, lses)  # as the library's combine, which is on the CPU
    total = torch.logsumexp(lses, 0)
    weight = torch.where(total == -torch.inf, 0.0, (lses - total).exp())
    merged = (outs * weight.transpose(2, 3)[..., None]).sum(0)
    return merged, torch.where(total == -torch.inf, torch.inf, total)
