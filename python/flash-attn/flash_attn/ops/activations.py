"""Activations and their derivatives under upstream's names, by torch, on any device.

A function that ends in _bwd takes the incoming gradient and the input, and returns the input's
gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "FastGeLUFunction",
    "GeLUFunction",
    "SwiGLUFunction",
    "bias_gelu",
    "bias_gelu_back",
    "bias_gelu_impl",
    "fast_gelu_impl",
    "gelu_bwd",
    "gelu_fwd",
    "relu_bwd",
    "sqrelu_bwd",
    "sqrelu_fwd",
    "swiglu",
    "swiglu_bwd",
    "swiglu_fwd",
]


def gelu_fwd(x: Tensor) -> Tensor:
    """gelu by its approximation with tanh."""
    return F.gelu(x, approximate="tanh")


def gelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    wide = x.float()
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    bent = torch.tanh(inner)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * wide.square())
    return (g * (0.5 * (1 + bent) + 0.5 * wide * (1 - bent.square()) * slope)).to(x.dtype)


def bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    return gelu_fwd(bias + y)


def bias_gelu_back(g: Tensor, y: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y and of bias."""
    grad = gelu_bwd(g, bias + y)
    return grad, grad.sum(dim=tuple(range(grad.dim() - 1)), dtype=bias.dtype)


def relu_bwd(g: Tensor, x: Tensor) -> Tensor:
    return torch.where(x >= 0, g, 0.0).to(x.dtype)


def sqrelu_fwd(x: Tensor) -> Tensor:
    """relu(x) squared."""
    return F.relu(x.float()).square().to(x.dtype)


def sqrelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    return (2.0 * g * F.relu(x.float())).to(x.dtype)


def swiglu_fwd(x: Tensor, y: Tensor) -> Tensor:
    """silu(x) * y, computed in f32."""
    return (F.silu(x.float()) * y.float()).to(x.dtype)


def swiglu_bwd(x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of y; g comes last, as upstream has it."""
    wide, gate, incoming = x.float(), y.float(), g.float()
    part = torch.sigmoid(wide)
    dx = part * (1 + wide * (1 - part)) * incoming * gate
    return dx.to(x.dtype), (wide * part * incoming).to(y.dtype)


class GeLUFunction(torch.autograd.Function):
    """gelu(input + bias) that keeps both instead of their sum."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(input, bias)
        return bias_gelu(input, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        return bias_gelu_back(grad_output, *ctx.saved_tensors)


class FastGeLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        ctx.save_for_backward(input)
        return gelu_fwd(input)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return gelu_bwd(grad_output, *ctx.saved_tensors)


class SwiGLUFunction(torch.autograd.Function):
    """silu(x) * y that keeps x and y alone for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return swiglu_fwd(x, y)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return swiglu_bwd(x, y, dout)


bias_gelu_impl = GeLUFunction.apply
fast_gelu_impl = FastGeLUFunction.apply
swiglu = SwiGLUFunction.apply
