"""Backend selection: per call, per context and for the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from ..errors import InvalidArgument

# Names for ROCFLASH_BACKEND and `backend=`: the library's, with the ABI's numbers, and those of
# `_backends`.
OF_LIBRARY = {"auto": 0, "cpu": 1, "reference": 2, "naive": 3, "standard": 4}
LAST_OF_LIBRARY = max(OF_LIBRARY.values())
BACKENDS = {**OF_LIBRARY, "triton": 64, "ck": 65}
# Aliases: `native` is the name of auto in other builds of flash_attn; `plain` is a former name of
# naive.
_ALIASES = {"native": "auto", "": "auto", "plain": "naive"}

# Read once: reading the environment costs as much as describing a tensor.
_environment = os.environ.get("ROCFLASH_BACKEND", "")
_variable = "ROCFLASH_BACKEND"
# The variable of other flash_attn builds for AMD GPUs; ROCFLASH_BACKEND takes precedence.
TRITON_VARIABLE = "FLASH_ATTENTION_TRITON_AMD_ENABLE"
if not _environment and os.environ.get(TRITON_VARIABLE, "").strip().upper() in ("TRUE", "1"):
    _environment, _variable = "triton", TRITON_VARIABLE
# The backend number of set_backend, for the process.
_chosen: int | None = None
# The backend of use_backend in this context, as (number, previous entry): an immutable linked stack
# that contexts share. It is not read before the first block of the process.
_blocks: ContextVar[Any] = ContextVar("rocflash_backend", default=None)
_has_blocks = False
# A placeholder: the context's backend when the call runs. Only for operators in graphs.
FROM_CONTEXT = -1


def _of_this_build() -> str:
    """The default backend of this wheel (packaging/wheel.py); empty except for wheels named
    triton.
    """
    try:
        from ._stamp import BACKEND  # type: ignore[import-not-found]
    except ImportError:
        return ""
    switched_off = os.environ.get("FLASH_ATTENTION_TRITON_AMD_ENABLE", "").strip().upper()
    return "" if BACKEND == "triton" and switched_off in ("FALSE", "0") else BACKEND


_built = _of_this_build()

_Function = TypeVar("_Function", bound=Callable[..., Any])


def number_of(name: str, source: str = "backend") -> int:
    """The ABI's number for a backend's name."""
    if isinstance(name, str):
        spelled = name.strip().lower()
        spelled = _ALIASES.get(spelled, spelled)
        if spelled in BACKENDS:
            return BACKENDS[spelled]
    allowed = ", ".join([*BACKENDS, *filter(None, _ALIASES)])
    raise InvalidArgument(f"{source} is {name!r}; allowed are {allowed}")


def name_of(number: int) -> str:
    for name, n in BACKENDS.items():
        if n == number:
            return name
    allowed = ", ".join(f"{n} ({name})" for name, n in BACKENDS.items())
    raise InvalidArgument(
        f"backend is {number}; it must be {allowed} or {FROM_CONTEXT} (the context's)"
    )


def backend() -> str:
    """The backend of calls that do not name one.

    That of the innermost `use_backend` of this context, else `set_backend`'s, else
    ROCFLASH_BACKEND's, else triton where FLASH_ATTENTION_TRITON_AMD_ENABLE is TRUE.
    """
    return name_of(current())


def current() -> int:
    """`backend` as the ABI's number."""
    if _has_blocks:
        block = _blocks.get()
        if block is not None:
            return block[0]
    if _chosen is not None:
        return _chosen
    if not _environment and _built:
        return number_of(_built, "rocflash/_c/_stamp.py")
    return number_of(_environment, "ROCFLASH_BACKEND") if _environment else 0


# Whether torch's compiler traces this code; set by the torch modules.
compiling: Callable[[], bool] = lambda: False  # noqa: E731


def for_operator() -> int:
    """`current` for calls that may become operators of a graph that torch compiles.

    A compiler guards globals, and recompiles when they change, but not contexts. The operator
    therefore reads the context when it runs.
    """
    return FROM_CONTEXT if _has_blocks and compiling() else current()


def set_backend(name: str | None) -> None:
    """Selects the backend for the process. It does not affect a `use_backend` block.

    name: one of the names of `backend`; None restores the selection by ROCFLASH_BACKEND.
    """
    global _chosen
    _chosen = None if name is None else number_of(name)


class use_backend:
    """Selects a backend for a `with` block, or for a decorated function.

    It applies only to this context: other threads and asyncio tasks are not affected, and tasks
    started inside inherit it. Backward uses the backend of forward, in whichever thread autograd
    runs it.
    """

    def __init__(self, name: str) -> None:
        self._number = number_of(name)

    def __enter__(self) -> None:
        global _has_blocks
        _has_blocks = True
        _blocks.set((self._number, _blocks.get()))

    def __exit__(self, *_: object) -> None:
        block = _blocks.get()
        if block is not None:  # or it was entered in another context, which has it still
            _blocks.set(block[1])

    def __call__(self, function: _Function) -> _Function:
        import inspect

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"use_backend decorates {function.__qualname__}, a generator, which runs in its "
                "callers' "
                "contexts; it must decorate a function, or the generator's calls must have backend="
            )
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def within(*arguments: Any, **named: Any) -> Any:
                with self:
                    return await function(*arguments, **named)

        else:

            @wraps(function)
            def within(*arguments: Any, **named: Any) -> Any:
                with self:
                    return function(*arguments, **named)

        return within  # type: ignore[return-value]


def source() -> str:
    """The origin of the backend that `current` returns."""
    if _blocks.get() is not None:
        return "chosen by use_backend"
    if _chosen is not None:
        return "chosen by set_backend"
    if _environment:
        return f"chosen by {_variable}={os.environ.get(_variable, _environment)}"
    return "the default of this build" if _built else "the default"
