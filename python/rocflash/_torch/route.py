"""One look at what torch is up to names the way that a call takes.

Each look is as cheap as this torch has it. Nobody else asks torch for its state on the way in; backward,
which autograd starts later, has a look of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._dynamo.is_compiling
tracing = torch._C._is_tracing
grad_enabled = torch.is_grad_enabled
autocasting = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)

# Types of tensors that do nothing of their own when they are used.
TENSOR_TYPES = (Tensor, torch.nn.Parameter)

# The ways in. All but the first leave out torch's dispatcher, since nobody is there to be told.
OPERATOR = 0  # a compiler, a trace, a mode or a tensor's own type wants to see an operator
TRANSFORM = 1  # torch.func follows, by autograd's newer form
GRADIENTS = 2  # autograd follows, by its older form, which costs half
INFER = 3  # nobody follows: scores may be summed in any order


def _asks(x: Any) -> bool:
    return x is not None and getattr(x, "requires_grad", False)


def route(q: Any, k: Any, v: Any, sinks: Any = None, bias: Any = None, slopes: Any = None) -> int:
    """The way of a call on these tensors."""
    if (
        is_compiling()
        or type(q) not in TENSOR_TYPES
        or type(k) not in TENSOR_TYPES
        or type(v) not in TENSOR_TYPES
        or modes()
        or tracing()
    ):
        return OPERATOR
    if transforms_active():
        return TRANSFORM
    if grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or _asks(sinks)
        or _asks(bias)
        or _asks(slopes)
    ):
        return GRADIENTS
    return INFER


def followed(dout: Tensor) -> bool:
    """Whether anything but eager execution wants to see backward."""
    return type(dout) not in TENSOR_TYPES or modes() > 0


def differentiated_again() -> bool:
    """Whether someone may ask for gradients of the gradients."""
    return transforms_active() or grad_enabled()
