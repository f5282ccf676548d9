"""Selects the path of a call from torch's state: dispatcher, torch.func, autograd or inference.

It uses the cheapest query that this version of torch has. No other module queries that state on the
way in; backward, which autograd starts later, queries its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .forward_mode import has_tangent

is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._dynamo.is_compiling
tracing = torch._C._is_tracing
grad_enabled = torch.is_grad_enabled
autocasting = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)

# Types of tensors without a __torch_function__ or __torch_dispatch__ of their own.
TENSOR_TYPES = (Tensor, torch.nn.Parameter)

# The paths. All but the first bypass torch's dispatcher.
OPERATOR = 0  # a compiler, a trace, a mode or a tensor subclass needs an operator
TRANSFORM = 1  # torch.func or forward-mode AD: autograd's form with setup_context
GRADIENTS = 2  # autograd's older form, which costs half
INFER = 3  # no gradients: scores may be summed in any order


def _requires_grad(x: Any) -> bool:
    return x is not None and getattr(x, "requires_grad", False)


def route(q: Any, k: Any, v: Any, sinks: Any = None, bias: Any = None, slopes: Any = None) -> int:
    """The path of a call on these tensors."""
    if (
        is_compiling()
        or type(q) not in TENSOR_TYPES
        or type(k) not in TENSOR_TYPES
        or type(v) not in TENSOR_TYPES
        or modes()
        or tracing()
    ):
        return OPERATOR
    if transforms_active() or (
        forward_ad._current_level >= 0 and has_tangent(q, k, v, sinks, bias, slopes)
    ):
        return TRANSFORM
    if grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or _requires_grad(sinks)
        or _requires_grad(bias)
        or _requires_grad(slopes)
    ):
        return GRADIENTS
    return INFER


def followed(dout: Tensor) -> bool:
    """Whether a mode or a tensor subclass needs backward as an operator."""
    return type(dout) not in TENSOR_TYPES or modes() > 0


def differentiated_again() -> bool:
    """Whether gradients of the gradients may be requested."""
    return transforms_active() or grad_enabled()
