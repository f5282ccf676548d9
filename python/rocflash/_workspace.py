"""Scratch memory of calls on the CPU, kept from call to call.

Taking a workspace from the list is atomic, hence two threads, or a call inside a call, never share
one.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Optional

_STEP = 1 << 16
# What is larger goes back to the system after the call.
_KEPT = 64 << 20


class Workspace:
    """Page-aligned memory, real only where it was touched."""

    def __init__(self) -> None:
        self._memory: Optional[mmap.mmap] = None
        self.address = self.size = 0

    def grow(self, needed: int) -> None:
        self.release()
        size = -(-needed // _STEP) * _STEP
        try:
            self._memory = mmap.mmap(-1, size)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"workspace: {needed} bytes could not be had: {error}") from error
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.size = size

    def release(self) -> None:
        self._memory = None  # unmapped when the last reference goes
        self.address = self.size = 0


_free: list[Workspace] = []


def take(needed: int) -> Workspace:
    """One of at least this size that nobody else uses; hand it back with `give`."""
    try:
        workspace = _free.pop()
    except IndexError:
        workspace = Workspace()
    if needed > workspace.size:
        workspace.grow(needed)
    return workspace


def give(workspace: Workspace) -> None:
    if workspace.size > _KEPT:
        workspace.release()
    _free.append(workspace)
