"""Which versions of flash-attn, Python, torch and ROCm are known together, and the names of wheels made for them.

The pairs of torch and ROCm are those of PyTorch's own wheels (download.pytorch.org/whl/rocmX.Y) and of AMD's images
(rocm/pytorch). Others may exist: they are built with a warning, since one binary serves them all. A patch level (6.4.1, 2.8.0) is
accepted and dropped: wheels are named by the minor version, and the library does not depend on either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import containers

FLASH_ATTN = ("2.6.3", "2.7.4", "2.8.3")
PYTHON = ("3.10", "3.11", "3.12", "3.13", "3.14")
# torch: (the versions of ROCm that it was released for, the first and the last Python of its wheels)
TORCH = {
    "2.5": (("6.1", "6.2"), ("3.10", "3.12")),
    "2.6": (("6.1", "6.2"), ("3.10", "3.13")),
    "2.7": (("6.2", "6.3"), ("3.10", "3.13")),
    "2.8": (("6.3", "6.4"), ("3.10", "3.13")),
    "2.9": (("6.4",), ("3.10", "3.14")),
    "2.10": (("7.0", "7.1"), ("3.10", "3.14")),
    "2.11": (("7.1", "7.2"), ("3.10", "3.14")),
    "2.12": (("7.1", "7.2"), ("3.10", "3.14")),
    "2.13": (("7.1", "7.2"), ("3.10", "3.14")),
    "2.14": (("7.2", "7.14"), ("3.10", "3.14")),
}


# Pairs that AMD's images have and PyTorch's wheels have not, with the Pythons of the images.
IMAGES = {("2.9", "7.1"): ("3.10", "3.12"), ("2.9", "7.2"): ("3.10", "3.12")}
# What the packages themselves ask for.
OLDEST_PYTHON, OLDEST_TORCH = "3.9", "2.2"


class WrongVersion(ValueError):
    """What is no version, or one that the packages do not serve; the message has what they do."""


def ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def rocm_versions() -> list[str]:
    known = {rocm for pairs, _ in TORCH.values() for rocm in pairs}
    return sorted(known | {rocm for _, rocm in IMAGES}, key=ordered)


def rocm_of(torch: str) -> list[str]:
    """The versions of ROCm that a torch of the table is known with."""
    known = {*TORCH[torch][0], *(rocm for name, rocm in IMAGES if name == torch)}
    return sorted(known, key=ordered)


def minor(name: str, given: str) -> str:
    """X.Y of X.Y or X.Y.Z."""
    found = re.fullmatch(r"v?(\d+\.\d+)(\.\d+)?", given)
    if not found:
        raise WrongVersion(
            f"{name}: {given!r} is not a version such as {'3.12' if name == 'Python' else '6.4'}"
        )
    return found[1]


def _one_of(name: str, given: str, allowed: list[str] | tuple[str, ...], why: str = "") -> None:
    if given not in allowed:
        raise WrongVersion(f"{name}: {given}{why}; there are {', '.join(allowed)}")


@dataclass(frozen=True)
class Combination:
    """One cell of the matrix, checked."""

    flash_attn: str
    python: str
    torch: str
    rocm: str
    triton: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The wheel's version: what it claims to be, and for what."""
        digits = self.rocm.replace(".", "")
        return f"{self.flash_attn}+rocm{digits}torch{self.torch}{'triton' if self.triton else ''}"

    @property
    def tag(self) -> str:
        cpython = "cp" + self.python.replace(".", "")
        return f"{cpython}-{cpython}-linux_x86_64"

    @property
    def file_name(self) -> str:
        return f"flash_attn-{self.version}-{self.tag}.whl"


def exclusion(python: str, torch: str, rocm: str) -> str | None:
    """Why this combination is not known, or None when it is."""
    if torch not in TORCH:
        return f"torch {torch} is not known; known are {', '.join(TORCH)}"
    pairs, (first, last) = TORCH[torch]
    if rocm not in rocm_of(torch):
        return f"torch {torch} is known with ROCm {' and '.join(rocm_of(torch))}, not {rocm}"
    if rocm not in pairs:
        first, last = IMAGES[torch, rocm]
    if not ordered(first) <= ordered(python) <= ordered(last):
        return f"torch {torch} for ROCm {rocm} is known with Python {first} to {last}, not {python}"
    return None


def flash_attn_version(given: str) -> str:
    """One of the interfaces that the drop-in has."""
    _one_of("flash-attn", given.removeprefix("v"), FLASH_ATTN)
    return given.removeprefix("v")


def check(flash_attn: str, python: str, torch: str, rocm: str, triton: bool = False) -> Combination:
    """The combination, with warnings where it is not known; WrongVersion where it could not work."""
    flash_attn = flash_attn_version(flash_attn)
    python, torch, rocm = minor("Python", python), minor("torch", torch), minor("ROCm", rocm)
    for name, given, oldest in (("Python", python, OLDEST_PYTHON), ("torch", torch, OLDEST_TORCH)):
        if ordered(given) < ordered(oldest):
            raise WrongVersion(f"{name}: {given}; the packages need {oldest} or newer")
    why = exclusion(python, torch, rocm)
    warnings = (f"{why}; built nevertheless, one binary serves all",) if why else ()
    return Combination(flash_attn, python, torch, rocm, triton, warnings)


def torch_index(torch: str, rocm: str) -> str:
    """Where PyTorch's wheels of that pair are. Two pairs have a patch level in their index's name."""
    if torch in TORCH and rocm not in TORCH[torch][0]:
        rocm = TORCH[torch][0][
            -1
        ]  # AMD's images have a torch of their own; PyTorch's nearest serves to try the wheel
    name = "6.2.4" if rocm == "6.2" and torch in ("2.6", "2.7") else rocm
    return f"https://download.pytorch.org/whl/rocm{name}"


def container(rocm: str) -> str:
    """AMD's image with that ROCm, a plain system for one that has none here. From 7.14 on ROCm comes with torch's wheels, so that a plain system does."""
    image = f"rocm/dev-ubuntu-22.04:{rocm}-complete"
    return containers.pinned(image if image in containers.digests() else "ubuntu:24.04")
