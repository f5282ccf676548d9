"""MLPs under upstream's names, with its parameter names: fc1 and fc2."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flash_attn.ops.activations import swiglu
from flash_attn.ops.fused_dense import (
    ColumnParallelLinear,
    FusedMLP,
    ParallelFusedMLP,
    RowParallelLinear,
)

__all__ = ["FusedMLP", "GatedMlp", "Mlp", "ParallelFusedMLP", "ParallelGatedMlp", "ParallelMLP"]

Activation = Callable[[Tensor], Tensor]


def _gated(y: Tensor, activation: Activation) -> Tensor:
    """The first half, gated by the activation of the second."""
    value, gate = y.chunk(2, dim=-1)
    return swiglu(gate, value) if activation is F.silu else value * activation(gate)


def _gated_width(in_features: int, hidden_features: Optional[int], multiple_of: int) -> int:
    hidden = hidden_features if hidden_features is not None else int(8 * in_features / 3)
    return -(-hidden // multiple_of) * multiple_of


class Mlp(nn.Module):
    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: Activation = F.gelu,
        bias1: bool = True,
        bias2: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        out = out_features if out_features is not None else in_features
        hidden = hidden_features if hidden_features is not None else in_features * 4
        self.return_residual = return_residual
        self.fc1 = nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.activation = activation
        self.fc2 = nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        y = self.fc2(self.activation(self.fc1(x)))
        return (y, x) if self.return_residual else y


class ParallelMLP(nn.Module):
    """Mlp whose hidden part is split over the processes of a group."""

    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: Activation = F.gelu,
        process_group: Any = None,
        sequence_parallel: bool = True,
        bias1: bool = True,
        bias2: bool = True,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        out = out_features if out_features is not None else in_features
        hidden = hidden_features if hidden_features is not None else in_features * 4
        arguments = {"sequence_parallel": sequence_parallel, "device": device, "dtype": dtype}
        self.fc1 = ColumnParallelLinear(in_features, hidden, process_group, bias=bias1, **arguments)
        self.activation = activation
        self.fc2 = RowParallelLinear(hidden, out, process_group, bias=bias2, **arguments)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class GatedMlp(nn.Module):
    """fc2(value * activation(gate)), with value and gate from one projection."""

    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: Activation = F.sigmoid,
        bias1: bool = True,
        bias2: bool = True,
        multiple_of: int = 128,
        return_residual: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        out = out_features if out_features is not None else in_features
        hidden = _gated_width(in_features, hidden_features, multiple_of)
        self.return_residual = return_residual
        self.fc1 = nn.Linear(in_features, 2 * hidden, bias=bias1, device=device, dtype=dtype)
        self.activation = activation
        self.fc2 = nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        y = self.fc2(_gated(self.fc1(x), self.activation))
        return (y, x) if self.return_residual else y


class ParallelGatedMlp(nn.Module):
    """GatedMlp whose hidden part is split over the processes of a group."""

    def __init__(
        self,
        in_features: int,
        process_group: Any,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: Activation = F.sigmoid,
        bias1: bool = True,
        bias2: bool = True,
        multiple_of: int = 128,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        out = out_features if out_features is not None else in_features
        hidden = _gated_width(in_features, hidden_features, multiple_of)
        arguments = {"sequence_parallel": sequence_parallel, "device": device, "dtype": dtype}
        self.fc1 = ColumnParallelLinear(
            in_features, 2 * hidden, process_group, bias=bias1, **arguments
        )
        self.activation = activation
        self.fc2 = RowParallelLinear(hidden, out, process_group, bias=bias2, **arguments)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(_gated(self.fc1(x), self.activation))
