"""One call of the library: its structs and its DLTensors in one block of memory.

A frame is filled once and then called repeatedly: only `words` that change are written, such as the
tensors' addresses. Concurrent calls need separate frames.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from functools import cache, partial
from struct import Struct
from typing import Any, Optional

from ..errors import InvalidArgument
from . import abi, workspace

DlpackType = tuple[int, int]  # code, bits
DlpackDevice = tuple[int, int]  # type, index

# struct DLTensor, followed by its shape and strides, per number of dimensions.
_HEADER = "QiiiBBHQQQ"
_DESCRIPTION = [Struct(f"{_HEADER}{2 * n}q") for n in range(9)]
_HEADER_SIZE = _DESCRIPTION[0].size
_INT64, _FLOAT = Struct("q"), Struct("f")

# A frame begins with the result of a workspace query and the targets of the problem's two pointers
# to numbers; null pointers mean absent.
_ANSWER, _WINDOW, _SCALE, _STRUCTS = 0, 8, 24, 32
_KINDS = (
    abi.Problem,
    abi.ForwardOutputs,
    abi.BackwardTensors,
    abi.Append,
    abi.Execution,
)
_AT = {kind: _STRUCTS + sum(ctypes.sizeof(k) for k in _KINDS[:n]) for n, kind in enumerate(_KINDS)}
_CODES = {
    abi.TensorPointer: "Q",
    abi.Flag: "i",
    ctypes.c_void_p: "Q",
    ctypes.c_uint64: "Q",
    ctypes.c_int64: "q",
    ctypes.c_int32: "i",
    ctypes.c_float: "f",
}
# The offset and the format of each field in a frame.
_FIELDS = {
    (kind, name): (_AT[kind] + getattr(kind, name).offset, Struct(_CODES[c_type]))
    for kind in _KINDS
    for name, c_type, *_ in kind._fields_
}
# Structs are zero except for their size.
_INITIAL = bytes(_STRUCTS) + b"".join(
    ctypes.sizeof(kind).to_bytes(8, sys.byteorder).ljust(ctypes.sizeof(kind), b"\0")
    for kind in _KINDS
)

# The operations: the function, whose workspace query has the same prefix, and its arguments.
_CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "forward": ("rocflash_forward", (abi.Problem, abi.ForwardOutputs, abi.Execution)),
    # Forward without backward: scores may be summed in any order.
    "infer": ("rocflash_infer", (abi.Problem, abi.ForwardOutputs, abi.Execution)),
    "decode": (
        "rocflash_decode",
        (abi.Problem, abi.Append, abi.ForwardOutputs, abi.Execution),
    ),
    "backward": ("rocflash_backward", (abi.Problem, abi.BackwardTensors, abi.Execution)),
}


@cache
def _functions(call: str) -> tuple[Any, Any, list[Optional[int]]]:
    """The functions, their workspace queries, and the offsets of their arguments in a frame."""
    name, structs = _CALLS[call]
    library = abi.library()
    offsets = [None if kind is None else _AT[kind] for kind in structs]
    return getattr(library, name), getattr(library, f"{name}_workspace"), offsets


def word_of(kind: Any, name: str) -> int:
    """The index of a 64-bit field in `Frame.words`."""
    return _FIELDS[kind, name][0] // 8


_STREAM, _SCRATCH, _SCRATCH_SIZE = (
    word_of(abi.Execution, name) for name in ("stream", "workspace", "workspace_size")
)


class Frame:
    """Memory for one call. Set fields, describe tensors, `prepare`, then `run`."""

    def __init__(self, tensors: int, least: int = 0) -> None:
        """`tensors` is the number of tensors to describe, `least` the minimum size in bytes."""
        self.memory = bytearray(_INITIAL)
        self._used = len(_INITIAL)
        self.memory.extend(bytes(tensors * _DESCRIPTION[-1].size))
        self.memory.extend(bytes(max(0, least - len(self.memory))))
        self.words = memoryview(self.memory).cast("Q")  # from here on the memory cannot be moved
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def set(self, kind: Any, name: str, value: Any) -> None:
        at, code = _FIELDS[kind, name]
        self._write(at, code, name, value)

    def _write(self, at: int, code: Struct, name: str, value: Any) -> None:
        try:
            code.pack_into(self.memory, at, value)
        except (struct.error, OverflowError) as error:
            raise InvalidArgument(
                f"{name} is {value!r}; it must fit into {8 * code.size} bits"
            ) from error

    def describe(
        self,
        dtype: DlpackType,
        device: DlpackDevice,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        data: int = 0,
    ) -> int:
        """Describes a tensor and returns the word of its DLTensor, which begins with `data`."""
        at, ndim = self._used, len(shape)
        sizes = self._base + at + _HEADER_SIZE
        if ndim > 8:  # the library rejects this rank without reading sizes
            shape = strides = ()
        description = _DESCRIPTION[len(shape)]
        description.pack_into(
            self.memory,
            at,
            data,
            *device,
            ndim,
            *dtype,
            1,
            sizes,
            sizes + 8 * ndim,
            0,
            *shape,
            *strides,
        )
        self._used = at + description.size
        return at // 8

    def point(self, field: int, word: int) -> None:
        """Makes the field at a word point to another word."""
        self.words[field] = self._base + 8 * word

    def set_window(self, left: int, right: int) -> None:
        for n, bound in enumerate((left, right)):
            self._write(_WINDOW + 8 * n, _INT64, "window", bound)
        self.point(word_of(abi.Problem, "window"), _WINDOW // 8)

    def set_scale(self, scale: float) -> None:
        self._write(_SCALE, _FLOAT, "softmax_scale", scale)
        self.point(word_of(abi.Problem, "softmax_scale"), _SCALE // 8)

    def creation(self, call: str) -> tuple[Any, list[Optional[int]]]:
        """The function that creates a plan of this call, and its arguments but for the last one."""
        name, structs = _CALLS[call]
        create = getattr(abi.library(), name.replace("rocflash_", "rocflash_plan_create_", 1))
        return create, [None if kind is None else self._base + _AT[kind] for kind in structs]

    def prepare(self, call: str) -> None:
        """Selects the operation."""
        function, query, offsets = _functions(call)
        base = self._base
        addresses = [None if offset is None else base + offset for offset in offsets]
        self._call = partial(function, *addresses)
        self._query = partial(query, *addresses, base + _ANSWER)

    def need(self) -> int:
        """Queries the workspace, which validates everything that the call validates."""
        status = self._query()
        if status:
            abi.raise_status(status)
        return self.words[_ANSWER]

    def run(self, stream: int = 0, allocate: Optional[Callable[[int], int]] = None) -> None:
        """Calls the library, on a GPU's stream with a workspace from `allocate`: bytes to address.

        The workspace must stay allocated until the call returns; stream order suffices afterwards.
        """
        words, needed = self.words, self.need()
        if allocate is not None:
            words[_STREAM] = stream
            words[_SCRATCH] = allocate(needed) if needed else 0
            words[_SCRATCH_SIZE] = needed
            status = self._call()
        else:
            scratch = workspace.take(needed)
            words[_SCRATCH] = scratch.address
            words[_SCRATCH_SIZE] = scratch.size
            status = self._call()
            workspace.give(scratch)
        if status:
            abi.raise_status(status)

    def explain(self, call: str, arch: Optional[str], units: int) -> str:
        """Kernel selection of an operation as JSON. The tensors' data may be null."""
        name, structs = _CALLS[call]
        arguments: list[Optional[int]] = [
            self._base + _AT[kind] for kind in structs if kind is not abi.Execution
        ]
        return self._explain(name, arguments, arch, units)

    def explain_combine(
        self, words: tuple[Optional[int], ...], arch: Optional[str], units: int
    ) -> str:
        """Likewise for combine; `words` are those of out_partial, lse_partial, out and lse."""
        return self._explain("rocflash_combine", self._addresses(words), arch, units)

    def explain_rotate(
        self,
        words: tuple[Optional[int], ...],
        interleaved: bool,
        out: int,
        arch: Optional[str],
        units: int,
    ) -> str:
        """Likewise for rotate, whose tensors are those of `rotate`."""
        arguments = [*self._addresses(words), int(interleaved), self._address(out)]
        return self._explain("rocflash_rotate", arguments, arch, units)

    def _explain(
        self, name: str, arguments: list[Optional[int]], arch: Optional[str], units: int
    ) -> str:
        function = getattr(abi.library(), f"{name}_explain")
        arch_text, size = None if arch is None else arch.encode(), ctypes.c_size_t()
        self._answer(function(*arguments, arch_text, units, None, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._answer(function(*arguments, arch_text, units, text, ctypes.byref(size)))
        return text.value.decode()

    def combine(self, out_partial: int, lse_partial: int, out: int, lse: int) -> None:
        """Combines tensors, each given by the word of its DLTensor."""
        words = (out_partial, lse_partial, out, lse)
        self._answer(abi.library().rocflash_combine(*map(self._address, words), self._execution()))

    def rotate(self, words: tuple[Optional[int], ...], interleaved: bool, out: int) -> None:
        """Rotary embedding; `words` are those of x, cos, sin, cu_seqlens and first, None if
        absent.
        """
        into = (self._address(out), self._execution())
        self._answer(
            abi.library().rocflash_rotate(*self._addresses(words), int(interleaved), *into)
        )

    def _address(self, word: int) -> int:
        return self._base + 8 * word

    def _addresses(self, words: tuple[Optional[int], ...]) -> list[Optional[int]]:
        return [None if word is None else self._address(word) for word in words]

    def _execution(self) -> int:
        return self._base + _AT[abi.Execution]

    @staticmethod
    def _answer(status: int) -> None:
        if status:
            abi.raise_status(status)
