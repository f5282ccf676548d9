"""Shapes of results from those of the inputs, also for fake tensors."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument

Shape = tuple[Any, ...]  # of ints, or of torch's symbolic ints


def check_ranks(q: Shape, k: Shape, v: Shape, packed_q: bool, packed_k: bool) -> None:
    """Checks ranks, since results are allocated before the library validates the inputs."""
    for name, shape, packed in (("q", q, packed_q), ("k", k, packed_k), ("v", v, packed_k)):
        if len(shape) != (3 if packed else 4):
            side = "q" if name == "q" else "k"
            layout = f"(total_{side}, heads, head dimension) with cu_seqlens_{side}"
            raise InvalidArgument(
                f"{name} has shape {tuple(shape)} of {len(shape)} dimensions; it must be "
                + (layout if packed else f"(batch or pages, {side} length, heads, head dimension)")
            )


def out_shape(q: Shape, v: Shape) -> Shape:
    return (*q[:-1], v[-1])


def lse_shape(q: Shape) -> Shape:
    return (q[1], q[0]) if len(q) == 3 else (q[0], q[2], q[1])


def weights_shape(
    q: Shape, k: Shape, cu_seqlens_q: Any, block_table: Any, max_seqlen_q: Any, max_seqlen_k: Any
) -> Shape:
    """cu_seqlens_q and block_table are shapes, or None."""
    if cu_seqlens_q is None:
        if block_table is not None and len(block_table) != 2:
            raise InvalidArgument(
                f"block_table has shape {tuple(block_table)}; it must be (b, pages)"
            )
        return (q[0], q[2], q[1], k[1] * (1 if block_table is None else block_table[1]))
    if len(cu_seqlens_q) != 1 or cu_seqlens_q[0] < 1:
        raise InvalidArgument(f"cu_seqlens_q has shape {tuple(cu_seqlens_q)}; it must be (b + 1,)")
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if type(length) is int and length < 0:  # a symbol's value is not read
            raise InvalidArgument(f"{name} is {length}; it must be 0 or more")
    return (cu_seqlens_q[0] - 1, q[1], max_seqlen_q, max_seqlen_k)
