"""What can go wrong, as Python exceptions: one class for each status of the C ABI.

Each one is a RuntimeError, as flash_attn raises, and also the built-in that fits best, so that
``except ValueError`` works as a Python programmer expects.
"""

from __future__ import annotations

__all__ = [
    "DeviceError",
    "Error",
    "InternalError",
    "InvalidArgument",
    "OutOfMemory",
    "Unsupported",
    "by_status",
]


class Error(RuntimeError):
    """Any refusal or failure of the library."""


class InvalidArgument(Error, ValueError):
    """The call makes no sense; the message names the argument, its value and what is allowed."""


class Unsupported(Error, NotImplementedError):
    """The call makes sense, but this backend or device cannot do it."""


class OutOfMemory(Error, MemoryError):
    """The system refused memory or threads."""


class DeviceError(Error):
    """A driver failed; the message carries its words."""


class InternalError(Error):
    """A defect of the library."""


by_status: dict[int, type[Error]] = {
    1: InvalidArgument,
    2: Unsupported,
    3: OutOfMemory,
    4: DeviceError,
    5: InternalError,
}
