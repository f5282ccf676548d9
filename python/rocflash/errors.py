"""The exceptions: one class per status of the C ABI.

Each one is a RuntimeError, as in flash_attn, and also the matching built-in exception, so that
``except ValueError`` works.
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
    """Any error of the library."""


class InvalidArgument(Error, ValueError):
    """An argument is invalid; the message names the argument, its value and what is allowed."""


class Unsupported(Error, NotImplementedError):
    """The call is valid, but this backend or device does not support it."""


class OutOfMemory(Error, MemoryError):
    """The system has no memory or threads left."""


class DeviceError(Error):
    """A driver call failed; the message has the driver's error."""


class InternalError(Error):
    """A bug in the library."""


by_status: dict[int, type[Error]] = {
    1: InvalidArgument,
    2: Unsupported,
    3: OutOfMemory,
    4: DeviceError,
    5: InternalError,
}
