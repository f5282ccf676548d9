"""Embeddings of words, positions and kinds, under upstream's names."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flash_attn.utils.distributed import all_reduce, reduce_scatter
from rocflash.dropin import InvalidArgument

__all__ = [
    "BertEmbeddings",
    "ColumnParallelEmbedding",
    "GPT2Embeddings",
    "ParallelGPT2Embeddings",
    "VocabParallelEmbedding",
]


def _positions(input_ids: Tensor, position_ids: Optional[Tensor]) -> Tensor:
    if position_ids is not None:
        return position_ids
    return torch.arange(input_ids.shape[1], device=input_ids.device)


class GPT2Embeddings(nn.Module):
    """Words and positions; no positions if max_position_embeddings is 0 or less. With
    word_embed_proj_dim words have that size and are projected to embed_dim."""

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        padding_idx: Optional[int] = None,
        word_embed_proj_dim: Optional[int] = None,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        arguments = {"device": device, "dtype": dtype}
        width = embed_dim if word_embed_proj_dim is None else word_embed_proj_dim
        self.word_embeddings = nn.Embedding(vocab_size, width, padding_idx=padding_idx, **arguments)
        self.project_in = None
        if word_embed_proj_dim is not None:
            self.project_in = nn.Linear(width, embed_dim, bias=False, **arguments)
        self.max_position_embeddings = max_position_embeddings
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **arguments)

    def forward(self, input_ids: Tensor, position_ids: Optional[Tensor] = None) -> Tensor:
        found = self.word_embeddings(input_ids)
        if self.project_in is not None:
            found = self.project_in(found)
        if self.max_position_embeddings > 0:
            found = found + self.position_embeddings(_positions(input_ids, position_ids))
        return found


class BertEmbeddings(nn.Module):
    """Words, positions and token types; a count of 0 or less omits its part."""

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        type_vocab_size: int,
        padding_idx: Optional[int] = None,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        arguments = {"device": device, "dtype": dtype}
        self.word_embeddings = nn.Embedding(
            vocab_size, embed_dim, padding_idx=padding_idx, **arguments
        )
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **arguments)
        if type_vocab_size > 0:
            self.token_type_embeddings = nn.Embedding(type_vocab_size, embed_dim, **arguments)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Optional[Tensor] = None,
        token_type_ids: Optional[Tensor] = None,
    ) -> Tensor:
        found = self.word_embeddings(input_ids)
        if self.max_position_embeddings > 0:
            found = found + self.position_embeddings(_positions(input_ids, position_ids))
        if self.type_vocab_size > 0:
            kinds = torch.zeros_like(input_ids[0]) if token_type_ids is None else token_type_ids
            found = found + self.token_type_embeddings(kinds)
        return found


def _share(name: str, count: int, process_group: Any) -> int:
    world = 1 if process_group is None else dist.get_world_size(process_group)
    if count % world:
        raise InvalidArgument(f"{name} is {count}; it must be a multiple of the {world} processes")
    return count // world


class VocabParallelEmbedding(nn.Embedding):
    """Each process has a range of the words and returns 0 for the others."""

    def __init__(
        self,
        num_embeddings: int,
        *args: Any,
        process_group: Any = None,
        padding_idx: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        own = _share("num_embeddings", num_embeddings, process_group)
        if own != num_embeddings and padding_idx is not None:
            raise InvalidArgument(
                f"padding_idx is {padding_idx}; it must be None where words are split over "
                "processes"
            )
        super().__init__(own, *args, padding_idx=padding_idx, **kwargs)  # type: ignore[misc]
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:
        if self.process_group is None:
            return super().forward(input)
        local = input - dist.get_rank(self.process_group) * self.num_embeddings
        strange = (local < 0) | (local >= self.num_embeddings)
        found = super().forward(local.masked_fill(strange, 0))
        return found.masked_fill(strange[..., None], 0.0)


class ColumnParallelEmbedding(nn.Embedding):
    """Each process has a part of every vector."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *args: Any,
        process_group: Any = None,
        **kwargs: Any,
    ) -> None:
        own = _share("embedding_dim", embedding_dim, process_group)
        super().__init__(num_embeddings, own, *args, **kwargs)
        self.process_group = process_group


class ParallelGPT2Embeddings(nn.Module):
    """GPT2Embeddings split over processes: words by range, positions by columns."""

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        process_group: Any,
        padding_idx: Optional[int] = None,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.process_group = process_group
        self.sequence_parallel = sequence_parallel
        arguments = {"process_group": process_group, "device": device, "dtype": dtype}
        self.word_embeddings = VocabParallelEmbedding(
            vocab_size, embed_dim, padding_idx=padding_idx, **arguments
        )
        self.max_position_embeddings = max_position_embeddings
        if max_position_embeddings > 0:
            self.position_embeddings = ColumnParallelEmbedding(
                max_position_embeddings, embed_dim, **arguments
            )

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Optional[Tensor] = None,
        combine_batch_seqlen_dim: bool = False,
    ) -> Tensor:
        found = self.word_embeddings(input_ids)
        if self.max_position_embeddings > 0:
            positions = self.position_embeddings(_positions(input_ids, position_ids))
            before = dist.get_rank(self.process_group) * positions.shape[-1]
            after = found.shape[-1] - before - positions.shape[-1]
            found = found + nn.functional.pad(positions, (before, after))
        if combine_batch_seqlen_dim:
            found = found.flatten(0, 1)
        if dist.get_world_size(self.process_group) <= 1:
            return found
        join = reduce_scatter if self.sequence_parallel else all_reduce
        return join(found, self.process_group)
