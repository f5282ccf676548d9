"""Known combinations of flash-attn, Python, torch and ROCm, and the names of their wheels.

The pairs of torch and ROCm are those of PyTorch's wheels (download.pytorch.org/whl/rocmX.Y) and of
AMD's images (rocm/pytorch). Other pairs are built with a warning, because one binary serves them
all. A patch level (6.4.1, 2.8.0) is accepted and dropped: wheels are named by the minor version,
and the library depends on neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import containers

FLASH_ATTN = ("2.6.3", "2.7.4", "2.8.3")
# The scheme of upstream's versions, such as 2.7.4.post1.
FLASH_ATTN_SCHEME = r"2\.\d+\.\d+(\.post\d+)?"
PYTHON = ("3.10", "3.11", "3.12", "3.13", "3.14")
# torch: (versions of ROCm with wheels, first and last Python of the wheels)
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


# Pairs that only AMD's images have, with the first and last Python of the images.
IMAGES = {("2.9", "7.1"): ("3.10", "3.12"), ("2.9", "7.2"): ("3.10", "3.12")}
# The minimum versions of the packages.
OLDEST_PYTHON, OLDEST_TORCH = "3.9", "2.2"


class InvalidVersion(ValueError):
    """Not a version, or one that the packages do not support; the message has the allowed ones."""


def ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def rocm_versions() -> list[str]:
    known = {rocm for pairs, _ in TORCH.values() for rocm in pairs}
    return sorted(known | {rocm for _, rocm in IMAGES}, key=ordered)


def rocm_of(torch: str) -> list[str]:
    """The known versions of ROCm for a torch of the table."""
    known = {*TORCH[torch][0], *(rocm for name, rocm in IMAGES if name == torch)}
    return sorted(known, key=ordered)


def minor(name: str, value: str) -> str:
    """X.Y of X.Y or X.Y.Z."""
    found = re.fullmatch(r"v?(\d+\.\d+)(\.\d+)?", value)
    if not found:
        raise InvalidVersion(
            f"{name} is {value!r}; it must be a version such as "
            f"{'3.12' if name == 'Python' else '6.4'}"
        )
    return found[1]


@dataclass(frozen=True)
class Combination:
    """A validated combination of the matrix."""

    flash_attn: str
    python: str
    torch: str
    rocm: str
    triton: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """flash-attn's version, with ROCm, torch and triton as the local version."""
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
    """Why this combination is not known, or None if it is."""
    if torch not in TORCH:
        return f"torch {torch} is not known; known versions: {', '.join(TORCH)}"
    pairs, (first, last) = TORCH[torch]
    if rocm not in rocm_of(torch):
        return f"torch {torch} is known with ROCm {' and '.join(rocm_of(torch))}, not {rocm}"
    if rocm not in pairs:
        first, last = IMAGES[torch, rocm]
    if not ordered(first) <= ordered(python) <= ordered(last):
        return f"torch {torch} for ROCm {rocm} is known with Python {first} to {last}, not {python}"
    return None


def flash_attn_version(value: str) -> str:
    """Validates a version of flash-attn. The interface is always that of the newest known one."""
    version = value.removeprefix("v")
    if not re.fullmatch(FLASH_ATTN_SCHEME, version):
        raise InvalidVersion(
            f"flash-attn is {value!r}; it must be a version of flash-attn 2 such as 2.8.3 or "
            "2.7.4.post1"
        )
    return version


def flash_attn_warning(version: str) -> str | None:
    """Why this version of flash-attn is not known, or None if it is."""
    if version in FLASH_ATTN:
        return None
    return (
        f"flash-attn {version} is not known; known versions: {', '.join(FLASH_ATTN)}. "
        f"The wheel has the interface of {FLASH_ATTN[-1]}"
    )


def check(flash_attn: str, python: str, torch: str, rocm: str, triton: bool = False) -> Combination:
    """Validates a combination; an unknown one has warnings. Raises InvalidVersion."""
    flash_attn = flash_attn_version(flash_attn)
    python, torch, rocm = minor("Python", python), minor("torch", torch), minor("ROCm", rocm)
    for name, value, oldest in (("Python", python, OLDEST_PYTHON), ("torch", torch, OLDEST_TORCH)):
        if ordered(value) < ordered(oldest):
            raise InvalidVersion(f"{name} is {value}; the packages need {oldest} or newer")
    why = exclusion(python, torch, rocm)
    warnings = [f"{why}; building it anyway, because one binary serves all"] if why else []
    unknown = flash_attn_warning(flash_attn)
    warnings = [unknown, *warnings] if unknown else warnings
    return Combination(flash_attn, python, torch, rocm, triton, tuple(warnings))


def torch_index(torch: str, rocm: str) -> str:
    """The index of PyTorch's wheels for a pair. Two pairs have a patch level in the index's
    name.
    """
    if torch in TORCH and rocm not in TORCH[torch][0]:
        # AMD's images have their own torch; PyTorch's nearest one serves to test the wheel.
        rocm = TORCH[torch][0][-1]
    name = "6.2.4" if rocm == "6.2" and torch in ("2.6", "2.7") else rocm
    return f"https://download.pytorch.org/whl/rocm{name}"


def container(rocm: str) -> str:
    """AMD's image with that ROCm, else Ubuntu: from 7.14 on torch's wheels contain ROCm."""
    image = f"rocm/dev-ubuntu-22.04:{rocm}-complete"
    return containers.pinned(image if image in containers.digests() else "ubuntu:24.04")
