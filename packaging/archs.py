"""Which GPUs a wheel is built for: asked for, found in this machine, or all that there are kernels for."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# AMD GPUs of ROCm's own lists that there are no kernels for: a list copied from elsewhere may name them.
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


# What an installation from a clone is for where no GPU is found, such as in a container or on a cluster's login node: the Instinct cards
# of such places. Each family more is another minute of two cores, and an installation should not take five.
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


def kernel_targets(table: Path = ROOT / "kernels" / "table" / "families.inc") -> list[str]:
    """All that there are kernels for, in the order of the build's own list."""
    found = re.findall(r"^ROCFLASH_MEMBER\(\w+, *(\w+),", table.read_text(), re.MULTILINE)
    if not found:
        raise RuntimeError(f"{table} names no members")
    return found


def _pick(asked: list[str], source: str, known: list[str]) -> tuple[list[str], list[str]]:
    """The asked ones that there are kernels for, and what is to be said of the others."""
    plain = list(
        dict.fromkeys(name.split(":")[0] for name in asked)
    )  # gfx90a:xnack- is served by gfx90a
    wrong = [name for name in plain if name not in known and name not in WITHOUT_KERNELS]
    if wrong:
        raise WrongArch(
            f"{source}: {', '.join(wrong)}; there are kernels for {', '.join(known)}; or all, none, or native"
        )
    missing = [name for name in plain if name not in known]
    notes = (
        [f"{source} names {', '.join(missing)}: there are no kernels for it, left out"]
        if missing
        else []
    )
    return [name for name in known if name in plain], notes


def gpus_here(environment: Mapping[str, str]) -> dict[str, str]:
    """The GPUs of this machine as kernels/build/native.sh finds them, with its word for where."""
    told = subprocess.run(
        ["sh", str(ROOT / "kernels" / "build" / "native.sh")],
        env={"PATH": os.environ.get("PATH", os.defpath), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split() for line in told.stdout.splitlines())


SOURCES = {"kfd": "found by the kernel's KFD nodes", "rocminfo": "found by rocminfo"}


def asked(environment: Mapping[str, str]) -> Choice | None:
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
        names, notes = _pick(words, variable, known)
        if not names:
            raise WrongArch(
                f"{notes[0]}, and nothing remains; there are kernels for {', '.join(known)}"
            )
        return Choice(tuple(names), variable, tuple(notes))
    return None


def choose(environment: Mapping[str, str] = os.environ) -> Choice:
    """PYTORCH_ROCM_ARCH, then GPU_ARCHS, then the AMD GPUs found, then all: for a wheel that travels."""
    told = asked(environment)
    if told:
        return told
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
    return Choice(("all",), "nothing asked for and no AMD GPU found")


def choose_here(environment: Mapping[str, str] = os.environ) -> Choice:
    """As `choose`, for an installation on this machine: NVIDIA's GPUs count too, and without any GPU it is COMMON."""
    told = asked(environment)
    if told:
        return told
    choice = choose(environment)
    nvidia = [name for name in kernel_targets() if name.startswith("sm_")]
    found = "nvidia" in gpus_here(environment)
    if choice.names != ("all",):
        return replace(choice, names=(*choice.names, *nvidia)) if found else choice
    if found:
        return Choice(tuple(nvidia), "found by NVIDIA's kernel module", choice.notes)
    return Choice(
        COMMON, f"{choice.why}: common ones; GPU_ARCHS names others, or all", choice.notes
    )
