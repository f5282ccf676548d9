"""The capabilities of this machine and this library, and which backend is selected."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._c import abi, choice
from .._c.capabilities import capabilities, text_of

_MEANING = {
    "auto": "follows the device of the tensors",
    "cpu": "tiled, threaded, vectorized",
    "reference": "the definition in double precision; slow; also takes f64",
    "naive": "step by step in the dtype of q: the baseline for errors",
    "standard": "materializes the scores; for comparisons",
    "triton": "this package's Triton kernels, on the tensors' GPU",
    "ck": "AITER's kernels, on the tensors' AMD GPU",
}


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _listed(query: str, kind: Any) -> Iterator[Any]:
    """The library's entries of a kind. Raises all errors except that of an index past the last
    one.
    """
    index = 0
    while True:
        entry = kind()
        entry.clear()
        status = abi.query(query, index, ctypes.byref(entry))
        if status:
            if not abi.last_error().startswith("index is "):
                abi.raise_status(status)
            return
        yield entry
        index += 1


def devices() -> list[dict[str, Any]]:
    """The devices that the library can run on."""
    types = {abi.DL_CPU: "cpu", abi.DL_CUDA: "cuda", abi.DL_ROCM: "rocm"}
    return [
        {
            "type": types.get(device.device_type, str(device.device_type)),
            "index": device.device_id,
            "name": _text(device.name),
            "arch": _text(device.arch),
            "features": _text(device.features).split(),
            "units": device.units,
            "computes": capabilities((device.device_type, device.device_id)),
        }
        for device in _listed("rocflash_query_device", abi.Device)
    ]


def drivers() -> list[dict[str, Any]]:
    """The GPU drivers that the library searched for, and the outcome."""
    return [
        {
            "name": _text(driver.name),
            "library": _text(driver.library),
            "reason": _text(driver.reason),
            "in_use": bool(driver.in_use),
        }
        for driver in _listed("rocflash_query_driver", abi.Driver)
    ]


def targets() -> list[dict[str, str]]:
    """The GPU architectures that the library has kernels for, independent of this machine."""
    names = ("arch", "family", "driver")
    return [
        {name: _text(getattr(target, name)) for name in names}
        for target in _listed("rocflash_query_target", abi.Target)
    ]


def limits() -> dict[str, Any]:
    """The limits of the library on all devices."""
    answer = abi.limits()
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
        lines += backend_lines(self)
        for d in self["devices"]:
            lines.append(
                f"device: {d['type']}:{d['index']} {d['name']}, {d['arch']}, {d['units']} units"
            )
            for operation, answers in d["computes"].items():
                lines.append(f"  {operation}: head dimensions of {text_of(answers)}")
        for d in self["drivers"]:
            lines.append(f"driver: {d['name']}: {d['reason']}")
        archs = " ".join(t["arch"] for t in self["targets"])
        lines.append(f"GPU kernels: {archs or 'none, this library was built for the CPU alone'}")
        # Support of backward depends on the device and is part of its lines.
        described = {k: v for k, v in self["limits"].items() if k != "has_backward"}
        lines.append(f"limits: {', '.join(f'{k} {v}' for k, v in described.items())}")
        if self["torch"]:
            lines.append(f"torch: {self['torch']}")
        lines += interface_lines(self["interfaces"])
        for name, words in self["environment"].items():
            lines.append(f"{name}: {words}")
        return "\n".join(lines)


def interfaces() -> dict[str, dict[str, str]]:
    """The installed distributions with flash_attn's names, and their metadata."""
    from importlib import metadata  # slow to import

    found = {}
    for name in ("flash-attn", "flash-attn-3", "flash-attn-4"):
        try:
            described = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = {"version": described["Version"], "summary": described["Summary"] or ""}
    return found


def interface_lines(found: dict[str, dict[str, str]]) -> list[str]:
    return [
        f"{name} {described['version']}: {described['summary']}"
        for name, described in found.items()
    ]


def backend_symbol(name: str) -> str:
    """The function that computes, by its public name."""
    from importlib.util import find_spec

    if name == "triton":
        flash_attn = find_spec("flash_attn")  # which need not be installed, and is not imported
        directories = [] if flash_attn is None else flash_attn.submodule_search_locations or []
        if any(
            (Path(x) / "flash_attn_triton_amd" / "interface_v2.py").exists() for x in directories
        ):
            return "flash_attn.flash_attn_triton_amd.interface_v2"
        return "rocflash._backends.triton.calls"
    if name == "ck":
        return "aiter.flash_attn_func"
    return f"rocflash_forward in {abi.library_path().name}"


def packages() -> dict[str, str]:
    """The packages that backends need besides the library: version, or why they are unavailable."""
    from importlib import metadata
    from importlib.util import find_spec

    # Modules, the distributions that provide them, and how to install one.
    triton = (
        "triton",
        ("triton", "pytorch-triton-rocm", "triton-rocm"),
        "pip install 'rocflash[triton]'",
    )
    aiter = ("aiter", ("amd-aiter", "aiter"), "see https://github.com/ROCm/aiter")
    found = {}
    for name, (module, distributions, hint) in (("triton", triton), ("ck", aiter)):
        found[name] = f"{module} is not installed ({hint})"
        if find_spec(module) is not None:
            found[name] = f"{module}, of no known distribution"
            for each in distributions:
                try:
                    found[name] = f"{each} {metadata.version(each)}"
                    break
                except metadata.PackageNotFoundError:
                    continue
    return found


def backend_lines(described: Any) -> list[str]:
    lines = [
        f"backend: {described['backend']} ({described['why']})",
        f"backend symbol: {described['backend_symbol']}",
    ]
    return lines + [f"backend {name}: {words}" for name, words in described["packages"].items()]


def chosen() -> dict[str, Any]:
    """The backend of calls, and why it is selected."""
    name = choice.backend()
    return {
        "backend": name,
        "why": f"{choice.source()}; {_MEANING[name]}",
        "backend_symbol": backend_symbol(name),
        "packages": packages(),
    }


def _variable_text(variable: str, meaning: str) -> str:
    value = os.environ.get(variable)
    return "not set" if value is None else f"{value!r}; {meaning}"


def info() -> Info:
    """Devices, drivers, kernels, limits and the selected backend."""
    torch = sys.modules.get("torch")
    return Info(
        version=_text(abi.library().rocflash_version()),
        library=str(abi.library_path()),
        **chosen(),
        devices=devices(),
        drivers=drivers(),
        targets=targets(),
        limits=limits(),
        torch=None if torch is None else str(torch.__version__),
        interfaces=interfaces(),
        environment={
            choice.TRITON_VARIABLE: _variable_text(
                choice.TRITON_VARIABLE,
                "TRUE chooses backend triton unless ROCFLASH_BACKEND says otherwise",
            ),
            "FLASH_ATTENTION_TRITON_AMD_AUTOTUNE": _variable_text(
                "FLASH_ATTENTION_TRITON_AMD_AUTOTUNE", "TRUE has backend triton try all its tiles"
            ),
            "ROCFLASH_NUM_THREADS": os.environ.get("ROCFLASH_NUM_THREADS", "not set"),
        },
    )
