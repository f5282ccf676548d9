"""Who computes, and why: the choice of backend and the report of what this machine offers."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from . import _abi
from ._errors import InvalidArgument

# Names that ROCFLASH_BACKEND and `backend=` take, with the ABI's numbers.
BACKENDS = {"auto": 0, "cpu": 1, "reference": 2, "plain": 3, "standard": 4}
_MEANING = {
    "auto": "follows the device of the tensors",
    "cpu": "tiled, threaded, vectorised",
    "reference": "the definition in double precision; slow; also takes f64",
    "plain": "step by step in the dtype of q: the yardstick for errors",
    "standard": "materialises the scores; for comparisons",
}
# What other builds of flash_attn call the choice that is made here by the tensors' device.
_ALIASES = {"native": "auto", "": "auto"}

# Read once: a look into the environment would cost each call as much as describing a tensor.
_environment = os.environ.get("ROCFLASH_BACKEND", "")
# What set_backend chose for the process, by number.
_chosen: int | None = None
# What use_backend chose in this context, as (number, what it was before): a stack that contexts share
# but never change. Nobody looks into it before the first block of the process.
_blocks: ContextVar[Any] = ContextVar("rocflash_backend", default=None)
_has_blocks = False
# In place of a number: whatever the context says when the call runs. Only for operators in graphs.
FROM_CONTEXT = -1

_Function = TypeVar("_Function", bound=Callable[..., Any])


def number_of(name: str, source: str = "backend") -> int:
    """The ABI's number for a backend's name."""
    if isinstance(name, str):
        plain = name.strip().lower()
        plain = _ALIASES.get(plain, plain)
        if plain in BACKENDS:
            return BACKENDS[plain]
    allowed = ", ".join([*BACKENDS, "native"])
    raise InvalidArgument(f"{source}: {name!r}; allowed are {allowed}")


def _name_of(number: int) -> str:
    return next(name for name, n in BACKENDS.items() if n == number)


def backend() -> str:
    """The backend that calls use unless they name one.

    That of the innermost `use_backend` of this context, else `set_backend`'s, else ROCFLASH_BACKEND's.
    """
    return _name_of(current())


def current() -> int:
    """As `backend`, by the ABI's number."""
    if _has_blocks:
        block = _blocks.get()
        if block is not None:
            return block[0]
    if _chosen is not None:
        return _chosen
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


class use_backend:  # noqa: N801  (used as a function)
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


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _listed(query: str, kind: Any) -> Iterator[Any]:
    """The library's entries of a kind. Any refusal but that of an index past the last is raised."""
    index = 0
    while True:
        entry = kind()
        entry.clear()
        status = _abi.query(query, index, ctypes.byref(entry))
        if status:
            if not _abi.last_error().startswith("index:"):
                _abi.raise_status(status)
            return
        yield entry
        index += 1


def devices() -> list[dict[str, Any]]:
    """The devices that the library can run on."""
    types = {_abi.DL_CPU: "cpu", _abi.DL_CUDA: "cuda", _abi.DL_ROCM: "rocm"}
    return [
        {
            "type": types.get(device.device_type, str(device.device_type)),
            "index": device.device_id,
            "name": _text(device.name),
            "arch": _text(device.arch),
            "features": _text(device.features).split(),
            "units": device.units,
        }
        for device in _listed("rocflash_query_device", _abi.Device)
    ]


def drivers() -> list[dict[str, Any]]:
    """The GPU drivers that the library looked for, and what came of it."""
    return [
        {
            "name": _text(driver.name),
            "library": _text(driver.library),
            "reason": _text(driver.reason),
            "in_use": bool(driver.in_use),
        }
        for driver in _listed("rocflash_query_driver", _abi.Driver)
    ]


def targets() -> list[dict[str, str]]:
    """The GPU architectures that the library has kernels for, whatever this machine has."""
    names = ("arch", "family", "driver")
    return [
        {name: _text(getattr(target, name)) for name in names}
        for target in _listed("rocflash_query_target", _abi.Target)
    ]


def limits() -> dict[str, Any]:
    """What the library can do, whatever the device."""
    answer = _abi.Limits()
    answer.clear()
    status = _abi.query("rocflash_query_limits", ctypes.byref(answer))
    if status:
        _abi.raise_status(status)
    return {
        "max_head_dim": answer.max_head_dim,
        "has_backward": bool(answer.has_backward),
        "default_threads": answer.default_threads,
        "dropout_steps": answer.dropout_steps,
    }


class Info(dict[str, Any]):
    """The report of `info()`: a dictionary that prints as text."""

    def __str__(self) -> str:
        lines = [f"rocflash {self['version']}, library {self['library']}"]
        lines.append(f"backend: {self['backend']} ({self['why']})")
        for d in self["devices"]:
            lines.append(
                f"device: {d['type']}:{d['index']} {d['name']}, {d['arch']}, {d['units']} units"
            )
        for d in self["drivers"]:
            lines.append(f"driver: {d['name']}: {d['reason']}")
        archs = " ".join(t["arch"] for t in self["targets"])
        lines.append(f"GPU kernels: {archs or 'none, this library was built for the CPU alone'}")
        lines.append(f"limits: {', '.join(f'{k} {v}' for k, v in self['limits'].items())}")
        if self["torch"]:
            lines.append(f"torch: {self['torch']}")
        for name, words in self["environment"].items():
            lines.append(f"{name}: {words}")
        return "\n".join(lines)


def _triton_words() -> str:
    value = os.environ.get("FLASH_ATTENTION_TRITON_AMD_ENABLE")
    if value is None:
        return "not set; nothing here needs it"
    return (
        f"{value!r}; read and reported: this package has kernels of its own for every device, "
        "so it neither needs nor imports Triton"
    )


def info() -> Info:
    """What would run here, and why."""
    number = current()
    name = _name_of(number)
    if _blocks.get() is not None:
        source = "chosen by use_backend"
    elif _chosen is not None:
        source = "chosen by set_backend"
    elif _environment:
        source = f"chosen by ROCFLASH_BACKEND={_environment}"
    else:
        source = "the default"
    torch = sys.modules.get("torch")
    return Info(
        version=_text(_abi.library().rocflash_version()),
        library=str(_abi.library_path()),
        backend=name,
        why=f"{source}; {_MEANING[name]}",
        devices=devices(),
        drivers=drivers(),
        targets=targets(),
        limits=limits(),
        torch=None if torch is None else str(torch.__version__),
        environment={
            "FLASH_ATTENTION_TRITON_AMD_ENABLE": _triton_words(),
            "ROCFLASH_NUM_THREADS": os.environ.get("ROCFLASH_NUM_THREADS", "not set"),
        },
    )
