"""Collectives with gradients, under upstream's names. Rows are the first dimension."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rocflash.dropin import InvalidArgument

__all__ = [
    "AllGatherFunc",
    "AllReduceFunc",
    "ReduceScatterFunc",
    "all_gather",
    "all_gather_raw",
    "all_reduce",
    "all_reduce_raw",
    "allreduce_sequence_parallel_grad",
    "get_dim_for_local_rank",
    "reduce_scatter",
    "reduce_scatter_raw",
    "sync_shared_params",
]


def all_gather_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> Any:
    """(the rows of all ranks, in their order; the handle or None). No gradients."""
    count = dist.get_world_size(process_group)
    rows = input_.new_empty((count * input_.shape[0], *input_.shape[1:]))
    handle = dist.all_gather_into_tensor(
        rows, input_.contiguous(), group=process_group, async_op=async_op
    )
    return rows, handle


def reduce_scatter_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> Any:
    """(one's own rows of the sum; the handle or None). No gradients."""
    count = dist.get_world_size(process_group)
    if input_.shape[0] % count:
        raise InvalidArgument(
            f"input_ has {input_.shape[0]} rows; it must have a multiple of {count}, the processes "
            "that share them"
        )
    rows = input_.new_empty((input_.shape[0] // count, *input_.shape[1:]))
    handle = dist.reduce_scatter_tensor(
        rows, input_.contiguous(), group=process_group, async_op=async_op
    )
    return rows, handle


def all_reduce_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> Any:
    """(the sum, in input_ itself where it is contiguous; the handle or None). No gradients."""
    input_ = input_.contiguous()
    return input_, dist.all_reduce(input_, group=process_group, async_op=async_op)


class AllGatherFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return all_gather_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter_raw(grad_output, ctx.process_group)[0], None


class ReduceScatterFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return reduce_scatter_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return all_gather_raw(grad_output, ctx.process_group)[0], None


class AllReduceFunc(torch.autograd.Function):
    """The sum; the gradient of each input is the incoming one, since all processes use the same
    sum.
    """

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        return all_reduce_raw(input_.clone(), process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output, None


all_gather = AllGatherFunc.apply
reduce_scatter = ReduceScatterFunc.apply
all_reduce = AllReduceFunc.apply


def sync_shared_params(model: nn.Module, process_group: Any) -> None:
    """Gives all processes the first one's values of parameters marked _shared_params."""
    first = dist.get_global_rank(process_group, 0)
    for _, parameter in sorted(model.named_parameters()):
        if getattr(parameter, "_shared_params", False):
            with torch.no_grad():
                dist.broadcast(parameter, src=first, group=process_group)


def allreduce_sequence_parallel_grad(model: nn.Module, process_group: Any) -> None:
    """Sums the gradients of parameters marked _sequence_parallel."""
    grads = [
        parameter.grad
        for _, parameter in sorted(model.named_parameters())
        if getattr(parameter, "_sequence_parallel", False)
    ]
    if not grads:
        return
    with torch.no_grad():
        joined = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(joined, group=process_group)
        for grad, total in zip(grads, torch._utils._unflatten_dense_tensors(joined, grads)):
            if grad is not None:
                grad.copy_(total)


def get_dim_for_local_rank(dim: int, world_size: int, local_rank: int, multiple_of: int = 1) -> int:
    """The share of `dim` of a rank, a multiple of multiple_of; the first ranks have the
    remainder.
    """
    parts = dim // multiple_of
    return (parts // world_size + (local_rank < parts % world_size)) * multiple_of
