"""rocflash: exact attention on CPUs and GPUs, for torch tensors and DLPack arrays.

>>> import rocflash, torch
>>> q = k = v = torch.randn(1, 128, 8, 64)
>>> rocflash.attention(q, k, v, causal=True).shape
torch.Size([1, 128, 8, 64])

torch is optional and imported on first use. If it is imported already, rocflash is registered as
one of its flash attention implementations (see integrations.torch_attention).
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
from .explain import explain
from .info import Info, devices, drivers, info, limits, targets

__version__ = "0.1.0"


def load_operators() -> None:
    """Registers torch.ops.rocflash, for processes that load a graph saved by torch.export or
    AOTInductor.

    `import rocflash` registers them if torch is imported already; otherwise this function imports
    torch.
    """
    from ._torch import decode as _  # noqa: F401


def _is_loaded(name: str) -> bool:
    """Whether a module is imported completely."""
    spec = getattr(_sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


if _is_loaded("torch"):
    load_operators()

if "torch.nn.attention._registry" in _sys.modules:
    from .integrations.torch_attention import offer as _offer

    _offer()


def __getattr__(name: str) -> _Any:
    """rocflash.sdpa imports torch, so it is imported on first access."""
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
    "explain",
    "info",
    "limits",
    "load_operators",
    "set_backend",
    "targets",
    "use_backend",
]
