"""RMS norm with dropout and residual, under the names of upstream's older extension; by torch."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from flash_attn.ops.layer_norm import add_norm, add_norm_parallel

__all__ = [
    "DropoutAddRMSNorm",
    "RMSNorm",
    "dropout_add_rms_norm",
    "dropout_add_rms_norm_parallel_residual",
    "rms_norm",
]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return dropout_add_rms_norm(x, None, weight, None, 0.0, epsilon)


def dropout_add_rms_norm(
    x0: Tensor,
    residual: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    dropout_p: float,
    epsilon: float,
    rowscale: Optional[Tensor] = None,
    layerscale: Optional[Tensor] = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    return add_norm(
        x0,
        residual,
        weight,
        bias,
        dropout_p,
        epsilon,
        rowscale,
        layerscale,
        prenorm,
        residual_in_fp32,
        return_dropout_mask,
        True,
    )


def dropout_add_rms_norm_parallel_residual(
    x0: Tensor,
    x1: Optional[Tensor],
    residual: Optional[Tensor],
    weight0: Tensor,
    bias0: Optional[Tensor],
    weight1: Optional[Tensor],
    bias1: Optional[Tensor],
    dropout_p: float,
    epsilon: float,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> tuple[Any, ...]:
    return add_norm_parallel(
        x0,
        x1,
        residual,
        weight0,
        bias0,
        weight1,
        bias1,
        dropout_p,
        epsilon,
        prenorm,
        residual_in_fp32,
        return_dropout_mask,
        True,
    )


class RMSNorm(nn.Module):
    """rms_norm with a weight of its own."""

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


class DropoutAddRMSNorm(nn.Module):
    """dropout_add_rms_norm with a weight of its own."""

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.prenorm = prenorm
        self.p = p
        self.eps = eps
        self.residual_in_fp32 = residual_in_fp32
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x0: Tensor, residual: Optional[Tensor] = None) -> Any:
        return dropout_add_rms_norm(
            x0,
            residual,
            self.weight,
            None,
            self.p if self.training else 0.0,
            self.eps,
            prenorm=self.prenorm,
            residual_in_fp32=self.residual_in_fp32,
        )
