"""rocflash: exact attention on CPUs and GPUs, for torch tensors and DLPack arrays.

>>> import rocflash, torch
>>> q = k = v = torch.randn(1, 128, 8, 64)
>>> rocflash.attention(q, k, v, causal=True).shape
torch.Size([1, 128, 8, 64])

torch is optional and only imported where it is used. Where it is imported already, rocflash is offered to it as a
flash attention of its own (see integrations.torch_attention).
"""

from __future__ import annotations

import sys as _sys
from typing import Any as _Any

from ._c.choice import backend, set_backend, use_backend
from .attention import attention
from .decode import decode
from .errors import (
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    Unsupported,
)
from .info import Info, devices, drivers, info, limits, targets

__version__ = "0.1.0"

if "torch.nn.attention._registry" in _sys.modules:
    from .integrations.torch_attention import offer as _offer

    _offer()


def __getattr__(name: str) -> _Any:
    """rocflash.sdpa imports torch, so it is imported when it is asked for."""
    if name == "sdpa":
        from importlib import import_module

        return import_module("rocflash.sdpa")
    raise AttributeError(f"module 'rocflash' has no attribute {name!r}")


__all__ = [
    "DeviceError",
    "Error",
    "Info",
    "InternalError",
    "InvalidArgument",
    "OutOfMemory",
    "Unsupported",
    "__version__",
    "attention",
    "backend",
    "decode",
    "devices",
    "drivers",
    "info",
    "limits",
    "set_backend",
    "targets",
    "use_backend",
]
