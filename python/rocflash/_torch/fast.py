"""The fast path: a C function that takes torch's tensor objects.

src/api/python.cpp implements it; this module passes it functions of the interpreter and of torch.
On GPUs it plans a call once per signature, gives runs torch's current stream, and takes their
workspace from torch's allocator. Calls that it declines go through plan.py, which runs or rejects
them with the right message. So do all calls if torch has no DLPack exchange table
(`__dlpack_c_exchange_api__`, from 2.10 on), if Python is not CPython, or if a profiler records
calls. Results are the same.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from ctypes import (
    PYFUNCTYPE,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor

from .._c import abi, frames, handles, shapes
from .._c.choice import LAST_OF_LIBRARY
from .._c.options import TENSORS
from . import plan, profiling
from .plan import threads

_FASTCALL = 0x80  # METH_FASTCALL
_MAX_TENSORS = 28


class _Prepared(ctypes.Structure):
    """The state of a bound function: a frame, and the layout of its arguments."""

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
        ("field_offset", c_int32 * _MAX_TENSORS),
        ("address_offset", c_int32 * _MAX_TENSORS),
        ("serial", c_uint64),
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
        ("release_gil", c_void_p),
        ("acquire_gil", c_void_p),
        ("bytes_of", c_void_p),
        ("item_of", c_void_p),
        ("is_instance", c_void_p),
        ("double_of", c_void_p),
        ("float_type", c_void_p),
    ]


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", c_char_p)]


_CONTIGUOUS = torch.contiguous_format
_empty, _empty_like = torch.empty, torch.empty_like
_NO_OTHERS = (None,) * (len(plan.GRADIENTS) - 3)  # gradients
_NO_RESULTS = (None,) * (len(plan.RESULTS) - 3)
_OPERATIONS = {"forward": 0, "infer": 1, "backward": 2, "decode": 3}
_NO_ROTARY = [None] * 3
_serials = itertools.count(1)

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
    """A function that binds the library's function to a prepared call, if Python and torch support
    it.
    """
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
    except (AttributeError, ValueError):  # another interpreter or torch
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
    except AttributeError:  # ROCFLASH_LIBRARY may be an older library
        return None
    function = ctypes.cast(library.rocflash_python_call, c_void_p)
    method = _Method(b"rocflash_python_call", function, _FASTCALL, None)
    # Never freed, since functions refer to it and may outlive this module.
    python.Py_IncRef(any_object(method))
    at = ctypes.addressof(method)
    return lambda prepared: make(at, prepared, None)


def _undecided(*_: Any) -> None:
    """Placeholder without a fast path: returns None, as for numbers that do not match."""


def _bind_first(prepared: bytearray) -> Function:
    """Opens the library on first use."""
    global _bind
    _bind = _start()
    return _bind(prepared) if _bind is not None else _undecided


_bind: Optional[Callable[[bytearray], Function]] = _bind_first
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    _bind = None


# Excluded: a seed is passed as numbers, and the others may have torch's negative bit, which is not
# checked here.
_NOT_TAKEN = {"rng_state", "alibi_slopes", "bias", "sinks"}


@lru_cache(maxsize=512, typed=True)  # as plan._numbers
def _prepared(call: str, threads: int, *numbers: Any) -> tuple[int, Function, tuple[Any, ...]]:
    """The function that runs `call` with these numeric options.

    The function takes q, k, v, a tuple of all options, and the call's own tensors in the order of
    plan.py, each given or None. It returns True if the call ran, False if it was declined, and None
    if the numbers are neither the identical objects, which are kept alive, nor equal floats.
    """
    assert _bind is not None
    checked = plan._numbers(*numbers)
    if checked.dropout_p or numbers[-1] > LAST_OF_LIBRARY:
        return threads, _undecided, numbers
    frame = frames.Frame(0, ctypes.sizeof(_Prepared))
    checked.write(frame, checked.threads or threads)
    slots = plan._CALLS[call]
    p = _Prepared.from_buffer(frame.memory)
    p.operation, p.numbers, p.options, p.count = (
        _OPERATIONS[call],
        len(numbers),
        TENSORS,
        len(slots),
    )
    for n, number in enumerate(numbers):
        p.number[n] = id(number)
    for n, slot in enumerate(slots):
        taken = slot.field not in _NOT_TAKEN
        p.field_offset[n] = 8 * slot.word - _Prepared.problem.offset if taken else -1
        p.address_offset[n] = 8 * handles.AT[slot.field] if taken else -1
    p.serial = next(_serials)
    return threads, _bind(frame.memory), numbers


_latest: dict[str, tuple[int, Function, tuple[Any, ...]]] = {}


def _done(
    call: str, q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...], own: tuple[Any, ...]
) -> bool:
    """Runs a call unless it is declined. The options are usually those of the preceding call."""
    n = threads()
    latest = _latest.get(call)
    if latest is not None and latest[0] == n:
        done = latest[1](q, k, v, o, *own)
        if done is not None:
            return done
    latest = _latest[call] = _prepared(call, n, *o[TENSORS:])
    return latest[1](q, k, v, (*o[:TENSORS], *latest[2]), *own)


# plan.py raises errors with messages.
_WRONG = (AttributeError, RuntimeError, TypeError, ValueError)


def _like(x: Tensor) -> Tensor:
    """A contiguous tensor like x; the query is cheaper than passing memory_format."""
    return _empty_like(x) if x.is_contiguous() else _empty_like(x, memory_format=_CONTIGUOUS)


def _fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the tensors have memory that the library may know, without torch's negative bit."""
    return (q.is_cpu or q.is_cuda) and not (q.is_neg() or k.is_neg() or v.is_neg())


def infer(q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...]) -> Optional[Tensor]:
    """`out`, or None if the fast path declines. For inference calls (see `route`)."""
    if _bind is None or profiling.enabled() or q.is_neg() or k.is_neg() or v.is_neg():
        return None
    if not q.is_cpu and not (q.is_cuda and q.shape[-1:] == v.shape[-1:]):
        return None
    try:
        # _like and _done inlined: their calls would cost 10% here.
        out = _empty_like(q) if q.is_contiguous() else _empty_like(q, memory_format=_CONTIGUOUS)
        latest = _latest.get("infer")
        if latest is not None and latest[0] == threads():
            done = latest[1](q, k, v, o, out, None, None)
            if done is not None:
                return out if done else None
        return out if _done("infer", q, k, v, o, (out, None, None)) else None
    except _WRONG:
        return None


def forward(
    q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...]
) -> Optional[tuple[Tensor, Tensor, None]]:
    """(out, lse, None), or None if the fast path declines."""
    try:
        if _bind is None or profiling.enabled() or not _fits(q, k, v):
            return None
        b, length, heads, _ = q.shape
        out = _like(q)
        lse = _empty(b, heads, length, dtype=torch.float32, device=q.device)
        return (out, lse, None) if _done("forward", q, k, v, o, (out, lse, None)) else None
    except _WRONG:
        return None


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: tuple[Any, ...],
    append: tuple[Optional[Tensor], ...],
    out: Optional[Tensor],
    want_lse: bool,
) -> Optional[tuple[Tensor, Any]]:
    """(out, lse), or None if the fast path declines, as it does with rotary embedding."""
    k_new, v_new, _, *rotary = append
    try:
        if _bind is None or profiling.enabled() or not _fits(q, k, v) or rotary != _NO_ROTARY:
            return None
        if any([x is not None and x.is_neg() for x in (k_new, v_new, out)]) or q.dim() not in (
            3,
            4,
        ):
            return None
        if out is None:
            same = q.shape[-1] == v.shape[-1]
            out = _like(q) if same else q.new_empty(shapes.out_shape(q.shape, v.shape))
        lse = None
        if want_lse:
            lse = _empty(shapes.lse_shape(q.shape), dtype=torch.float32, device=q.device)
        return (out, lse) if _done("decode", q, k, v, o, (*append, out, lse)) else None
    except _WRONG:
        return None


def backward(
    saved: tuple[Tensor, ...], o: tuple[Any, ...], wanted: tuple[bool, ...]
) -> Optional[tuple[Any, ...]]:
    """dq, dk, dv and None for the other gradients, or None if the fast path declines.

    `saved` is in the order of `Saved` in _c/options.py.
    """
    dout, q, k, v, out, lse, dlse = saved
    try:
        if _bind is None or True in wanted[3:] or profiling.enabled() or not _fits(q, k, v):
            return None
        if any([x is not None and x.is_neg() for x in (dout, out, lse, dlse)]):
            return None
        dq = _like(q) if wanted[0] else None
        dk = _like(k) if wanted[1] else None
        dv = _like(v) if wanted[2] else None
        done = _done("backward", q, k, v, o, (dout, out, lse, dlse, dq, dk, dv, *_NO_RESULTS))
        return (dq, dk, dv, *_NO_OTHERS) if done else None
    except _WRONG:
        return None
