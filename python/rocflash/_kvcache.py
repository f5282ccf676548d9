"""Attention over a key/value cache: append, pages, rotary embedding, then one call of the library.

The library has no entry of its own for this yet, so rows are moved and rotated by torch. No scores
are computed here. Everything is checked before the cache is touched. This file alone would change
if the library took over the moving.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from . import _backend, _rotary, _torch
from ._attention import window_pair
from ._errors import InvalidArgument, Unsupported
from ._torch import Options
from ._torch_attention import check_options, check_tensor


def _check_int32(name: str, x: Any, shape: tuple[int, ...], device: torch.device) -> None:
    check_tensor(name, x)
    if x.dtype is not torch.int32:
        raise InvalidArgument(f"{name}: dtype {x.dtype}; it must be int32")
    if tuple(x.shape) != shape:
        raise InvalidArgument(f"{name}: shape {tuple(x.shape)}; it must be {shape}")
    if x.device != device:
        raise InvalidArgument(f"{name}: is on {x.device}; it must be on {device}, where q is")


def _check_same(name: str, x: Tensor, like: Tensor, like_name: str) -> None:
    if x.dtype is not like.dtype:
        raise InvalidArgument(f"{name}: dtype {x.dtype}; it must be that of {like_name}, {like.dtype}")
    if x.device != like.device:
        raise InvalidArgument(f"{name}: is on {x.device}; it must be on {like.device}")


def _check_pages(name: str, table: Tensor, used: list[int], pages: int, size: int) -> None:
    """Every entry that a sequence needs must name a page that exists."""
    rows = table.tolist()
    capacity = table.shape[1] * size
    for sequence, (row, length) in enumerate(zip(rows, used)):
        if length > capacity:
            raise InvalidArgument(
                f"{name}: {table.shape[1]} pages of {size} keys hold {capacity}, but sequence "
                f"{sequence} has {length} keys"
            )
        for page in row[: -(-length // size)]:
            if not 0 <= page < pages:
                raise InvalidArgument(
                    f"{name}: page {page} of sequence {sequence}; it must be 0 to {pages - 1}"
                )


def _gather(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """(b, at least length, heads, d) from pages, as a copy. Unused entries may be anything."""
    size = cache.shape[1]
    needed = table[:, : -(-length // size)].long()
    flat = cache[needed.clamp(0, max(cache.shape[0] - 1, 0))]
    return flat.flatten(1, 2)


def gather_packed_pages(
    k: Tensor, v: Tensor, block_table: Tensor, cu_seqlens_k: Tensor
) -> tuple[Tensor, Tensor]:
    """Packed keys and values out of pages, sequence by sequence, for the packed functions."""
    for name, x in (("k", k), ("v", v), ("cu_seqlens_k", cu_seqlens_k)):
        check_tensor(name, x)
    for name, x in (("k", k), ("v", v)):
        if x.dim() != 4:
            raise InvalidArgument(
                f"{name}: shape {tuple(x.shape)}; with block_table it must be "
                "(pages, page size, heads, head size)"
            )
    if cu_seqlens_k.dim() != 1 or cu_seqlens_k.shape[0] < 1:
        raise InvalidArgument(f"cu_seqlens_k: shape {tuple(cu_seqlens_k.shape)}; it must be (b + 1,)")
    check_tensor("block_table", block_table)
    batch = cu_seqlens_k.shape[0] - 1
    if block_table.dim() != 2:
        raise InvalidArgument(
            f"block_table: shape {tuple(block_table.shape)}; it must be (b, pages)"
        )
    _check_int32("block_table", block_table, (batch, block_table.shape[1]), k.device)
    if v.shape[:3] != k.shape[:3]:
        raise InvalidArgument(f"v: shape {tuple(v.shape)}; but for its last size it must be k's")
    lengths = cu_seqlens_k.diff().tolist()
    if min(lengths, default=0) < 0:
        raise InvalidArgument(f"cu_seqlens_k: {cu_seqlens_k.tolist()}; it must not decrease")
    pages, size = k.shape[:2]
    if size < 1:
        raise InvalidArgument(f"k: shape {tuple(k.shape)}; a page must hold at least one key")
    _check_pages("block_table", block_table, lengths, pages, size)
    position = torch.cat([torch.arange(n, device=k.device) for n in lengths] or [k.new_empty(0)])
    position = position.long()
    sequence = torch.repeat_interleave(
        torch.arange(batch, device=k.device), torch.tensor(lengths, device=k.device).long()
    )
    row = block_table.long()[sequence, position // size] * size + position % size
    return k.flatten(0, 1)[row], v.flatten(0, 1)[row]


class _Layout(NamedTuple):
    """Sizes of a call, known before anything is written."""

    batch: int
    capacity: int  # keys that a sequence's cache holds
    starts: list[int]  # keys before the new ones
    news: list[int]  # new keys
    packed: bool  # q is packed

    @property
    def totals(self) -> list[int]:
        return [a + b for a, b in zip(self.starts, self.news)]


def _lay_out(
    q: Tensor,
    k_cache: Tensor,
    k: Optional[Tensor],
    cache_seqlens: Optional[Union[int, Tensor]],
    cache_batch_idx: Optional[Tensor],
    page_table: Optional[Tensor],
    page_table_name: str,
    cu_seqlens_q: Optional[Tensor],
    cu_seqlens_k_new: Optional[Tensor],
) -> _Layout:
    packed = cu_seqlens_q is not None
    if q.dim() != (3 if packed else 4):
        want = "(total_q, heads, head size) with cu_seqlens_q" if packed else "(b, sq, heads, d)"
        raise InvalidArgument(f"q: shape {tuple(q.shape)}; it must be {want}")
    if packed:
        check_tensor("cu_seqlens_q", cu_seqlens_q)
        assert cu_seqlens_q is not None
        if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] < 1:
            raise InvalidArgument(
                f"cu_seqlens_q: shape {tuple(cu_seqlens_q.shape)}; it must be (b + 1,)"
            )
    batch = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q is not None else q.shape[0]
    rows = k_cache.shape[0]
    capacity = k_cache.shape[1]
    if page_table is not None:
        check_tensor(page_table_name, page_table)
        if page_table.dim() != 2:
            raise InvalidArgument(
                f"{page_table_name}: shape {tuple(page_table.shape)}; it must be (b, pages)"
            )
        _check_int32(page_table_name, page_table, (batch, page_table.shape[1]), q.device)
        if cache_batch_idx is not None:
            raise InvalidArgument(
                f"cache_batch_idx: is given together with {page_table_name}, which already says "
                "where each sequence's keys are; give one of them"
            )
        capacity *= page_table.shape[1]
    elif cache_batch_idx is not None:
        _check_int32("cache_batch_idx", cache_batch_idx, (batch,), q.device)
        for n in cache_batch_idx.tolist():
            if not 0 <= n < rows:
                raise InvalidArgument(f"cache_batch_idx: {n}; it must be 0 to {rows - 1}")
        if k is not None and len(set(cache_batch_idx.tolist())) < batch:
            raise InvalidArgument(
                f"cache_batch_idx: {cache_batch_idx.tolist()} names a row twice, to which two "
                "sequences would append"
            )
    elif rows < batch:
        raise InvalidArgument(
            f"k_cache: {rows} sequences; q has {batch}, and neither cache_batch_idx nor "
            f"{page_table_name} is given"
        )
    news = _new_lengths(k, batch, cu_seqlens_k_new)
    if cache_seqlens is None:
        if k is not None:
            raise InvalidArgument("cache_seqlens: is None, but k is given; where does it go?")
        starts = [capacity] * batch
    elif isinstance(cache_seqlens, Tensor):
        _check_int32("cache_seqlens", cache_seqlens, (batch,), q.device)
        starts = cache_seqlens.tolist()
    elif isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool):
        starts = [cache_seqlens] * batch
    else:
        raise TypeError(
            f"cache_seqlens: {type(cache_seqlens).__name__}; it must be an int or an int32 tensor"
        )
    layout = _Layout(batch, capacity, starts, news, packed)
    for n, (start, total) in enumerate(zip(starts, layout.totals)):
        if start < 0 or total > capacity:
            pages = f" ({page_table_name} and the page size bound it)" if page_table is not None else ""
            raise InvalidArgument(
                f"cache_seqlens: {start} for sequence {n}, with {news[n]} new keys; together they "
                f"must be 0 to what its cache holds, {capacity}{pages}"
            )
    return layout


def _new_lengths(k: Optional[Tensor], batch: int, cu_seqlens_k_new: Optional[Tensor]) -> list[int]:
    if cu_seqlens_k_new is not None:
        if k is None:
            raise InvalidArgument("cu_seqlens_k_new: is given, but k is not")
        _check_int32("cu_seqlens_k_new", cu_seqlens_k_new, (batch + 1,), k.device)
        begins = cu_seqlens_k_new.tolist()
        news = [b - a for a, b in zip(begins, begins[1:])]
        if begins[0] != 0 or min(news, default=0) < 0 or begins[-1] > k.shape[0]:
            raise InvalidArgument(
                f"cu_seqlens_k_new: {begins}; it must rise from 0 to at most k's rows, {k.shape[0]}"
            )
        return news
    return [0 if k is None else k.shape[1]] * batch


def _check_new(
    k: Optional[Tensor], v: Optional[Tensor], k_cache: Tensor, v_cache: Tensor, batch: int, varied: bool
) -> None:
    if (k is None) != (v is None):
        missing, there = ("v", "k") if v is None else ("k", "v")
        raise InvalidArgument(f"{missing}: is None, but {there} is given; give both or none")
    for name, x, cache, cache_name in (("k", k, k_cache, "k_cache"), ("v", v, v_cache, "v_cache")):
        if x is None:
            continue
        check_tensor(name, x)
        _check_same(name, x, cache, cache_name)
        ndim = 3 if varied else 4
        if x.dim() != ndim or x.shape[-2:] != cache.shape[-2:] or (not varied and x.shape[0] != batch):
            rows = "(total_new" if varied else f"({batch}, new"
            raise InvalidArgument(
                f"{name}: shape {tuple(x.shape)}; it must be {rows}, {cache.shape[2]}, "
                f"{cache.shape[3]}) as {cache_name} has it"
            )
    if k is not None and v is not None and k.shape[:-1] != v.shape[:-1]:
        raise InvalidArgument(f"v: shape {tuple(v.shape)}; but for its last size it must be k's")


def _check_caches(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, x)
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        if x.dim() != 4:
            raise InvalidArgument(
                f"{name}: shape {tuple(x.shape)}; it must be (b, length, heads, head size) or "
                "(pages, page size, heads, head size)"
            )
        _check_same(name, x, q, "q")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise InvalidArgument(
            f"v_cache: shape {tuple(v_cache.shape)}; but for its last size it must be k_cache's, "
            f"{tuple(k_cache.shape)}"
        )


def _row_positions(starts: list[int], counts: list[int], step: bool, device: Any) -> Tensor:
    """The place of each row, sequence after sequence; all at the start where `step` is False."""
    parts = [torch.arange(n, device=device) * int(step) + s for s, n in zip(starts, counts)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long, device=device)


def attention_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    rotary_interleaved: bool = True,
    rotary_seqlens: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    page_table_name: str = "page_table",
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    max_seqlen_q: int = 0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window: Any = None,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse). No gradients; the cache is written only when every check has passed."""
    _check_caches(q, k_cache, v_cache)
    layout = _lay_out(
        q,
        k_cache,
        k if isinstance(k, Tensor) else None,
        cache_seqlens,
        cache_batch_idx,
        page_table,
        page_table_name,
        cu_seqlens_q,
        cu_seqlens_k_new,
    )
    _check_new(k, v, k_cache, v_cache, layout.batch, cu_seqlens_k_new is not None)
    if page_table is not None:
        if cache_leftpad is not None:
            raise Unsupported(
                f"cache_leftpad: is given together with {page_table_name}; pages hold no padding, "
                "so give one of them"
            )
        pages, size = k_cache.shape[:2]
        if size < 1:
            raise InvalidArgument(f"k_cache: shape {tuple(k_cache.shape)}; a page must hold a key")
        _check_pages(page_table_name, page_table, layout.totals, pages, size)
    left, right = window_pair(window, "window_size")
    device = q.device
    totals = torch.tensor(layout.totals, dtype=torch.int32, device=device)
    options = Options(
        seqused_k=totals,
        leftpad_k=cache_leftpad,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        causal=causal,
        window_left=left,
        window_right=right,
        attention_chunk=attention_chunk,
        softmax_scale=softmax_scale,
        softcap=softcap,
        backend=_backend.current(),
    )
    with torch.no_grad():
        turned_q, turned_k = _rotate(
            q, k, rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens, layout,
            cu_seqlens_q, causal or left >= 0 or right >= 0 or attention_chunk > 0,
        )
        length = layout.capacity if page_table is None else _rounded(layout, k_cache.shape[1])
        if cu_seqlens_q is not None:
            begins = torch.arange(layout.batch + 1, dtype=torch.int32, device=device) * length
            options = options._replace(
                cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=begins, max_seqlen_q=max_seqlen_q
            )
        check_options(options)
        if qv is not None:
            turned_q, options = join_qv(turned_q, qv, q, v_cache, options)
        _check_call(turned_q, k_cache, v_cache, layout, length, options, out, qv is not None)
        _append(turned_k, v, k_cache, v_cache, layout, cache_batch_idx, page_table, cu_seqlens_k_new)
        keys = _select(k_cache, layout, length, cache_batch_idx, page_table)
        values = _select(v_cache, layout, length, cache_batch_idx, page_table)
        if qv is not None:
            keys = torch.cat((keys, values), dim=-1)
        if layout.packed:
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        out, lse, _ = _torch.forward(turned_q, keys, values, options, False, out)
    return out, lse


def _rounded(layout: _Layout, page: int) -> int:
    return -(-max(layout.totals, default=0) // page) * page


def _rotate(
    q: Tensor,
    k: Optional[Tensor],
    cos: Optional[Tensor],
    sin: Optional[Tensor],
    interleaved: bool,
    rotary_seqlens: Optional[Tensor],
    layout: _Layout,
    cu_seqlens_q: Optional[Tensor],
    by_position: bool,
) -> tuple[Tensor, Optional[Tensor]]:
    """q and k, turned where tables are given: k at its place, q at its own or all at the first."""
    if (cos is None) != (sin is None):
        missing = "rotary_sin" if sin is None else "rotary_cos"
        raise InvalidArgument(f"{missing}: is None, but its counterpart is given; give both or none")
    if cos is None or sin is None:
        if rotary_seqlens is not None:
            raise InvalidArgument("rotary_seqlens: is given, but rotary_cos is None")
        return q, k
    if k is None:
        raise InvalidArgument("rotary_cos: is given, but k is None; only appended keys are turned")
    for name, x in (("rotary_cos", cos), ("rotary_sin", sin)):
        check_tensor(name, x)
        _check_same(name, x, q, "q")
    _rotary.check_tables(cos, sin, q.shape[-1], ("rotary_cos", "rotary_sin"))
    starts = layout.starts
    if rotary_seqlens is not None:
        _check_int32("rotary_seqlens", rotary_seqlens, (layout.batch,), q.device)
        starts = rotary_seqlens.tolist()

    def turn(x: Tensor, counts: list[int], step: bool) -> Tensor:
        rows = x if x.dim() == 3 else x.flatten(0, 1)
        places = _row_positions(starts, counts, step, x.device)
        used = rows[: places.shape[0]]
        turned = _rotary.rotate(
            used,
            _rotary.at_positions(cos, places, "rotary_cos"),
            _rotary.at_positions(sin, places, "rotary_sin"),
            interleaved,
        )
        return torch.cat((turned, rows[places.shape[0] :])).view(x.shape)

    if cu_seqlens_q is not None:
        q_counts = cu_seqlens_q.diff().tolist()
    else:
        q_counts = [q.shape[1]] * layout.batch
    return turn(q, q_counts, by_position), turn(k, layout.news, True)


def join_qv(
    q: Tensor, qv: Tensor, unturned: Tensor, v: Tensor, options: Options
) -> tuple[Tensor, Options]:
    """FA3's qv: scores q.k + qv.v are those of (q, qv) with (k, v), laid side by side."""
    check_tensor("qv", qv)
    if qv.shape[:-1] != q.shape[:-1] or qv.shape[-1] != v.shape[-1]:
        raise InvalidArgument(
            f"qv: shape {tuple(qv.shape)}; it must be that of q with the head size of v, "
            f"{(*q.shape[:-1], v.shape[-1])}"
        )
    _check_same("qv", qv, q, "q")
    joined = q.shape[-1] + qv.shape[-1]
    most = _backend.limits()["max_head_dim"]
    if joined > most:
        raise Unsupported(
            f"qv: head sizes {q.shape[-1]} of q and {qv.shape[-1]} of qv; together they must be at "
            f"most {most}"
        )
    if options.softmax_scale is None:
        options = options._replace(softmax_scale=joined**-0.5)
    return torch.cat((q, qv), dim=-1), options


def _check_call(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: _Layout,
    length: int,
    options: Options,
    out: Optional[Tensor],
    joined: bool,
) -> None:
    """Lets the library judge the call by its shapes, so that a refusal leaves the cache as it was."""
    heads = k_cache.shape[2]
    rows = (layout.batch * length,) if layout.packed else (layout.batch, length)
    columns = k_cache.shape[3] + (v_cache.shape[3] if joined else 0)
    keys = k_cache.new_empty(columns).expand(*rows, heads, columns)
    values = v_cache.new_empty(v_cache.shape[3]).expand(*rows, heads, v_cache.shape[3])
    _torch.check_forward(q, keys, values, options, out)


def _append(
    k: Optional[Tensor],
    v: Optional[Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    layout: _Layout,
    cache_batch_idx: Optional[Tensor],
    page_table: Optional[Tensor],
    cu_seqlens_k_new: Optional[Tensor],
) -> None:
    if k is None or v is None:
        return
    device = k_cache.device
    place = _row_positions(layout.starts, layout.news, True, device)
    sequence = torch.repeat_interleave(
        torch.arange(layout.batch, device=device), torch.tensor(layout.news, device=device).long()
    )
    if page_table is not None:
        size = k_cache.shape[1]
        row, place = page_table.long()[sequence, place // size], place % size
    else:
        row = sequence if cache_batch_idx is None else cache_batch_idx.long()[sequence]
    for cache, new in ((k_cache, k), (v_cache, v)):
        rows = new if cu_seqlens_k_new is not None else new.flatten(0, 1)
        cache[row, place] = rows[: place.shape[0]]


def _select(
    cache: Tensor,
    layout: _Layout,
    length: int,
    cache_batch_idx: Optional[Tensor],
    page_table: Optional[Tensor],
) -> Tensor:
    """(b, length, heads, d): a view where it can be one."""
    if page_table is not None:
        return _gather(cache, page_table, length)
    if cache_batch_idx is not None:
        return cache.index_select(0, cache_batch_idx.long())
    return cache[: layout.batch]
