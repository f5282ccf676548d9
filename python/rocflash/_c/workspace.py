"""Scratch memory of calls on the CPU, kept from call to call.

Taking a workspace from the list is atomic, hence two threads, or a call inside a call, never share
one. Neither do two processes: the memory is private, so a fork copies what either side writes, and the
child starts with an empty list, so that it never pays for copies of pages it does not need.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Optional

_STEP = 1 << 16
# What is larger goes back to the system after the call.
_KEPT = 64 << 20
# Not mmap's default, which is MAP_SHARED: a forked child would write into its parent's calls.
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Workspace:
    """Page-aligned memory, real only where it was touched."""

    def __init__(self) -> None:
        self._memory: Optional[mmap.mmap] = None
        self.address = self.size = 0

    def grow(self, needed: int) -> None:
        self.release()
        size = -(-needed // _STEP) * _STEP
        try:
            self._memory = mmap.mmap(-1, size, flags=_PRIVATE)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"workspace: {needed} bytes could not be had: {error}") from error
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.size = size

    def release(self) -> None:
        self._memory = None  # unmapped when the last reference goes
        self.address = self.size = 0


_free: list[Workspace] = []
os.register_at_fork(after_in_child=_free.clear)


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
