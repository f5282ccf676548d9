"""Checks that the keys of paged KV caches on GPUs fit into the block table.

The library validates lengths on the CPU. On a GPU it does not read them: kernels clamp them, so
that a length beyond the block table reads and writes nothing out of bounds, but the result is that
of fewer keys. Here the first calls of a kind are checked at once, which waits for the GPU, and then
one of `_EVERY` calls: the lengths are copied to the host in stream order, and a later call raises
the error. The other calls cost their host about 1 us. Calls that a graph captures, or a compiler
traces, are not checked. ROCFLASH_CHECK_LENGTHS=1 checks every call, waiting for the GPU; 0 checks
none.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from typing import Any, Optional

import torch
from torch import Tensor

from ..errors import InvalidArgument
from .route import modes, transforms_active

_VARIABLE = "ROCFLASH_CHECK_LENGTHS"
_MODE = os.environ.get(_VARIABLE, "")
if _MODE not in ("", "0", "1"):
    raise InvalidArgument(f"{_VARIABLE} is {_MODE!r}; it must be 0 or 1")
_AT_ONCE, _EVERY = 4, 64
_MAX_KINDS, _MAX_PENDING = 256, 4

_calls: OrderedDict[tuple[Any, ...], int] = OrderedDict()  # how often each kind of call was made
_pending: deque[tuple[Any, Tensor, int, str]] = deque()  # copies of lengths in flight to the host


def _refuse_beyond(lengths: Tensor, capacity: int, table: str, when: str = "") -> None:
    """Lengths, on the host, after the append."""
    if not lengths.numel():
        return
    longest, at = lengths.max(0)
    if int(longest) > capacity:
        raise InvalidArgument(
            f"{table} has a capacity of {capacity} keys per sequence; sequence {int(at)} has "
            f"{int(longest)}, "
            f"those of cache_seqlens and new ones{when}"
        )


def _raise_earlier() -> None:
    """Raises the error of an earlier call whose lengths have arrived."""
    while _pending:
        event, lengths, capacity, table = _pending[0]
        if not event.query():
            return
        _pending.popleft()
        _refuse_beyond(lengths, capacity, table, " in an earlier call")


def _after_append(lengths: Tensor, new: int, cu_seqlens_new: Optional[Tensor]) -> Tensor:
    return lengths + new if cu_seqlens_new is None else lengths + cu_seqlens_new.diff()


def check(k_cache: Tensor, call: Any) -> None:
    """Checks a cache call on a GPU whose tensors' shapes and dtypes are not validated yet."""
    lengths, table, new = call.cache_seqlens, call.page_table, 0
    if table is None or table.dim() != 2 or k_cache.dim() != 4:
        return
    if call.k is not None and call.cu_seqlens_k_new is None:
        new = call.k.shape[1] if call.k.dim() == 4 else 0
    capacity = table.shape[1] * k_cache.shape[1]
    if isinstance(lengths, Tensor):
        if lengths.is_cuda and lengths.dtype is torch.int32 and lengths.dim() == 1:
            check_lengths(lengths, new, call.cu_seqlens_k_new, capacity, call.page_table_name)
    elif lengths is not None:  # the host knows it
        _refuse_beyond(torch.tensor([lengths + new]), capacity, call.page_table_name)


def check_lengths(
    lengths: Tensor, new: int, cu_seqlens_new: Optional[Tensor], capacity: int, table: str
) -> None:
    """Lengths on a GPU before an append of `new` keys per sequence, or of cu_seqlens_new's."""
    kind = (capacity, new, cu_seqlens_new is None, lengths.shape[0], lengths.get_device())
    made = _calls.get(kind, 0)
    if made >= _AT_ONCE and made % _EVERY and not _pending and not _MODE:
        _calls[kind] = made + 1  # nearly all calls end here
        return
    if _MODE == "0" or modes() or transforms_active() or torch.cuda.is_current_stream_capturing():
        return
    if _pending:
        _raise_earlier()
    _calls[kind] = made + 1
    if made == 0 and len(_calls) > _MAX_KINDS:
        _calls.popitem(last=False)
    at_once = made < _AT_ONCE or _MODE == "1"
    if made % _EVERY and not at_once:
        return
    if at_once:
        try:
            _refuse_beyond(_after_append(lengths, new, cu_seqlens_new).cpu(), capacity, table)
        except InvalidArgument:
            _calls.pop(kind, None)  # the next one is checked as well
            raise
    elif len(_pending) < _MAX_PENDING:
        _pending.append((*_copied(_after_append(lengths, new, cu_seqlens_new)), capacity, table))


def _copied(lengths: Tensor) -> tuple[Any, Tensor]:
    """An event, and what the lengths on the host are once it has happened."""
    on_host = torch.empty(lengths.shape, dtype=lengths.dtype, pin_memory=True)
    on_host.copy_(lengths, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(lengths.device))
    return event, on_host
