"""One call of the library: its structs and its tensors' descriptions in one block of memory.

A frame is filled once and may then be called again and again: only what `words` is written to
changes, such as the tensors' addresses. Two calls at once need two frames.
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

# struct DLTensor, then its shape and strides right behind it, for each number of dimensions.
_HEADER = "QiiiBBHQQQ"
_DESCRIPTION = [Struct(f"{_HEADER}{2 * n}q") for n in range(9)]
_HEADER_SIZE = _DESCRIPTION[0].size
_INT64, _FLOAT = Struct("q"), Struct("f")

# A frame begins with the answer to a workspace query and what the problem's two pointers to numbers
# point at, so that null can still mean absent.
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
# Where each field lies in a frame, and how its value is written.
_FIELDS = {
    (kind, name): (_AT[kind] + getattr(kind, name).offset, Struct(_CODES[c_type]))
    for kind in _KINDS
    for name, c_type in kind._fields_
}
# Every struct is zero but for its size.
_BLANK = bytes(_STRUCTS) + b"".join(
    ctypes.sizeof(kind).to_bytes(8, sys.byteorder).ljust(ctypes.sizeof(kind), b"\0")
    for kind in _KINDS
)

# What can be called: the function, whose workspace query is named after it, and its arguments.
_CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "forward": ("rocflash_forward", (abi.Problem, abi.ForwardOutputs, abi.Execution)),
    # Forward that no backward will follow: scores may be summed in any order.
    "infer": ("rocflash_decode", (abi.Problem, None, abi.ForwardOutputs, abi.Execution)),
    "decode": (
        "rocflash_decode",
        (abi.Problem, abi.Append, abi.ForwardOutputs, abi.Execution),
    ),
    "backward": ("rocflash_backward", (abi.Problem, abi.BackwardTensors, abi.Execution)),
}


@cache
def _functions(call: str) -> tuple[Any, Any, list[Optional[int]]]:
    """What is called, its workspace query, and where in a frame their arguments lie."""
    name, structs = _CALLS[call]
    library = abi.library()
    offsets = [None if kind is None else _AT[kind] for kind in structs]
    return getattr(library, name), getattr(library, f"{name}_workspace"), offsets


def word_of(kind: Any, name: str) -> int:
    """Where a field of 64 bits lies in `Frame.words`."""
    return _FIELDS[kind, name][0] // 8


_STREAM, _SCRATCH, _SCRATCH_SIZE = (
    word_of(abi.Execution, name) for name in ("stream", "workspace", "workspace_size")
)


class Frame:
    """Memory for one call. Set fields, describe tensors, `prepare`, then `run`."""

    def __init__(self, tensors: int, least: int = 0) -> None:
        """`tensors` is how many will be described, `least` how many bytes there must be."""
        self.memory = bytearray(_BLANK)
        self._used = len(_BLANK)
        self.memory.extend(bytes(tensors * _DESCRIPTION[-1].size))
        self.memory.extend(bytes(max(0, least - len(self.memory))))
        self.words = memoryview(self.memory).cast("Q")  # from here on the memory cannot move
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def set(self, kind: Any, name: str, value: Any) -> None:
        at, code = _FIELDS[kind, name]
        self._write(at, code, name, value)

    def _write(self, at: int, code: Struct, name: str, value: Any) -> None:
        try:
            code.pack_into(self.memory, at, value)
        except (struct.error, OverflowError) as error:
            raise InvalidArgument(
                f"{name}: {value!r}; it must fit into {8 * code.size} bits"
            ) from error

    def describe(
        self,
        dtype: DlpackType,
        device: DlpackDevice,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        data: int = 0,
    ) -> int:
        """Describes a tensor and returns the word where its DLTensor begins, with `data`."""
        at, ndim = self._used, len(shape)
        sizes = self._base + at + _HEADER_SIZE
        if ndim > 8:  # the library refuses so many by name, and reads no size
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
        """Makes a field, given by its own word, point to what begins at another."""
        self.words[field] = self._base + 8 * word

    def set_window(self, left: int, right: int) -> None:
        for n, bound in enumerate((left, right)):
            self._write(_WINDOW + 8 * n, _INT64, "window", bound)
        self.point(word_of(abi.Problem, "window"), _WINDOW // 8)

    def set_scale(self, scale: float) -> None:
        self._write(_SCALE, _FLOAT, "softmax_scale", scale)
        self.point(word_of(abi.Problem, "softmax_scale"), _SCALE // 8)

    def prepare(self, call: str, keeps_need: bool = False) -> None:
        """Says what to call, and whether every run will need a workspace of the same size."""
        function, query, offsets = _functions(call)
        base = self._base
        addresses = [None if offset is None else base + offset for offset in offsets]
        self._call = partial(function, *addresses)
        self._query = partial(query, *addresses, base + _ANSWER)
        self._keeps_need = keeps_need
        self._needed: Optional[int] = None

    def need(self) -> int:
        """Asks for the workspace; that checks all that the call itself would check."""
        status = self._query()
        if status:
            abi.raise_status(status)
        return self.words[_ANSWER]

    def run(
        self,
        stream: int = 0,
        allocate: Optional[Callable[[int], int]] = None,
        as_ever: bool = True,
    ) -> None:
        """Calls the library, on a GPU's stream with scratch memory from `allocate`: bytes to address.

        What it allocates must stay until the call has returned; the stream's order does the rest. `as_ever`:
        a workspace of the size that is kept, if any, will do.
        """
        words, needed = self.words, self._needed if as_ever else None
        if needed is None:
            needed = self.need()
            if self._keeps_need and as_ever:
                self._needed = needed
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

    def combine(self, out_partial: int, lse_partial: int, out: int, lse: int) -> None:
        """Merges tensors, each given by the word where its description begins."""
        words = (out_partial, lse_partial, out, lse)
        self._answer(abi.library().rocflash_combine(*map(self._address, words), self._execution()))

    def rotate(self, words: tuple[Optional[int], ...], interleaved: bool, out: int) -> None:
        """Rotates; `words` are those of x, cos, sin, cu_seqlens and first, None where absent."""
        given = [None if word is None else self._address(word) for word in words]
        into = (self._address(out), self._execution())
        self._answer(abi.library().rocflash_rotate(*given, int(interleaved), *into))

    def _address(self, word: int) -> int:
        return self._base + 8 * word

    def _execution(self) -> int:
        return self._base + _AT[abi.Execution]

    @staticmethod
    def _answer(status: int) -> None:
        if status:
            abi.raise_status(status)
