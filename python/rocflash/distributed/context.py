"""The `context_parallel` block, with the interface of torch's own: inside it, attention is context
parallel.

Buffers are sharded in place and restored at the end. torch's scaled_dot_product_attention is
replaced, and the attention that `rocflash.integrations.transformers_distributed` registers uses the
block's context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InvalidArgument, Unsupported
from .attention import attention
from .group import resolve
from .layout import Layout
from .sequence import positions, shard_sequence

__all__ = ["Context", "context_parallel", "current"]


class Context(NamedTuple):
    """The arguments of a block, for the attention functions inside it."""

    group: Any
    method: str
    layout: Union[str, Layout]
    length: Optional[int]

    def options(self) -> dict[str, Any]:
        """Arguments of `attention`: group, method, layout and length."""
        return self._asdict()

    def position_ids(self, device: Any = None) -> Tensor:
        """(1, rows): this rank's positions, for rotary embeddings."""
        if self.length is None:
            raise InvalidArgument(
                "length is None; position_ids requires buffers or length= of context_parallel"
            )
        return positions(self.length, self.group, self.layout, device=device)[None]


# Per process, not per thread: autograd recomputes checkpointed layers in threads of its own.
_contexts: list[Context] = []


def current() -> Optional[Context]:
    return _contexts[-1] if _contexts else None


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's scaled_dot_product_attention, (b, h, rows, d), with context parallelism."""
    context = current()
    assert context is not None
    if attn_mask is not None:
        raise Unsupported(
            f"attn_mask has shape {tuple(attn_mask.shape)}; inside context_parallel it must be "
            "None (is_causal is supported)"
        )
    if query.dim() != 4:
        raise Unsupported(
            f"query has {query.dim()} dimensions; inside context_parallel it must have 4, (b, h, "
            "rows, d)"
        )
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise InvalidArgument(
            f"key has {key.shape[1]} heads, but query has {query.shape[1]} and enable_gqa is "
            "False; the numbers must be equal"
        )
    out = attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        causal=is_causal,
        dropout_p=dropout_p,
        softmax_scale=scale,
        **context.options(),
    )
    return out.transpose(1, 2)


def _length(
    buffers: Sequence[Tensor], dims: Sequence[int], length: Optional[int], layout: Any
) -> Optional[int]:
    if len(buffers) != len(dims):
        raise InvalidArgument(
            f"buffer_seq_dims has {len(dims)} elements; it must have one per buffer, {len(buffers)}"
        )
    for buffer, dim in zip(buffers, dims):
        if buffer.requires_grad:
            raise InvalidArgument(
                "buffers has one that requires a gradient; none may, so use shard_sequence for it"
            )
        if length is not None and buffer.shape[dim] != length:
            raise InvalidArgument(
                f"buffers has {buffer.shape[dim]} rows in dimension {dim}, but the sequence has "
                f"{length}; every buffer must hold the whole sequence"
            )
        length = int(buffer.shape[dim])
    if length is None and isinstance(layout, Layout):
        return layout.length
    return length


@contextmanager
def context_parallel(
    group: Any = None,
    *,
    buffers: Sequence[Tensor] = (),
    buffer_seq_dims: Sequence[int] = (),
    no_restore_buffers: Sequence[Tensor] = (),
    method: str = "auto",
    layout: Union[str, Layout] = "zigzag",
    length: Optional[int] = None,
) -> Iterator[Context]:
    """Inside the block, sequences are split over the ranks of `group` (a ProcessGroup, DeviceMesh
    or None).

    buffers: tensors with the whole sequence in the dimensions `buffer_seq_dims` (tokens, labels,
    position ids). Inside the block they hold this rank's rows; afterwards they are restored, except
    `no_restore_buffers`. Shift labels before the block. Call backward inside the block too.
    """
    group = resolve(group)
    length = _length(buffers, buffer_seq_dims, length, layout)
    context = Context(group, method, layout, length)
    # Shard all buffers before changing one, so that a rejected call has no side effect.
    parts = [shard_sequence(x, group, dim, layout) for x, dim in zip(buffers, buffer_seq_dims)]
    saved = [x.clone() for x in buffers]
    final = {id(x) for x in no_restore_buffers}
    original = F.scaled_dot_product_attention
    try:
        with torch.no_grad():
            for buffer, part in zip(buffers, parts):
                buffer.resize_(part.shape).copy_(part)
        _contexts.append(context)
        F.scaled_dot_product_attention = _sdpa
        try:
            yield context
        finally:
            F.scaled_dot_product_attention = original
            _contexts.pop()
    finally:
        with torch.no_grad():
            for buffer, whole in zip(buffers, saved):
                if id(buffer) not in final:
                    buffer.resize_(whole.shape).copy_(whole)
