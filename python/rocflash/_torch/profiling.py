"""Ranges of calls in profilers: operators of torch.profiler, and NVTX or ROCTX ranges.

Eager calls bypass torch's dispatcher, which records operators. Under torch.profiler (and
torch.autograd.profiler, emit_nvtx included) a call is recorded as `rocflash::forward`,
`rocflash::backward` or `rocflash::decode`, like the operators of these names in compiled graphs.
Processes that a profiler started, or that set ROCFLASH_PROFILER_RANGES=1, emit ranges of the same
names by NVTX, which is ROCTX in torch for ROCm. Otherwise a call costs one look at `enabled`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.autograd import profiler

from ..errors import InvalidArgument

_VARIABLE = "ROCFLASH_PROFILER_RANGES"
# What Nsight Systems, rocprofv3, and rocprof set for the processes that they start.
_TOOLS = (
    "NVTX_INJECTION64_PATH",
    "NSYS_PROFILING_SESSION_ID",
    "ROCP_TOOL_LIBRARIES",
    "ROCP_TOOL_LIB",
)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _wants_ranges() -> bool:
    chosen = os.environ.get(_VARIABLE, "")
    if chosen not in ("", "0", "1"):
        raise InvalidArgument(f"{_VARIABLE} is {chosen!r}; it must be 0 or 1")
    return chosen == "1" or (not chosen and any(os.environ.get(name) for name in _TOOLS))


ranges = _wants_ranges()
# torch 2.2 has no flag of the process, but one of the thread.
if hasattr(profiler, "_is_profiler_enabled"):

    def enabled() -> bool:
        return profiler._is_profiler_enabled or ranges

else:

    def enabled() -> bool:
        return torch._C._autograd._profiler_enabled() or ranges


_Recorded = getattr(torch._C._profiler, "_RecordFunctionFast", None) or profiler.record_function
_here = threading.local()


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Records the enclosed call as rocflash::`name`, unless it is part of an operator of that
    name.
    """
    full = f"rocflash::{name}"
    if getattr(_here, "operator", None) == full:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_Recorded(full))
        if ranges:
            stack.enter_context(_marked(full))
        yield


@contextmanager
def _marked(name: str) -> Iterator[None]:
    global ranges
    try:
        torch.cuda.nvtx.range_push(name)
    except RuntimeError:  # this torch has neither NVTX nor ROCTX
        ranges = False
        yield
        return
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def of_operator(name: str, function: _Function) -> _Function:
    """The implementation of an operator, which torch's dispatcher records by this qualified
    name.
    """

    @wraps(function)
    def call(*arguments: Any) -> Any:
        if not enabled():
            return function(*arguments)
        outer, _here.operator = getattr(_here, "operator", None), name
        try:
            return function(*arguments)
        finally:
            _here.operator = outer

    return call  # type: ignore[return-value]
