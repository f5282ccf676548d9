"""Who computes: the choice of backend, for a call, a context and the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from ..errors import InvalidArgument

# Names that ROCFLASH_BACKEND and `backend=` take: the library's, with the ABI's numbers, and those of `_backends`.
OF_LIBRARY = {"auto": 0, "cpu": 1, "reference": 2, "plain": 3, "standard": 4}
LAST_OF_LIBRARY = max(OF_LIBRARY.values())
BACKENDS = {**OF_LIBRARY, "triton": 64, "ck": 65}
# What other builds of flash_attn call the choice that is made here by the tensors' device.
_ALIASES = {"native": "auto", "": "auto"}

# Read once: a look into the environment would cost each call as much as describing a tensor.
_environment = os.environ.get("ROCFLASH_BACKEND", "")
_variable = "ROCFLASH_BACKEND"
# What other builds of flash_attn for AMD GPUs read; ROCFLASH_BACKEND wins over it.
TRITON_VARIABLE = "FLASH_ATTENTION_TRITON_AMD_ENABLE"
if not _environment and os.environ.get(TRITON_VARIABLE, "").strip().upper() in ("TRUE", "1"):
    _environment, _variable = "triton", TRITON_VARIABLE
# What set_backend chose for the process, by number.
_chosen: int | None = None
# What use_backend chose in this context, as (number, what it was before): a stack that contexts share
# but never change. Nobody looks into it before the first block of the process.
_blocks: ContextVar[Any] = ContextVar("rocflash_backend", default=None)
_has_blocks = False
# In place of a number: whatever the context says when the call runs. Only for operators in graphs.
FROM_CONTEXT = -1


def _of_this_build() -> str:
    """The backend that this wheel was built to prefer (packaging/wheel.py); empty for all but those named triton."""
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
    allowed = ", ".join([*BACKENDS, "native"])
    raise InvalidArgument(f"{source}: {name!r}; allowed are {allowed}")


def name_of(number: int) -> str:
    return next(name for name, n in BACKENDS.items() if n == number)


def backend() -> str:
    """The backend that calls use unless they name one.

    That of the innermost `use_backend` of this context, else `set_backend`'s, else ROCFLASH_BACKEND's, else
    triton where FLASH_ATTENTION_TRITON_AMD_ENABLE is TRUE.
    """
    return name_of(current())


def current() -> int:
    """As `backend`, by the ABI's number."""
    if _has_blocks:
        block = _blocks.get()
        if block is not None:
            return block[0]
    if _chosen is not None:
        return _chosen
    if not _environment and _built:
        return number_of(_built, "rocflash/_c/_stamp.py")
    return number_of(_environment, "ROCFLASH_BACKEND") if _environment else 0


# Whether torch's compiler traces this code; the torch side knows.
compiling: Callable[[], bool] = lambda: False  # noqa: E731


def for_operator() -> int:
    """As `current`, for calls that may become operators of a graph that torch compiles.

    A compiler guards globals, so that a graph is made anew when they change, but not a context. The
    operator asks that when it runs.
    """
    return FROM_CONTEXT if _has_blocks and compiling() else current()


def set_backend(name: str | None) -> None:
    """Chooses the backend for the whole process; None returns the choice to ROCFLASH_BACKEND.

    A `use_backend` block keeps its own choice.
    """
    global _chosen
    _chosen = None if name is None else number_of(name)


class use_backend:
    """Chooses a backend for a `with` block, or for a function that it decorates.

    The choice holds in this context alone: other threads and other asyncio tasks do not see it, tasks
    that are started inside inherit it. Gradients are computed by the backend that computed forward,
    wherever autograd runs them.
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
                f"use_backend: {function.__qualname__} is a generator, which runs in its callers' "
                "contexts; it must be a function, or name the backend in its calls"
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
    """Who made the choice that `current` answers with."""
    if _blocks.get() is not None:
        return "chosen by use_backend"
    if _chosen is not None:
        return "chosen by set_backend"
    if _environment:
        return f"chosen by {_variable}={os.environ.get(_variable, _environment)}"
    return "the default of this build" if _built else "the default"
