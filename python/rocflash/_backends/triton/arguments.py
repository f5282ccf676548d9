"""How kernels are told about a problem: named tuples, whose fields Triton sees one by one.

A field that is None is absent, and what depends on it is not compiled. Numbers that change from call to call (lengths,
random keys) are arguments of their own, since Triton compiles anew for some values of those in tuples.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Rows(NamedTuple):
    """A tensor (sequence, row, head, column) by its strides; columns are contiguous. Packed: `batch` is 0."""

    data: Any
    batch: int
    row: int
    head: int


class Numbers(NamedTuple):
    """An f32 tensor (sequence, head, row) with contiguous rows: lse and its relatives. Packed: `batch` is 0."""

    data: Any
    batch: int
    head: int


class Lengths(NamedTuple):
    """int32 tensors that say which rows belong to a sequence."""

    cu_q: Any
    cu_k: Any
    used_q: Any
    used_k: Any
    pad_k: Any
    entry_k: Any  # which batch entry of keys and values a sequence has


class Pages(NamedTuple):
    """Keys and values in pages: `table` (sequence, page) says which of `count` pages of `size` rows each is."""

    table: Any
    width: int
    size: int
    count: int


class Heads(NamedTuple):
    count: int  # of queries
    group: int  # of those that share a head of keys


class PerScore(NamedTuple):
    """A tensor (sequence, head, query, key) by its strides; 0 where one number serves a whole dimension."""

    data: Any
    batch: int
    head: int
    row: int
    column: int


class Score(NamedTuple):
    """How a score is shaped; scale and softcap are those of scores in base 2, times log2(e)."""

    scale: float
    softcap: Any
    slopes: Any
    slope_batch: int
    bias: Any  # PerScore
    mask: Any  # PerScore


class Sight(NamedTuple):
    """How many keys a query sees on each side of its place, and the size of chunks."""

    left: Any
    right: Any
    chunk: Any


class Dropout(NamedTuple):
    threshold: int  # of 65536: so many patterns keep a weight
    scale: float  # 1 / (1 - p)
