"""Dropout, residual and layer norm in one call, under the names of upstream's older extension; by
torch.

As in upstream, residual_in_fp32 only applies without a residual; otherwise the sum has the
residual's dtype.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from flash_attn.ops.triton.layer_norm import _dropped, _normalized

__all__ = [
    "DropoutAddLayerNorm",
    "dropout_add_layer_norm",
    "dropout_add_layer_norm_parallel_residual",
    "layer_norm",
]


def _mask(keep: Optional[Tensor], like: Tensor) -> Tensor:
    """One byte per value, 1 where it was kept."""
    if keep is None:
        return torch.ones(like.shape, dtype=torch.uint8, device=like.device)
    return keep.to(torch.uint8)


def _branch(x: Tensor, p: float, row: Any, column: Any) -> tuple[Tensor, Optional[Tensor]]:
    """(dropout(x * row) * column in f32, what was kept)."""
    wide, keep = x.float(), None
    if row is not None:
        wide = wide * row.float().reshape(*x.shape[:-1], 1)
    if p > 0:
        wide, keep = _dropped(wide, p)
    return wide if column is None else wide * column.float(), keep


def _finish(
    normed: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], dtype: torch.dtype
) -> Optional[Tensor]:
    if weight is None:
        return None
    out = normed * weight.float()
    return (out if bias is None else out + bias.float()).to(dtype)


def _summed(total: Tensor, x: Tensor, residual: Optional[Tensor], in_fp32: bool) -> Tensor:
    if residual is not None:
        return total.to(residual.dtype)
    return total if in_fp32 else total.to(x.dtype)


def make_functions(kind: str, is_rms_norm: bool, module: str) -> tuple[Any, Any]:
    """dropout_add_KIND and dropout_add_KIND_parallel_residual, for the module that has them."""

    def dropout_add(
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
        """norm(residual + layerscale * dropout(rowscale * x0)); then, where requested, the sum
        before the norm (prenorm) and the bytes of dropout.
        """
        total, keep = _branch(x0, dropout_p, rowscale, layerscale)
        if residual is not None:
            total = total + residual.float()
        results = [_finish(_normalized(total, epsilon, is_rms_norm), weight, bias, x0.dtype)]
        if prenorm:
            results.append(_summed(total, x0, residual, residual_in_fp32))
        if return_dropout_mask:
            results.append(_mask(keep, x0))
        return results[0] if len(results) == 1 else tuple(results)

    def parallel_residual(
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
        """Two branches and two norms of their sum; the second is None without weight1."""
        total, keep0 = _branch(x0, dropout_p, None, None)
        keep1 = None
        if x1 is not None:
            other, keep1 = _branch(x1, dropout_p, None, None)
            total = total + other
        if residual is not None:
            total = total + residual.float()
        normed = _normalized(total, epsilon, is_rms_norm)
        branches = ((weight0, bias0), (weight1, bias1))
        results = [_finish(normed, weight, bias, x0.dtype) for weight, bias in branches]
        if prenorm:
            results.append(_summed(total, x0, residual, residual_in_fp32))
        if return_dropout_mask:
            results += [_mask(keep0, x0), _mask(keep1, x0)]
        return tuple(results)

    made = {
        f"dropout_add_{kind}": dropout_add,
        f"dropout_add_{kind}_parallel_residual": parallel_residual,
    }
    for name, function in made.items():
        function.__name__ = function.__qualname__ = name
        function.__module__ = module
    return dropout_add, parallel_residual


dropout_add_layer_norm, dropout_add_layer_norm_parallel_residual = make_functions(
    "layer_norm", False, __name__
)


def layer_norm(x: Tensor, weight: Tensor, bias: Optional[Tensor], epsilon: float) -> Tensor:
    return dropout_add_layer_norm(x, None, weight, bias, 0.0, epsilon)


class DropoutAddNorm(nn.Module):
    """Base of DropoutAddLayerNorm and DropoutAddRMSNorm: a function's options and its weight."""

    function: Any = None
    has_bias = False

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
        self.prenorm, self.residual_in_fp32 = prenorm, residual_in_fp32
        self.p, self.eps = p, eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros_like(self.weight)) if self.has_bias else None
        )

    def forward(self, x0: Tensor, residual: Optional[Tensor] = None) -> Any:
        p = self.p if self.training else 0.0
        options = {"prenorm": self.prenorm, "residual_in_fp32": self.residual_in_fp32}
        return type(self).function(x0, residual, self.weight, self.bias, p, self.eps, **options)


class DropoutAddLayerNorm(DropoutAddNorm):
    """dropout_add_layer_norm with its own weight and bias."""

    function = staticmethod(dropout_add_layer_norm)
    has_bias = True
