"""The shortest way to the library: a function that takes torch's tensors as they are.

src/api/python.cpp has it, and is told here what it needs of this interpreter and of torch. It serves
calls on CPU tensors without options that are tensors. Whatever it declines goes by plan.py, which does
or refuses it with the right message; so does everything where torch has no table of C functions for others
(`__dlpack_c_exchange_api__`, from 2.10 on) or Python is not CPython. Results are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import PYFUNCTYPE, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor

from .._c import abi, frames
from .._c.choice import LAST_OF_LIBRARY
from .._c.options import TENSORS
from . import plan
from .plan import threads

_FASTCALL = 0x80  # METH_FASTCALL


class _Prepared(ctypes.Structure):
    """What a function is bound to: a frame, and what it has to know of the arguments."""

    _fields_ = [
        ("answer", c_size_t),
        ("window", c_int64 * 2),
        ("scale", c_double),
        ("problem", abi.Problem),
        ("outputs", abi.ForwardOutputs),
        ("tensors", abi.BackwardTensors),
        ("append", abi.Append),
        ("execution", abi.Execution),
        ("number", c_void_p * 16),
        ("operation", c_int32),
        ("numbers", c_int32),
        ("options", c_int32),
        ("count", c_int32),
        ("field_offset", c_int32 * 24),
    ]


class _Interpreter(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("prepared_size", c_size_t),
        ("exchange", c_void_p),
        ("none", c_void_p),
        ("done", c_void_p),
        ("declined", c_void_p),
        ("retain", c_void_p),
        ("let_others_run", c_void_p),
        ("go_on", c_void_p),
        ("bytes_of", c_void_p),
        ("item_of", c_void_p),
        ("is_instance", c_void_p),
        ("double_of", c_void_p),
        ("float_type", c_void_p),
    ]


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", c_char_p)]


_CPU, _CONTIGUOUS = torch.device("cpu"), torch.contiguous_format
_empty, _empty_like = torch.empty, torch.empty_like
_NO_OTHERS = (None,) * (len(plan.GRADIENTS) - 3)
_OPERATIONS = {"forward": 0, "infer": 1, "backward": 2}

_BORROWED = (
    "Py_IncRef",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyByteArray_AsString",
    "PyTuple_GetItem",
    "PyObject_IsInstance",
    "PyFloat_AsDouble",
)

Function = Callable[..., Any]


def _start() -> Optional[Callable[[bytearray], Function]]:
    """What binds the library's function to a prepared call, if this Python and this torch allow it."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    python = getattr(ctypes, "pythonapi", None)
    if capsule is None or python is None:
        return None
    any_object = ctypes.py_object
    try:
        borrowed = [ctypes.cast(getattr(python, name), c_void_p) for name in _BORROWED]
        pointer_in = PYFUNCTYPE(c_void_p, any_object, c_char_p)(("PyCapsule_GetPointer", python))
        make = PYFUNCTYPE(any_object, c_void_p, any_object, any_object)(
            ("PyCFunction_NewEx", python)
        )
        table = pointer_in(capsule, b"dlpack_exchange_api")
    except (AttributeError, ValueError):  # an interpreter or a torch that has others
        return None
    interpreter = _Interpreter(
        ctypes.sizeof(_Interpreter),
        ctypes.sizeof(_Prepared),
        table,
        *map(id, (None, True, False)),
        *borrowed,
        id(float),
    )
    library = abi.library()
    try:
        library.rocflash_python_start.restype = c_int32
        if library.rocflash_python_start(ctypes.byref(interpreter)):
            return None
    except AttributeError:  # a library that ROCFLASH_LIBRARY names may be older
        return None
    function = ctypes.cast(library.rocflash_python_call, c_void_p)
    method = _Method(b"rocflash_python_call", function, _FASTCALL, None)
    # Functions refer to it, and may outlive all else of this module: it is never freed.
    python.Py_IncRef(any_object(method))
    at = ctypes.addressof(method)
    return lambda prepared: make(at, prepared, None)


def _of_no_numbers(*_: Any) -> None:
    """In place of a function where there is none: says that it is not for these numbers, or any."""


def _bind_first(prepared: bytearray) -> Function:
    """Opens the library, which is left until it is needed."""
    global _bind
    _bind = _start()
    return _bind(prepared) if _bind is not None else _of_no_numbers


_bind: Optional[Callable[[bytearray], Function]] = _bind_first
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    _bind = None


# Not these: a seed goes as numbers, and of those that may have the negative bit nobody asks.
_NOT_TAKEN = {"rng_state", "alibi_slopes", "bias", "sinks"}


@lru_cache(maxsize=512, typed=True)  # as plan._numbers
def _prepared(call: str, threads: int, *numbers: Any) -> tuple[int, Function, tuple[Any, ...]]:
    """What runs `call` with these options that are numbers.

    The function takes q, k, v, a tuple of all options, and the call's own tensors in the order of
    plan.py, each given or None. It returns True when it was done, False when it was not, and None
    when the numbers are neither these very objects, which are therefore kept, nor equal floats.
    """
    assert _bind is not None
    checked = plan._numbers(*numbers)
    if checked.dropout_p or numbers[-1] > LAST_OF_LIBRARY:
        return threads, _of_no_numbers, numbers
    frame = frames.Frame(0, ctypes.sizeof(_Prepared))
    checked.write(frame, checked.threads or threads)
    slots = plan._CALLS[call]
    p = _Prepared.from_buffer(frame.memory)
    p.operation, p.numbers, p.options, p.count = _OPERATIONS[call], len(numbers), TENSORS, len(slots)
    for n, number in enumerate(numbers):
        p.number[n] = id(number)
    for n, slot in enumerate(slots):
        taken = slot.field not in _NOT_TAKEN
        p.field_offset[n] = 8 * slot.word - _Prepared.problem.offset if taken else -1
    return threads, _bind(frame.memory), numbers


_latest: dict[str, tuple[int, Function, tuple[Any, ...]]] = {}


def _done(call: str, q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...], *own: Any) -> bool:
    """Runs a call unless it is declined. Its options are mostly those of the last one."""
    n = threads()
    latest = _latest.get(call)
    if latest is not None and latest[0] == n:
        done = latest[1](q, k, v, o, *own)
        if done is not None:
            return done
    latest = _latest[call] = _prepared(call, n, *o[TENSORS:])
    return latest[1](q, k, v, (*o[:TENSORS], *latest[2]), *own)


# What goes wrong here is left to plan.py, which has the words for it.
_WRONG = (AttributeError, RuntimeError, TypeError, ValueError)


def _like(x: Tensor) -> Tensor:
    """Memory for what is shaped like x, contiguous; saying so costs more than asking."""
    return _empty_like(x) if x.is_contiguous() else _empty_like(x, memory_format=_CONTIGUOUS)


def _fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the library could take them; of the negative bit, it is not told."""
    return q.is_cpu and not (q.is_neg() or k.is_neg() or v.is_neg())


def infer(q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...]) -> Optional[Tensor]:
    """`out`, or None where this way cannot be taken. For calls that `route` lets infer."""
    if _bind is None or not q.is_cpu or q.is_neg() or k.is_neg() or v.is_neg():
        return None
    try:
        # As _like and _done, whose calls would cost a tenth here.
        out = _empty_like(q) if q.is_contiguous() else _empty_like(q, memory_format=_CONTIGUOUS)
        latest = _latest.get("infer")
        if latest is not None and latest[0] == threads():
            done = latest[1](q, k, v, o, out, None, None)
            if done is not None:
                return out if done else None
        return out if _done("infer", q, k, v, o, out, None, None) else None
    except _WRONG:
        return None


def forward(
    q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...]
) -> Optional[tuple[Tensor, Tensor, None]]:
    """(out, lse, None), or None where this way cannot be taken."""
    try:
        if _bind is None or not _fits(q, k, v):
            return None
        b, length, heads, _ = q.shape
        out = _like(q)
        lse = _empty(b, heads, length, dtype=torch.float32, device=_CPU)
        return (out, lse, None) if _done("forward", q, k, v, o, out, lse, None) else None
    except _WRONG:
        return None


def backward(
    saved: tuple[Tensor, ...], o: tuple[Any, ...], wanted: tuple[bool, ...]
) -> Optional[tuple[Any, ...]]:
    """dq, dk, dv and None for the other gradients, or None where this way cannot be taken.

    What is `saved` is in the order of `Saved` in _c/options.py.
    """
    dout, q, k, v, out, lse = saved
    try:
        if _bind is None or True in wanted[3:] or not _fits(q, k, v):
            return None
        if dout.is_neg() or out.is_neg() or lse.is_neg():
            return None
        dq = _like(q) if wanted[0] else None
        dk = _like(k) if wanted[1] else None
        dv = _like(v) if wanted[2] else None
        done = _done("backward", q, k, v, o, dout, out, lse, dq, dk, dv, *_NO_OTHERS)
        return (dq, dk, dv, *_NO_OTHERS) if done else None
    except _WRONG:
        return None
