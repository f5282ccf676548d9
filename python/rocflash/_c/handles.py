"""Plan handles: calls that the library validates and plans once, and then runs on other addresses.

A handle is immutable, so threads share it. A `Run` has the arguments of one run at a time. The
memory of
both is private to a process: a forked child has copies.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

from . import abi, frames

# The index of each field in `Run.words`.
AT = {name: getattr(abi.PlanArguments, name).offset // 8 for name, *_ in abi.PlanArguments._fields_}
_SIZE = ctypes.sizeof(abi.PlanArguments)


class Handle:
    """Owns a rocflash_plan."""

    def __init__(self, call: str, frame: frames.Frame) -> None:
        """Plans the call of a frame, whose tensors' data may be null."""
        library = abi.library()
        self._destroy = library.rocflash_plan_destroy
        self.pointer = 0
        answer = ctypes.c_void_p()
        create, addresses = frame.creation(call)
        status = create(*addresses, ctypes.addressof(answer))
        if status:
            abi.raise_status(status)
        self.pointer = answer.value or 0
        needed = ctypes.c_size_t()
        status = library.rocflash_plan_workspace(self.pointer, ctypes.addressof(needed))
        if status:
            abi.raise_status(status)
        self.workspace = needed.value

    def __del__(self) -> None:
        self._destroy(self.pointer)  # null is allowed


class Run:
    """Runs a handle; `words` are the fields of its arguments."""

    def __init__(self, handle: Handle) -> None:
        self._memory = bytearray(_SIZE)
        self.words = memoryview(self._memory).cast("Q")
        self.words[0] = _SIZE
        self.workspace = handle.workspace
        self._handle = handle  # alive as long as it may be run
        at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.call: Any = partial(abi.library().rocflash_plan_run, handle.pointer, at)
