"""rocflash: exact attention on CPUs and GPUs, for torch tensors and DLPack arrays.

>>> import rocflash, torch
>>> q = k = v = torch.randn(1, 128, 8, 64)
>>> rocflash.attention(q, k, v, causal=True).shape
torch.Size([1, 128, 8, 64])

torch is optional and only imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._attention import attention
from ._backend import (
    Info,
    backend,
    devices,
    drivers,
    info,
    limits,
    set_backend,
    targets,
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

if TYPE_CHECKING:
    from ._kvcache import attention_with_kvcache as decode

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
    "decode",
    "devices",
    "drivers",
    "info",
    "limits",
    "set_backend",
    "targets",
    "use_backend",
]


def __getattr__(name: str) -> Any:
    if name == "decode":  # for torch tensors only, so torch is imported only now
        from ._kvcache import attention_with_kvcache

        return attention_with_kvcache
    raise AttributeError(f"module 'rocflash' has no attribute {name!r}")
