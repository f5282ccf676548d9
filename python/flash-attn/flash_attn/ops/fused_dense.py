"""Linear layers and MLPs under the names of upstream's fused ones, whole and split over processes;
by torch.

Weights have upstream's names and shapes. `heuristic` selects upstream's kernels and has no effect
here.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flash_attn.ops.activations import gelu_fwd, sqrelu_fwd
from flash_attn.utils.distributed import (
    all_gather,
    all_reduce,
    all_reduce_raw,
    get_dim_for_local_rank,
    reduce_scatter,
)
from rocflash.dropin import InvalidArgument

__all__ = [
    "ColumnParallelLinear",
    "FusedDense",
    "FusedMLP",
    "ParallelFusedMLP",
    "RowParallelLinear",
    "fused_dense_func",
    "fused_mlp_func",
]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_approx": gelu_fwd,
    "relu": F.relu,
    "sqrelu": sqrelu_fwd,
}


class _Shared(torch.autograd.Function):
    """An input of all processes of a group: its gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce_raw(grad.clone(), ctx.group)[0], None


def _whole_input(x: Tensor, process_group: Any, sequence_parallel: bool) -> Tensor:
    if process_group is None:
        return x
    return all_gather(x, process_group) if sequence_parallel else _Shared.apply(x, process_group)


def fused_dense_func(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    return_residual: bool = False,
    process_group: Any = None,
    sequence_parallel: bool = True,
) -> Any:
    """x weight^T + bias, and x itself with return_residual. With a process group x is gathered
    first, or with sequence_parallel=False the same everywhere."""
    out = F.linear(_whole_input(x, process_group, sequence_parallel), weight, bias)
    return (out, x) if return_residual else out


class FusedDense(nn.Linear):
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x: Tensor, process_group: Any = None) -> Any:
        return fused_dense_func(
            x,
            self.weight,
            self.bias,
            return_residual=self.return_residual,
            process_group=process_group,
        )


def _own_part(name: str, features: int, group: Any, multiple_of: int) -> int:
    if features % multiple_of:
        raise InvalidArgument(
            f"{name} is {features}; it must be a multiple of multiple_of, {multiple_of}"
        )
    return get_dim_for_local_rank(
        features, dist.get_world_size(group), dist.get_rank(group), multiple_of
    )


class ColumnParallelLinear(nn.Linear):
    """Each process has a part of the outputs."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        process_group: Any,
        bias: bool = True,
        sequence_parallel: bool = True,
        multiple_of: int = 1,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        part = _own_part("out_features", out_features, process_group, multiple_of)
        super().__init__(in_features, part, bias=bias, device=device, dtype=dtype)
        self.process_group = process_group
        self.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        return fused_dense_func(
            x,
            self.weight,
            self.bias,
            process_group=self.process_group,
            sequence_parallel=self.sequence_parallel,
        )


class RowParallelLinear(nn.Linear):
    """Each process has a part of the inputs, and the first one the bias; results are summed."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        process_group: Any,
        bias: bool = True,
        sequence_parallel: bool = True,
        multiple_of: int = 1,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        part = _own_part("in_features", in_features, process_group, multiple_of)
        first = dist.get_rank(process_group) == 0
        super().__init__(part, out_features, bias=bias and first, device=device, dtype=dtype)
        self.process_group = process_group
        self.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        join = reduce_scatter if self.sequence_parallel else all_reduce
        return join(F.linear(x, self.weight, self.bias), self.process_group)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in _ACTIVATIONS:
        raise InvalidArgument(f"activation is {name!r}; allowed are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def fused_mlp_func(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Optional[Tensor] = None,
    bias2: Optional[Tensor] = None,
    activation: str = "gelu_approx",
    save_pre_act: bool = True,
    return_residual: bool = False,
    checkpoint_lvl: int = 0,
    heuristic: int = 0,
    process_group: Any = None,
    sequence_parallel: bool = True,
) -> Any:
    """activation(x weight1^T + bias1) weight2^T + bias2, and x with return_residual.

    checkpoint_lvl: 0 saves everything for backward, 1 recomputes the activation, 2 also its input.
    """
    if checkpoint_lvl not in (0, 1, 2):
        raise InvalidArgument(f"checkpoint_lvl is {checkpoint_lvl!r}; it must be 0, 1 or 2")
    act = _activation(activation)
    whole = _whole_input(x, process_group, sequence_parallel)

    def second(before: Tensor) -> Tensor:
        return F.linear(act(before), weight2, bias2)

    def both(whole: Tensor) -> Tensor:
        return second(F.linear(whole, weight1, bias1))

    again = partial(checkpoint, use_reentrant=False)
    if checkpoint_lvl == 2 or not save_pre_act:
        out = again(both, whole)
    elif checkpoint_lvl == 1:
        out = again(second, F.linear(whole, weight1, bias1))
    else:
        out = both(whole)
    return (out, x) if return_residual else out


class FusedMLP(nn.Module):
    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        bias1: bool = True,
        bias2: bool = True,
        activation: str = "gelu_approx",
        return_residual: bool = False,
        checkpoint_lvl: int = 0,
        heuristic: Any = "auto",
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        _activation(activation)
        hidden = hidden_features if hidden_features is not None else 4 * in_features
        out = out_features if out_features is not None else in_features
        self.activation = activation
        self.return_residual = return_residual
        self.checkpoint_lvl = checkpoint_lvl
        self.heuristic = heuristic
        self.fc1 = nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor, process_group: Any = None) -> Any:
        found = fused_mlp_func(
            x,
            self.fc1.weight,
            self.fc2.weight,
            self.fc1.bias,
            self.fc2.bias,
            activation=self.activation,
            return_residual=self.return_residual,
            checkpoint_lvl=self.checkpoint_lvl,
            process_group=process_group,
        )
        if process_group is None:
            return found
        out, kept = found if self.return_residual else (found, None)
        out = reduce_scatter(out, process_group)
        return (out, kept) if self.return_residual else out


class ParallelFusedMLP(nn.Module):
    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: str = "gelu_approx",
        process_group: Any = None,
        bias1: bool = True,
        bias2: bool = True,
        sequence_parallel: bool = True,
        checkpoint_lvl: int = 0,
        heuristic: Any = "auto",
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        _activation(activation)
        if process_group is None:
            raise InvalidArgument(
                "process_group is None; a layer split over processes must have one"
            )
        hidden = hidden_features if hidden_features is not None else 4 * in_features
        out = out_features if out_features is not None else in_features
        self.activation = activation
        self.process_group = process_group
        self.sequence_parallel = sequence_parallel
        self.checkpoint_lvl = checkpoint_lvl
        self.heuristic = heuristic
        self.fc1 = ColumnParallelLinear(
            in_features, hidden, process_group, bias=bias1, device=device, dtype=dtype
        )
        self.fc2 = RowParallelLinear(
            hidden, out, process_group, bias=bias2, device=device, dtype=dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        out = fused_mlp_func(
            x,
            self.fc1.weight,
            self.fc2.weight,
            self.fc1.bias,
            self.fc2.bias,
            activation=self.activation,
            checkpoint_lvl=self.checkpoint_lvl,
            process_group=self.process_group,
            sequence_parallel=self.sequence_parallel,
        )
        join = reduce_scatter if self.sequence_parallel else all_reduce
        return join(out, self.process_group)
