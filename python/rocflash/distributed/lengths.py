"""Sequence lengths on the host: cu_seqlens, seqused and leftpad as ranges of rows of the whole
tensor.

Tiles depend on the lengths, so the host reads them, which waits for a GPU. Validation follows the
library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ..errors import InvalidArgument

PER_SEQUENCE = ("seqused_q", "seqused_k", "leftpad_k")


class Sequences(NamedTuple):
    """Ends of sequences among packed rows, and their rows in use.

    `packed`: the caller's tensors are packed. Otherwise the rows are those of the flattened batch.
    """

    packed: bool
    ends_q: tuple[int, ...]
    ends_k: tuple[int, ...]
    q: tuple[range, ...]
    k: tuple[range, ...]

    def longest(self, o: Any) -> tuple[int, int]:
        """max_seqlen_q and max_seqlen_k: the given ones, if they are large enough, or the longest
        sequences.
        """
        return (
            _longest("max_seqlen_q", self.ends_q, o.max_seqlen_q),
            _longest("max_seqlen_k", self.ends_k, o.max_seqlen_k),
        )


def all_rows_in_use(batch: int, rows_q: int, rows_k: int) -> Sequences:
    """The lengths of a dense batch whose rows are all in use."""
    ends = [[n * rows for n in range(batch + 1)] for rows in (rows_q, rows_k)]
    starts_q, starts_k = (tuple(x) for x in ends)
    used_q, used_k = (tuple(_used("", None, x)) for x in ends)
    return Sequences(False, starts_q, starts_k, used_q, used_k)


def read_lengths(o: Any, batch: int, length_q: int, length_k: int) -> Optional[Sequences]:
    """The lengths of a call's options; None for a dense batch whose rows are all in use."""
    packed = o.cu_seqlens_q is not None
    if not packed and all(getattr(o, name) is None for name in PER_SEQUENCE):
        return None
    if packed:
        ends_q = _ends("cu_seqlens_q", o.cu_seqlens_q, length_q)
        ends_k = _ends("cu_seqlens_k", o.cu_seqlens_k, length_k)
        if len(ends_q) != len(ends_k):
            raise InvalidArgument(
                f"cu_seqlens_k has {len(ends_k)} elements; it must have those of cu_seqlens_q, "
                f"{len(ends_q)}"
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
        found.longest(o)  # rejects a max_seqlen that is too small
    return found


def _ends(name: str, cu_seqlens: Tensor, length: int) -> list[int]:
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or not cu_seqlens.numel():
        raise InvalidArgument(
            f"{name} is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}; it must be int32 of "
            "shape (b + 1,)"
        )
    ends: list[int] = cu_seqlens.tolist()
    if sorted(ends) != ends or ends[0] < 0 or ends[-1] > length:
        shown = ends if len(ends) < 9 else [*ends[:4], "...", *ends[-4:]]
        raise InvalidArgument(
            f"{name} is {shown}; it must start at 0 or more, not decrease, and end at most at "
            f"{length}, the number of rows "
            "of all ranks"
        )
    return ends


def _numbers(name: str, given: Tensor, most: Sequence[int], of: str) -> list[int]:
    if given.dtype != torch.int32 or given.shape != (len(most),):
        raise InvalidArgument(
            f"{name} is {given.dtype} of shape {tuple(given.shape)}; it must be int32 of shape "
            f"(b,) = ({len(most)},)"
        )
    numbers: list[int] = given.tolist()
    for n, (x, limit) in enumerate(zip(numbers, most)):
        if not 0 <= x <= limit:
            raise InvalidArgument(
                f"{name} is {x} for sequence {n}; it must be 0 to its {of}, {limit}"
            )
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
        raise InvalidArgument(
            f"{name} is {given}; it must be at least {longest}, the longest sequence's length"
        )
    return max(longest, given, 1)
