"""The GPUs that a wheel is built for: requested, found in this machine, or all that have
kernels.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import device_table

ROOT = Path(__file__).resolve().parent.parent
# AMD GPUs of ROCm's own lists that there are no kernels for: a list copied from elsewhere may name
# them.
WITHOUT_KERNELS = [
    "gfx803",
    "gfx900",
    "gfx902",
    "gfx904",
    "gfx909",
    "gfx90c",
    "gfx940",
    "gfx941",
    "gfx1010",
    "gfx1011",
    "gfx1012",
    "gfx1013",
    "gfx1250",
]


# The default of an installation from a clone where no GPU is found, as in a container or on a login
# node: the Instinct cards common there. Each further family takes one more minute on two cores.
COMMON = ("gfx90a", "gfx942")


class WrongArch(ValueError):
    """A name that is no GPU's, or a choice that leaves none."""


@dataclass(frozen=True)
class Choice:
    """`names` is what ROCFLASH_GPU_ARCHS takes; `why` and `notes` are for people."""

    names: tuple[str, ...]
    why: str
    notes: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        return ";".join(self.names)


def kernel_targets(table: Path = device_table.TABLE) -> list[str]:
    """All architectures with kernels, in the order of the build's own list."""
    return [member.arch for member in device_table.members(table)]


def _pick(requested: list[str], source: str, known: list[str]) -> tuple[list[str], list[str]]:
    """The requested ones that have kernels, and messages about the others."""
    # The kernels of gfx90a run on gfx90a:xnack- too.
    bare = list(dict.fromkeys(name.split(":")[0] for name in requested))
    wrong = [name for name in bare if name not in known and name not in WITHOUT_KERNELS]
    if wrong:
        raise WrongArch(
            f"{source}: {', '.join(wrong)}; there are kernels for {', '.join(known)}; or all, "
            "none, or native"
        )
    missing = [name for name in bare if name not in known]
    notes = (
        [f"{source} names {', '.join(missing)}: there are no kernels for it, left out"]
        if missing
        else []
    )
    return [name for name in known if name in bare], notes


def gpus_here(environment: Mapping[str, str]) -> dict[str, str]:
    """The GPUs of this machine as kernels/build/native.sh finds them, with how each was found."""
    found = subprocess.run(
        ["sh", str(ROOT / "kernels" / "build" / "native.sh")],
        env={"PATH": os.environ.get("PATH", os.defpath), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split() for line in found.stdout.splitlines())


SOURCES = {"kfd": "found by the kernel's KFD nodes", "rocminfo": "found by rocminfo"}


def requested_choice(environment: Mapping[str, str]) -> Choice | None:
    """What PYTORCH_ROCM_ARCH says, then GPU_ARCHS; None where neither names GPUs."""
    known = kernel_targets()
    for variable in ("PYTORCH_ROCM_ARCH", "GPU_ARCHS"):
        words = re.split(r"[;,\s]+", environment.get(variable, "").strip(";, \t\n"))
        if words == [""]:
            continue
        if words in (["all"], ["none"]):
            return Choice((words[0],), f"{variable}={words[0]}")
        if words == ["native"]:
            return None  # what flash-attn's own build calls the GPUs found
        nvidia = [name for name in words if name.startswith("sm_")]
        if variable == "PYTORCH_ROCM_ARCH" and nvidia:
            raise WrongArch(
                f"{variable}: {', '.join(nvidia)} is an NVIDIA architecture; {variable} is for AMD "
                "GPUs, "
                f"and GPU_ARCHS accepts both"
            )
        names, notes = _pick(words, variable, known)
        if not names:
            raise WrongArch(
                f"{notes[0]}, and nothing remains; there are kernels for {', '.join(known)}"
            )
        return Choice(tuple(names), variable, tuple(notes))
    return None


def native_variable(environment: Mapping[str, str]) -> str | None:
    """The variable that requests the GPUs of this machine explicitly."""
    for variable in ("PYTORCH_ROCM_ARCH", "GPU_ARCHS"):
        value = environment.get(variable, "").strip(";, \t\n")
        if value:
            return variable if value == "native" else None
    return None


def choose(environment: Mapping[str, str] = os.environ) -> Choice:
    """PYTORCH_ROCM_ARCH, then GPU_ARCHS, then the AMD GPUs found, then all: for a wheel that
    travels.
    """
    requested = requested_choice(environment)
    if requested and all(name.startswith("sm_") for name in requested.names):
        raise WrongArch(
            f"{requested.why}: {' '.join(requested.names)}; a wheel for ROCm must have at least "
            "one "
            "AMD architecture, such as gfx942"
        )
    if requested:
        return requested
    choice = found(environment)
    variable = native_variable(environment)
    if variable and choice.names == ("all",):
        raise WrongArch(
            f"{variable}: native; this machine has no AMD GPU that there are kernels for; "
            "name the architectures, such as gfx942, or all"
        )
    return choice


def found(environment: Mapping[str, str]) -> Choice:
    """The AMD GPUs of this machine, else all."""
    known = kernel_targets()
    gpus = {name: how for name, how in gpus_here(environment).items() if name != "nvidia"}
    if gpus:
        how = SOURCES[next(iter(gpus.values()))]
        served = [name for name in known if name in gpus]
        unserved = [name for name in gpus if name not in known]
        notes = (f"{', '.join(unserved)} {how}: there are no kernels for it",) if unserved else ()
        if served:
            return Choice(tuple(served), how, notes)
        return Choice(("all",), "no GPU here has kernels", notes)
    return Choice(("all",), "no GPU requested and no AMD GPU found")


def choose_here(environment: Mapping[str, str] = os.environ) -> Choice:
    """As `choose`, for an installation on this machine: NVIDIA's GPUs count too, and without any
    GPU it is COMMON.
    """
    requested = requested_choice(environment)
    if requested:
        return requested
    choice = found(environment)
    nvidia = [name for name in kernel_targets() if name.startswith("sm_")]
    has_nvidia = "nvidia" in gpus_here(environment)
    if choice.names != ("all",):
        return replace(choice, names=(*choice.names, *nvidia)) if has_nvidia else choice
    if has_nvidia:
        return Choice(tuple(nvidia), "found by NVIDIA's kernel module", choice.notes)
    variable = native_variable(environment)
    if variable:
        raise WrongArch(
            f"{variable}: native; this machine has no GPU that there are kernels for; "
            "name the architectures, such as gfx942, or none"
        )
    return Choice(
        COMMON, f"{choice.why}: common ones; GPU_ARCHS names others, or all", choice.notes
    )
