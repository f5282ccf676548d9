"""A `with` block in the manner of torch's own context parallelism: inside it, attention is over all ranks.

Buffers are cut to this rank's rows in place and made whole again at the end, torch's
scaled_dot_product_attention is answered by this package, and so is the attention that
`rocflash.integrations.transformers_distributed` registers.
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
    """What a block decided, for whoever computes attention inside it."""

    group: Any
    method: str
    layout: Union[str, Layout]
    length: Optional[int]

    def options(self) -> dict[str, Any]:
        """The arguments of `attention` that say who has what."""
        return self._asdict()

    def position_ids(self, device: Any = None) -> Tensor:
        """(1, rows): this rank's positions, as models with rotary embedding take them."""
        if self.length is None:
            raise InvalidArgument("length: is None; position ids need buffers or length= of context_parallel")
        return positions(self.length, self.group, self.layout, device=device)[None]


# Of the process, not of a thread: autograd recomputes checkpointed layers in threads of its own.
_blocks: list[Context] = []


def current() -> Optional[Context]:
    return _blocks[-1] if _blocks else None


def _sdpa(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False,
) -> Tensor:
    """torch's scaled_dot_product_attention, (b, h, rows, d), over all ranks."""
    context = current()
    assert context is not None
    if attn_mask is not None:
        raise Unsupported(
            f"attn_mask: shape {tuple(attn_mask.shape)}; inside context_parallel it must be None (is_causal says the rest)"
        )
    if query.dim() != 4:
        raise Unsupported(f"query: {query.dim()} dimensions; inside context_parallel it must be (b, h, rows, d)")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise InvalidArgument(f"key: {key.shape[1]} heads, but query has {query.shape[1]} and enable_gqa is False")
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
        raise InvalidArgument(f"buffer_seq_dims: {len(dims)} numbers; there are {len(buffers)} buffers")
    for buffer, dim in zip(buffers, dims):
        if buffer.requires_grad:
            raise InvalidArgument("buffers: one requires a gradient; use shard_sequence for it")
        if length is not None and buffer.shape[dim] != length:
            raise InvalidArgument(
                f"buffers: {buffer.shape[dim]} rows in dimension {dim}, and {length} elsewhere; all must have the whole sequence"
            )
        length = int(buffer.shape[dim])
    if length is None and isinstance(layout, Layout):
        return layout.length
    return length


@contextmanager
def context_parallel(
    group: Any = None, *, buffers: Sequence[Tensor] = (), buffer_seq_dims: Sequence[int] = (),
    no_restore_buffers: Sequence[Tensor] = (), method: str = "auto", layout: Union[str, Layout] = "zigzag",
    length: Optional[int] = None,
) -> Iterator[Context]:
    """Inside the block, sequences are split over the ranks of `group` (a ProcessGroup, DeviceMesh or None).

    buffers: tensors with the whole sequence in the dimensions `buffer_seq_dims` (tokens, labels, position
    ids); inside they hold this rank's rows, afterwards what they held before, but for `no_restore_buffers`.
    Labels must be shifted before they are cut. backward belongs inside the block too.
    """
    group = resolve(group)
    length = _length(buffers, buffer_seq_dims, length, layout)
    context = Context(group, method, layout, length)
    # All are cut before any is changed: what is refused has changed nothing.
    parts = [shard_sequence(x, group, dim, layout) for x, dim in zip(buffers, buffer_seq_dims)]
    kept = [x.clone() for x in buffers]
    final = {id(x) for x in no_restore_buffers}
    theirs = F.scaled_dot_product_attention
    try:
        with torch.no_grad():
            for buffer, part in zip(buffers, parts):
                buffer.resize_(part.shape).copy_(part)
        _blocks.append(context)
        F.scaled_dot_product_attention = _sdpa  # type: ignore[assignment]
        try:
            yield context
        finally:
            F.scaled_dot_product_attention = theirs
            _blocks.pop()
    finally:
        with torch.no_grad():
            for buffer, whole in zip(buffers, kept):
                if id(buffer) not in final:
                    buffer.resize_(whole.shape).copy_(whole)
