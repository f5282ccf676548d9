"""Workspaces of calls on the CPU, cached between calls.

Taking a workspace from the list is atomic, hence two threads, or nested calls, never share one.
Neither do two processes: the memory is private, and a forked child starts with an empty list, so
that it causes no copy-on-write of pages that it does not use.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Optional

_STEP = 1 << 16
# Larger workspaces are unmapped after the call.
_KEPT = 64 << 20
# Not mmap's default MAP_SHARED, with which a forked child would write to its parent's workspaces.
# Windows has neither: memory without a name is private there.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name != "nt" else {}


class Workspace:
    """Page-aligned memory that is resident only where it was accessed."""

    def __init__(self) -> None:
        self._memory: Optional[mmap.mmap] = None
        self.address = self.size = 0

    def grow(self, needed: int) -> None:
        self.release()
        size = -(-needed // _STEP) * _STEP
        try:
            self._memory = mmap.mmap(-1, size, **_PRIVATE)
        except (OSError, OverflowError) as error:
            raise MemoryError(
                f"workspace of {needed} bytes cannot be allocated: {error}"
            ) from error
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.size = size

    def release(self) -> None:
        self._memory = None  # unmapped when the last reference goes
        self.address = self.size = 0


_free: list[Workspace] = []
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_free.clear)


def take(needed: int) -> Workspace:
    """A workspace of at least this size that no other call uses; return it with `give`."""
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
