"""RMS norm with dropout and residual, under the names of upstream's older extension; by torch."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from flash_attn.ops.layer_norm import DropoutAddNorm, make_functions

__all__ = [
    "DropoutAddRMSNorm",
    "RMSNorm",
    "dropout_add_rms_norm",
    "dropout_add_rms_norm_parallel_residual",
    "rms_norm",
]


dropout_add_rms_norm, dropout_add_rms_norm_parallel_residual = make_functions(
    "rms_norm", True, __name__
)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return dropout_add_rms_norm(x, None, weight, None, 0.0, epsilon)


class RMSNorm(nn.Module):
    """rms_norm with its own weight."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class DropoutAddRMSNorm(DropoutAddNorm):
    """dropout_add_rms_norm with its own weight."""

    function = staticmethod(dropout_add_rms_norm)
