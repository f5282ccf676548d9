"""One call of the library: its structs, its tensors' descriptions and its workspace.

Frames are reused through a free list, so a call allocates nothing but its outputs. Taking a frame
from the list is atomic, hence two threads, or a call inside a call, never share one.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from struct import Struct
from typing import Any, Optional

from . import _abi

# struct DLTensor, then its shape and strides right behind it, for each number of dimensions.
_HEADER = "QiiiBBHQQQ"
_DESCRIPTION = [Struct(f"{_HEADER}{2 * n}q") for n in range(9)]
_HEADER_SIZE = Struct(_HEADER).size
_SLOT = _DESCRIPTION[-1].size
_MAX_TENSORS = 24
_WORKSPACE_STEP = 1 << 16
# Scratch beyond this goes back to the system after the call.
_WORKSPACE_KEPT = 64 << 20

DlpackType = tuple[int, int]  # code, bits
DlpackDevice = tuple[int, int]  # type, index


_KINDS = (
    _abi.Problem,
    _abi.ForwardOutputs,
    _abi.BackwardTensors,
    _abi.Append,
    _abi.Execution,
)
_OFFSETS = [sum(ctypes.sizeof(kind) for kind in _KINDS[:n]) for n in range(len(_KINDS))]
_BLANK_SIZE = sum(ctypes.sizeof(kind) for kind in _KINDS)
# Each struct zero but for its size.
_BLANK = b"".join(
    ctypes.sizeof(kind).to_bytes(8, sys.byteorder).ljust(ctypes.sizeof(kind), b"\0")
    for kind in _KINDS
)


class Frame:
    """Memory for one call. Call `begin`, describe tensors, then `forward` or `backward`."""

    def __init__(self) -> None:
        # The structs lie in one block, so that one copy makes them blank.
        self._structs = ctypes.create_string_buffer(_BLANK_SIZE)
        self._structs_address = ctypes.addressof(self._structs)
        parts = [kind.from_buffer(self._structs, at) for kind, at in zip(_KINDS, _OFFSETS)]
        self.problem, self.outputs, self.gradients, self.append, self.execution = parts
        self._addresses = [ctypes.addressof(part) for part in parts]
        self._window = (ctypes.c_int64 * 2)()
        self._scale = ctypes.c_float()
        self._needed = ctypes.c_size_t()
        self._needed_address = ctypes.addressof(self._needed)
        self._slots = ctypes.create_string_buffer(_SLOT * _MAX_TENSORS)
        self._base = ctypes.addressof(self._slots)
        self._used = 0
        self._workspace: mmap.mmap | None = None
        self._workspace_address = 0
        self._workspace_size = 0
        self._allocate: Optional[Callable[[int], int]] = None

    def begin(self, backend: int, num_threads: int) -> None:
        self._used = 0
        self._allocate = None
        ctypes.memmove(self._structs_address, _BLANK, _BLANK_SIZE)
        execution = self.execution
        if backend:
            execution.backend = backend
        execution.num_threads = num_threads

    def on_gpu(self, stream: int, allocate: Callable[[int], int]) -> None:
        """The call goes to this stream, with scratch memory from `allocate`: bytes to address.

        What it allocates must stay until the call has returned; the stream's order does the rest.
        """
        self.execution.stream = stream or None
        self._allocate = allocate

    def tensor(
        self,
        data: int,
        dtype: DlpackType,
        device: DlpackDevice,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> int:
        """Describes a tensor and returns the address of its DLTensor."""
        ndim = len(shape)
        offset = self._used
        self._used = offset + _SLOT
        address = self._base + offset
        sizes = address + _HEADER_SIZE
        if ndim > 8:  # the library refuses so many by name, and reads no size
            shape = strides = ()
        _DESCRIPTION[len(shape)].pack_into(
            self._slots,
            offset,
            data,
            device[0],
            device[1],
            ndim,
            dtype[0],
            dtype[1],
            1,
            sizes,
            sizes + 8 * ndim,
            0,
            *shape,
            *strides,
        )
        return address

    def set_window(self, side: int, bound: int) -> None:
        """Bounds the left (0) or right (1) side; the other stays as it is, unbounded at first."""
        if not self.problem.window:
            self._window[1 - side] = -1
            self.problem.window = ctypes.addressof(self._window)
        self._window[side] = bound

    def set_scale(self, scale: float) -> None:
        self._scale.value = scale
        self.problem.softmax_scale = ctypes.addressof(self._scale)

    def forward(self) -> None:
        lib = _abi.library()
        problem, outputs, _, _, execution = self._addresses
        arguments = (problem, outputs, execution)
        self._run(lib.rocflash_forward_workspace, lib.rocflash_forward, arguments)

    def infer(self) -> None:
        """Forward that no backward will follow: scores may be summed in any order."""
        lib = _abi.library()
        problem, outputs, _, _, execution = self._addresses
        arguments = (problem, None, outputs, execution)
        self._run(lib.rocflash_decode_workspace, lib.rocflash_decode, arguments)

    def decode(self) -> None:
        lib = _abi.library()
        problem, outputs, _, append, execution = self._addresses
        arguments = (problem, append, outputs, execution)
        self._run(lib.rocflash_decode_workspace, lib.rocflash_decode, arguments)

    def backward(self) -> None:
        lib = _abi.library()
        problem, _, gradients, _, execution = self._addresses
        arguments = (problem, gradients, execution)
        self._run(lib.rocflash_backward_workspace, lib.rocflash_backward, arguments)

    def combine(self, out_partial: int, lse_partial: int, out: int, lse: int) -> None:
        status = _abi.library().rocflash_combine(
            out_partial, lse_partial, out, lse, self._addresses[-1]
        )
        if status:
            _abi.raise_status(status)

    def _run(
        self,
        query: Callable[..., int],
        call: Callable[..., int],
        arguments: tuple[Optional[int], ...],
    ) -> None:
        # Asking each time costs a microsecond, less than remembering the answers would.
        status = query(*arguments, self._needed_address)
        if status:
            _abi.raise_status(status)
        needed = self._needed.value
        if self._allocate is not None:
            self.execution.workspace = self._allocate(needed) if needed else None
            self.execution.workspace_size = needed
        else:
            if needed > self._workspace_size:
                self._grow(needed)
            self.execution.workspace = self._workspace_address
            self.execution.workspace_size = self._workspace_size
        status = call(*arguments)
        if status:
            _abi.raise_status(status)

    def _grow(self, needed: int) -> None:
        self.release_workspace()
        size = -(-needed // _WORKSPACE_STEP) * _WORKSPACE_STEP
        try:
            self._workspace = mmap.mmap(-1, size)  # page-aligned, and real only where touched
        except (OSError, OverflowError) as error:
            raise MemoryError(f"workspace: {needed} bytes could not be had: {error}") from error
        self._workspace_address = ctypes.addressof(ctypes.c_char.from_buffer(self._workspace))
        self._workspace_size = size

    def release_workspace(self) -> None:
        self._workspace = None  # unmapped when the last reference goes
        self._workspace_address = self._workspace_size = 0

    @property
    def keeps_too_much(self) -> bool:
        return self._workspace_size > _WORKSPACE_KEPT


_free: list[Frame] = []


def take() -> Frame:
    """A frame that nobody else uses; hand it back with `give`."""
    try:
        return _free.pop()
    except IndexError:
        return Frame()


def give(frame: Frame) -> None:
    frame._allocate = None  # lets go of the GPU's scratch memory
    if frame.keeps_too_much:
        frame.release_workspace()
    _free.append(frame)


def query(name: str, *arguments: Any) -> int:
    """Calls one of the library's query functions and returns its status."""
    return int(getattr(_abi.library(), name)(*arguments))
