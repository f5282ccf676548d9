"""What `rocflash doctor` reports about this Python: the library, torch, and who owns flash_attn.

The program examines the system (cli/doctor.cpp); `examine` adds Python's findings. The checks read
a `Python`, so that tests pass made-up ones. torch is imported in another process, which may crash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional

from ._c import abi, choice
from .errors import Error
from .info import packages

INTERFACES = {"flash_attn": "flash-attn", "flash_attn_3": "flash-attn-3"}
ROCM_WHEELS = (
    "pip install torch --index-url https://download.pytorch.org/whl/rocm6.4 (or a newer ROCm's "
    "index)"
)
_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch
found = {"version": str(torch.__version__)}
found |= {"hip": torch.version.hip or "", "cuda": torch.version.cuda or ""}
found["devices"], found["archs"], found["problem"] = [], [], ""
try:
    if torch.cuda.is_available():
        found["archs"] = torch.cuda.get_arch_list()
        for n in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(n)
            arch = getattr(about, "gcnArchName", "") or f"sm_{about.major}{about.minor}"
            found["devices"].append([about.name, arch.partition(":")[0]])
    elif found["hip"] or found["cuda"]:
        torch.cuda.init()
except Exception as error:
    found["problem"] = str(error).strip().partition("\\n")[0]
print(json.dumps(found))
"""


@dataclass
class Finding:
    id: str
    severity: str  # ok, note, warning or error
    what: str
    advice: str = ""


@dataclass
class Torch:
    version: str
    hip: str = ""
    cuda: str = ""
    devices: list[tuple[str, str]] = field(default_factory=list)  # name and architecture
    archs: list[str] = field(default_factory=list)  # that it has kernels for
    problem: str = ""


@dataclass
class Owner:
    """An installed distribution that has a module."""

    name: str
    version: str
    ours: bool


@dataclass
class Python:
    """A Python as the checks read it."""

    version: str = "3.12.0"
    executable: str = "python3"
    package_version: str = ""
    library: str = ""
    library_version: str = ""
    library_problem: str = ""
    library_named: bool = False  # by ROCFLASH_LIBRARY
    backend: str = "auto"
    backend_problem: str = ""
    torch: Optional[Torch] = None
    torch_problem: str = ""
    # Of each interface: where an import finds it, whether that is rocflash's, and its owners.
    origins: dict[str, str] = field(default_factory=dict)
    ours: dict[str, bool] = field(default_factory=dict)
    owners: dict[str, list[Owner]] = field(default_factory=dict)

    @staticmethod
    def here() -> Python:
        from . import __version__

        p = Python(".".join(map(str, sys.version_info[:3])), sys.executable, __version__)
        p.library, p.library_named = (
            str(abi.library_path()),
            bool(os.environ.get("ROCFLASH_LIBRARY")),
        )
        try:
            p.library_version = abi.library().rocflash_version().decode()
        except (ImportError, AttributeError) as error:
            p.library_problem = str(error)
        try:
            p.backend = choice.backend()
        except Error as error:
            p.backend_problem = str(error)
        else:
            missing = packages().get(p.backend, "")
            p.backend_problem = (
                f"the backend is {p.backend}, but {missing}" if "not installed" in missing else ""
            )
        p.torch, p.torch_problem = _probe_torch()
        for module in INTERFACES:
            origin = _origin(module)
            if origin is not None:
                p.origins[module] = str(origin.parent)
                p.ours[module] = "__rocflash__" in origin.read_text("utf-8", "replace")
            p.owners[module] = list(_owners(module))
        return p


def _probe_torch() -> tuple[Optional[Torch], str]:
    """torch, or None and why it cannot be imported; an empty reason if it is not installed."""
    if find_spec("torch") is None:
        return None, ""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=300
        )
    except subprocess.TimeoutExpired:
        return None, "importing it takes longer than 300 s"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return None, lines[
            -1
        ] if lines else f"Python exited with {done.returncode} while importing it"
    found = json.loads(done.stdout.splitlines()[-1])
    found["devices"] = [(name, arch) for name, arch in found["devices"]]
    return Torch(**found), ""


def _origin(module: str) -> Optional[Path]:
    """The __init__.py that an import would load, without importing it."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _owners(module: str) -> Iterator[Owner]:
    for one in metadata.distributions():
        if any(str(file) == f"{module}/__init__.py" for file in one.files or ()):
            about = one.metadata
            ours = about["Name"] == "rocflash" or "rocflash" in (about["Summary"] or "")
            yield Owner(about["Name"], about["Version"], ours)


def _check_library(p: Python) -> Finding:
    if p.library_problem:
        advice = "unset ROCFLASH_LIBRARY" if p.library_named else "reinstall rocflash"
        return Finding("python.library", "error", p.library_problem, advice)
    if p.library_version != p.package_version:
        what = (
            f"the package is version {p.package_version}, but its library {p.library} is "
            f"{p.library_version}"
        )
        return Finding(
            "python.library", "error", what, "reinstall rocflash, or unset ROCFLASH_LIBRARY"
        )
    return Finding("python.library", "ok", f"rocflash {p.package_version} with {p.library}")


def _check_backend(p: Python) -> Finding:
    if p.backend_problem:
        return Finding(
            "python.backend", "error", p.backend_problem,
            "install what it needs, or unset ROCFLASH_BACKEND and "
            "FLASH_ATTENTION_TRITON_AMD_ENABLE",
        )  # fmt: skip
    return Finding(
        "python.backend", "ok" if p.backend == "auto" else "note", f"the backend is {p.backend}"
    )


def _check_torch(p: Python, cards: set[str]) -> Iterator[Finding]:
    """`cards` are the vendors of this machine's GPUs: amd, nvidia."""
    t = p.torch
    if t is None:
        if p.torch_problem:
            yield Finding(
                "torch.import",
                "error",
                f"torch cannot be imported: {p.torch_problem}",
                "reinstall torch",
            )
        else:
            yield Finding(
                "torch.import", "note", "torch is not installed in this Python", "pip install torch"
            )
        return
    build = f"ROCm {t.hip}" if t.hip else f"CUDA {t.cuda}" if t.cuda else "the CPU alone"
    wanted = "amd" if t.hip else "nvidia" if t.cuda else ""
    fits = wanted in cards or not cards
    yield Finding(
        "torch.build", "ok" if fits else "error", f"torch {t.version} is built for {build}"
        + ("" if fits else ", but this machine has a GPU of "
                           f"{' and '.join(sorted(map(str.upper, cards)))}"),
        "" if fits else ROCM_WHEELS if "amd" in cards else "pip install torch, built for CUDA",
    )  # fmt: skip
    if t.devices:
        listed = ", ".join(f"{name} ({arch})" for name, arch in t.devices)
        yield Finding("torch.gpu", "ok", f"torch finds {listed}")
        missing = sorted(
            {
                arch
                for _, arch in t.devices
                if arch.startswith("gfx") and t.archs and arch not in t.archs
            }
        )
        if missing:
            yield Finding(
                "torch.arch", "warning",
                f"torch has no kernels of its own for {', '.join(missing)}; it has "
                f"{' '.join(t.archs)}",
                "install a torch with kernels for it: AMD's nightly wheels have more than the "
                "stable index; "
                "HSA_OVERRIDE_GFX_VERSION is not needed for rocflash",
            )  # fmt: skip
    elif wanted and wanted in cards:
        why = f": {t.problem}" if t.problem else ""
        yield Finding(
            "torch.gpu", "error", f"torch finds no GPU{why}",
            "fix the errors above first; in a container pass the devices to it. A torch for a much "
            "newer ROCm or "
            "CUDA than the driver does not find GPUs either",
        )  # fmt: skip


def _check_interface(p: Python, module: str) -> Finding:
    distribution, owners = INTERFACES[module], p.owners.get(module, [])
    id, others = f"{module}.owner", [x for x in owners if not x.ours]
    reinstall = (
        f"pip uninstall {distribution}, as often as it finds one, then install rocflash's "
        f"{distribution} again"
    )
    if module not in p.origins:
        return Finding(
            id, "note", f"{module} is not installed",
            f"install rocflash's {distribution} if programs import it",
        )  # fmt: skip
    where, own = p.origins[module], [x for x in owners if x.ours]
    named = " and ".join(f"{x.name} {x.version}" for x in others)
    if others and own:
        mine = f"{own[0].name} {own[0].version}"
        what = (
            f"{mine} of rocflash and {named} both install {module}; the one installed last has "
            "overwritten the other"
        )
        return Finding(id, "error", what, reinstall)
    if p.ours.get(module):
        return Finding(id, "ok", f"{module} is rocflash's ({where})")
    if own:
        return Finding(
            id, "warning", f"{module} in {where} hides rocflash's, which is installed",
            "run programs from another directory, and look at PYTHONPATH",
        )  # fmt: skip
    what = f"{module} is that of {named or where}, so its calls do not use rocflash"
    return Finding(id, "warning", what, reinstall + "; calls of rocflash itself are not affected")


def examine(p: Python, cards: set[str]) -> list[Finding]:
    """All findings about a Python, on a machine with GPUs of these vendors."""
    found = [
        Finding("python.version", "ok", f"Python {p.version} ({p.executable})"),
        _check_library(p),
    ]
    found += [_check_backend(p), *_check_torch(p, cards)]
    return found + [_check_interface(p, module) for module in INTERFACES]


def cards_of(report: dict[str, Any]) -> set[str]:
    """The vendors of the GPUs that the program found."""
    found = {finding["id"] for finding in report.get("findings", ()) if finding["severity"] == "ok"}
    return {vendor for vendor in ("amd", "nvidia") if f"{vendor}.card" in found}
