"""What torch is up to while a call is made: looks at its state, each as cheap as this torch has it."""

from __future__ import annotations

import torch
from torch import Tensor

is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._dynamo.is_compiling
tracing = torch._C._is_tracing
grad_enabled = torch.is_grad_enabled
autocasting = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)

# Types of tensors that do nothing of their own when they are used.
PLAIN = (Tensor, torch.nn.Parameter)
