"""The kernel arguments of a problem: named tuples, which Triton flattens.

A field that is None is absent, and code that depends on it is not compiled. Numbers that change
between calls (lengths, random keys) are separate arguments, since Triton specializes on some values
of tuple fields.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Rows(NamedTuple):
    """A tensor (sequence, row, head, column) by its strides; columns are contiguous. Packed:
    `batch` is 0.
    """

    data: Any
    batch: int
    row: int
    head: int


class Numbers(NamedTuple):
    """An f32 tensor (sequence, head, row) with contiguous rows: lse and its relatives. Packed:
    `batch` is 0.
    """

    data: Any
    batch: int
    head: int


class Lengths(NamedTuple):
    """int32 tensors that define the rows of a sequence."""

    cu_q: Any
    cu_k: Any
    used_q: Any
    used_k: Any
    pad_k: Any
    entry_k: Any  # which batch entry of keys and values a sequence has


class Pages(NamedTuple):
    """Paged keys and values: `table` (sequence, page) indexes `count` pages of `size` rows."""

    table: Any
    width: int
    size: int
    count: int  # type: ignore[assignment]  # hides the method of tuple


class Heads(NamedTuple):
    count: int  # type: ignore[assignment]  # of queries
    group: int  # of those that share a head of keys


class PerScore(NamedTuple):
    """A tensor (sequence, head, query, key) by its strides; 0 in broadcast dimensions."""

    data: Any
    batch: int
    head: int
    row: int
    column: int


class Score(NamedTuple):
    """The score modifiers. `scale` includes log2(e) where the scores are in base 2."""

    scale: float
    scale_of_gradients: float  # without log2(e)
    to_base_2: Any  # log2(e) for natural scores, None for scores in base 2
    softcap: Any
    inverse_softcap: Any  # 16 / softcap
    slopes: Any
    slope_batch: int
    bias: Any  # PerScore
    mask: Any  # PerScore


class MaskBounds(NamedTuple):
    """The window of keys around a query's position, and the chunk size. None: no bound."""

    left: Any
    right: Any
    chunk: Any


class Dropout(NamedTuple):
    threshold: int  # out of 65536: random values below it keep the weight
    scale: float  # 1 / (1 - p)
