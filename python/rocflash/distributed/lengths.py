"""Which rows of the whole are sequences: cu_seqlens, rows in use and left padding, as ranges on the host.

Tiles are cut by numbers, so lengths are read; on a GPU that waits for it. What is wrong is refused as the library would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ..errors import InvalidArgument

OF_SEQUENCES = ("seqused_q", "seqused_k", "leftpad_k")


class Sequences(NamedTuple):
    """Where sequences start and end among packed rows, and their rows in use.

    `packed` says that the caller's rows are packed; otherwise entries of a batch are thought of one behind the other.
    """

    packed: bool
    ends_q: tuple[int, ...]
    ends_k: tuple[int, ...]
    q: tuple[range, ...]
    k: tuple[range, ...]

    def longest(self, o: Any) -> tuple[int, int]:
        """max_seqlen_q and max_seqlen_k: those given, held to the lengths, or the longest."""
        return (
            _longest("max_seqlen_q", self.ends_q, o.max_seqlen_q),
            _longest("max_seqlen_k", self.ends_k, o.max_seqlen_k),
        )


def every_row(batch: int, rows_q: int, rows_k: int) -> Sequences:
    """A dense batch, all rows of which are in use."""
    ends = [[n * rows for n in range(batch + 1)] for rows in (rows_q, rows_k)]
    return Sequences(False, *map(tuple, ends), *(tuple(_used("", None, x)) for x in ends))


def read(o: Any, batch: int, length_q: int, length_k: int) -> Optional[Sequences]:
    """None where all rows of a dense batch are in use."""
    packed = o.cu_seqlens_q is not None
    if not packed and all(getattr(o, name) is None for name in OF_SEQUENCES):
        return None
    if packed:
        ends_q = _ends("cu_seqlens_q", o.cu_seqlens_q, length_q)
        ends_k = _ends("cu_seqlens_k", o.cu_seqlens_k, length_k)
        if len(ends_q) != len(ends_k):
            raise InvalidArgument(
                f"cu_seqlens_k: {len(ends_k)} numbers; it must have as many as cu_seqlens_q, {len(ends_q)}"
            )
    else:
        ends_q, ends_k = ([n * rows for n in range(batch + 1)] for rows in (length_q, length_k))
    q = _used("seqused_q", o.seqused_q, ends_q)
    k = _used("seqused_k", o.seqused_k, ends_k)
    if o.leftpad_k is not None:
        pads = _numbers("leftpad_k", o.leftpad_k, [len(keys) for keys in k], "keys in use")
        k = [keys[pad:] for keys, pad in zip(k, pads)]
    found = Sequences(packed, tuple(ends_q), tuple(ends_k), tuple(q), tuple(k))
    if packed:
        found.longest(o)  # refuses what is too small
    return found


def _ends(name: str, cu_seqlens: Tensor, length: int) -> list[int]:
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or not cu_seqlens.numel():
        raise InvalidArgument(
            f"{name}: {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}; it must be int32 of shape (b + 1,)"
        )
    ends: list[int] = cu_seqlens.tolist()
    if sorted(ends) != ends or ends[0] < 0 or ends[-1] > length:
        shown = ends if len(ends) < 9 else [*ends[:4], "...", *ends[-4:]]
        raise InvalidArgument(
            f"{name}: {shown}; it must begin at 0 or more, not decrease and end at {length} at most, the rows "
            "of all ranks"
        )
    return ends


def _numbers(name: str, given: Tensor, most: Sequence[int], of: str) -> list[int]:
    if given.dtype != torch.int32 or given.shape != (len(most),):
        raise InvalidArgument(
            f"{name}: {given.dtype} of shape {tuple(given.shape)}; it must be int32 of shape (b,) = ({len(most)},)"
        )
    numbers: list[int] = given.tolist()
    for n, (x, limit) in enumerate(zip(numbers, most)):
        if not 0 <= x <= limit:
            raise InvalidArgument(f"{name}: {x} for sequence {n}; it must be 0 to its {of}, {limit}")
    return numbers


def _used(name: str, given: Optional[Tensor], ends: Sequence[int]) -> list[range]:
    rows = [range(a, b) for a, b in zip(ends, ends[1:])]
    if given is None:
        return rows
    numbers = _numbers(name, given, [len(r) for r in rows], "length")
    return [r[:n] for r, n in zip(rows, numbers)]


def _longest(name: str, ends: Sequence[int], given: int) -> int:
    longest = max((b - a for a, b in zip(ends, ends[1:])), default=0)
    if given and given < longest:
        raise InvalidArgument(f"{name}: {given}; it must be at least {longest}, the longest sequence's length")
    return max(longest, given, 1)
