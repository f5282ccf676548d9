"""Who computes, and why: the choice of backend and the report of what this machine offers."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

_chosen: str | None = None
# Read once: a look into the environment would cost each call as much as describing a tensor.
_environment = os.environ.get("ROCFLASH_BACKEND", "")


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
    """The backend that calls use unless they name one: `set_backend`'s, else ROCFLASH_BACKEND's."""
    return _name_of(current())


def current() -> int:
    """As `backend`, by the ABI's number."""
    if _chosen is not None:
        return BACKENDS[_chosen]
    return number_of(_environment, "ROCFLASH_BACKEND") if _environment else 0


def set_backend(name: str | None) -> None:
    """Chooses the backend for the whole process; None returns the choice to ROCFLASH_BACKEND."""
    global _chosen
    _chosen = None if name is None else _name_of(number_of(name))


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Chooses a backend for a `with` block."""
    global _chosen
    before = _chosen
    set_backend(name)
    try:
        yield
    finally:
        _chosen = before


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def devices() -> list[dict[str, Any]]:
    """The devices that the library can run on."""
    found = []
    while True:
        device = _abi.Device()
        device.clear()
        if _abi.query("rocflash_query_device", len(found), ctypes.byref(device)):
            return found
        found.append(
            {
                "type": {_abi.DL_CPU: "cpu", _abi.DL_CUDA: "cuda", _abi.DL_ROCM: "rocm"}.get(
                    device.device_type, str(device.device_type)
                ),
                "index": device.device_id,
                "name": _text(device.name),
                "arch": _text(device.arch),
                "features": _text(device.features).split(),
                "units": device.units,
            }
        )


def drivers() -> list[dict[str, Any]]:
    """The GPU drivers that the library looked for, and what came of it."""
    found = []
    while True:
        driver = _abi.Driver()
        driver.clear()
        if _abi.query("rocflash_query_driver", len(found), ctypes.byref(driver)):
            return found
        found.append(
            {
                "name": _text(driver.name),
                "library": _text(driver.library),
                "reason": _text(driver.reason),
                "in_use": bool(driver.in_use),
            }
        )


def targets() -> list[dict[str, str]]:
    """The GPU architectures that the library has kernels for, whatever this machine has."""
    found: list[dict[str, str]] = []
    while True:
        target = _abi.Target()
        target.clear()
        if _abi.query("rocflash_query_target", len(found), ctypes.byref(target)):
            return found
        found.append({name: _text(getattr(target, name)) for name in ("arch", "family", "driver")})


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
    if _chosen is not None:
        source = "chosen by set_backend or use_backend"
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
