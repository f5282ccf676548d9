"""Layer and RMS norm with residual, dropout and a second branch, under upstream's Triton names.

Everything is computed in f32 by torch, so it is differentiable and runs on any device.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from rocflash.dropin import InvalidArgument

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm_fn"]


def _dropped(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    keep = torch.rand(x.shape, device=x.device) >= p
    return x * keep / (1 - p), keep


def _normalized(z: Tensor, eps: float, is_rms_norm: bool) -> Tensor:
    if not is_rms_norm:
        z = z - z.mean(-1, keepdim=True)
    return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps)


def _scaled(x: Tensor, weight: Tensor, bias: Optional[Tensor], zero_centered: bool) -> Tensor:
    y = x * (weight.float() + 1 if zero_centered else weight.float())
    return y if bias is None else y + bias.float()


def _write(name: str, given: Optional[Tensor], value: Tensor) -> Tensor:
    if given is None:
        return value
    if given.shape != value.shape:
        raise InvalidArgument(
            f"{name} has shape {tuple(given.shape)}; it must be {tuple(value.shape)}"
        )
    return given.copy_(value)


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    residual: Optional[Tensor] = None,
    x1: Optional[Tensor] = None,
    weight1: Optional[Tensor] = None,
    bias1: Optional[Tensor] = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Optional[Tensor] = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: Optional[torch.dtype] = None,
    out: Optional[Tensor] = None,
    residual_out: Optional[Tensor] = None,
) -> Any:
    """norm(residual + dropout(rowscale * x) + dropout(x1)).

    Returns the normed values; then, where requested, those of weight1, the sum before the norm
    (prenorm) and the dropout masks of x and x1 (return_dropout_mask).
    """
    if rowscale is not None and x1 is not None:
        raise InvalidArgument(
            "rowscale is given with x1, which it does not scale; one of them must be None"
        )
    if not 0 <= dropout_p < 1:
        raise InvalidArgument(f"dropout_p is {dropout_p}; it must be in [0, 1)")
    total = x.float()
    if rowscale is not None:
        total = total * rowscale.float().reshape(*x.shape[:-1], 1)
    other = None if x1 is None else x1.float()
    mask = mask1 = None
    if dropout_p > 0:
        total, mask = _dropped(total, dropout_p)
        if other is not None:
            other, mask1 = _dropped(other, dropout_p)
    if other is not None:
        total = total + other
    if residual is not None:
        total = total + residual.float()
    normed = _normalized(total, eps, is_rms_norm)
    dtype = out_dtype or x.dtype
    results = [_write("out", out, _scaled(normed, weight, bias, zero_centered_weight).to(dtype))]
    if weight1 is not None:
        results.append(_scaled(normed, weight1, bias1, zero_centered_weight).to(dtype))
    elif bias1 is not None:
        raise InvalidArgument("bias1 is given; without weight1 it must be None")
    if prenorm:
        dropout_mask = residual.dtype if residual is not None else x.dtype
        summed = total if residual_in_fp32 else total.to(dropout_mask)
        results.append(_write("residual_out", residual_out, summed))
    elif residual_out is not None:
        raise InvalidArgument(
            "residual_out is given; without prenorm it has no value, so it must be None"
        )
    if return_dropout_mask:
        return (*results, mask, mask1)
    return results[0] if len(results) == 1 else tuple(results)


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    residual: Optional[Tensor] = None,
    x1: Optional[Tensor] = None,
    weight1: Optional[Tensor] = None,
    bias1: Optional[Tensor] = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Optional[Tensor] = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: Optional[torch.dtype] = None,
    out: Optional[Tensor] = None,
    residual_out: Optional[Tensor] = None,
) -> Any:
    """layer_norm_fn without subtraction of the mean."""
    return layer_norm_fn(
        x,
        weight,
        bias,
        residual=residual,
        x1=x1,
        weight1=weight1,
        bias1=bias1,
        eps=eps,
        dropout_p=dropout_p,
        rowscale=rowscale,
        prenorm=prenorm,
        residual_in_fp32=residual_in_fp32,
        zero_centered_weight=zero_centered_weight,
        is_rms_norm=True,
        return_dropout_mask=return_dropout_mask,
        out_dtype=out_dtype,
        out=out,
        residual_out=residual_out,
    )


class RMSNorm(nn.Module):
    """RMS norm with optional dropout and residual."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.dropout_p = dropout_p
        self.zero_centered_weight = zero_centered_weight
        fill = torch.zeros if zero_centered_weight else torch.ones
        self.weight = nn.Parameter(fill(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(
        self,
        x: Tensor,
        residual: Optional[Tensor] = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Any:
        bias: Any = self.bias
        return rms_norm_fn(
            x,
            self.weight,
            bias,
            residual=residual,
            eps=self.eps,
            dropout_p=self.dropout_p if self.training else 0.0,
            prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
            zero_centered_weight=self.zero_centered_weight,
        )
