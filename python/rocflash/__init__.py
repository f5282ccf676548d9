"""rocflash: exact attention on CPUs and GPUs, for torch tensors and DLPack arrays.

>>> import rocflash, torch
>>> q = k = v = torch.randn(1, 128, 8, 64)
>>> rocflash.attention(q, k, v, causal=True).shape
torch.Size([1, 128, 8, 64])

torch is optional and only imported where it is used.
"""

from __future__ import annotations

from ._attention import attention
from ._backend import (
    Info,
    backend,
    devices,
    drivers,
    info,
    limits,
    set_backend,
    use_backend,
)
from ._errors import (
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    Unsupported,
)

__version__ = "0.1.0"

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
    "devices",
    "drivers",
    "info",
    "limits",
    "set_backend",
    "use_backend",
]
