"""Conversion of padded batches to varlen sequences and back: the functions of
flash_attn.bert_padding.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

__all__ = [
    "IndexFirstAxis",
    "IndexFirstAxisResidual",
    "IndexPutFirstAxis",
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "rearrange",
    "repeat",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of x, in the order of indices."""
    return x[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """The inverse: a tensor of that many rows, zero except at the indices."""
    rows = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return rows.index_put((indices,), values)


def index_first_axis_residual(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x, and x itself for a residual branch, whose gradient is added to that of the
    rows.
    """
    return x[indices], x.view_as(x)


class IndexFirstAxis:
    """Upstream's autograd classes, reduced to `apply`: torch differentiates the functions."""

    apply = staticmethod(index_first_axis)


class IndexPutFirstAxis:
    apply = staticmethod(index_put_first_axis)


class IndexFirstAxisResidual:
    apply = staticmethod(index_first_axis_residual)


def _cumulative(lengths: Tensor) -> Tensor:
    return F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))


def _pack(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    indices = keep.flatten().nonzero().flatten()
    return x.flatten(0, 1)[indices], indices


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Optional[Tensor] = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """(packed rows, their indices, cu_seqlens, max_seqlen, seqused) of a padded (b, s, ...).

    unused_mask marks rows that are kept in the packed tensor but do not count as used.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    packed, indices = _pack(hidden_states, kept)
    return packed, indices, _cumulative(lengths), int(lengths.max()), used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """unpad_input for rows with several concatenated sequences.

    Row b of attention_mask_in_length lists their lengths, one after another, filled up with zeros.
    """
    length = attention_mask_in_length.sum(dim=-1)
    positions = torch.arange(attention_mask_in_length.shape[-1], device=length.device)
    packed, indices = _pack(hidden_states, positions[None] < length[:, None])
    flat = attention_mask_in_length.flatten()
    lengths = flat[flat > 0]
    return packed, indices, _cumulative(lengths), int(lengths.max())


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The padded (batch, seqlen, ...) of packed rows, zero elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(
        0, (batch, seqlen)
    )
