"""Which versions of flash-attn, Python, torch and ROCm exist together, and the names of wheels made for them.

The pairs of torch and ROCm are those of PyTorch's own wheels (download.pytorch.org/whl/rocmX.Y); builds by others are
left out because nobody could say which exist. A patch level (6.4.1, 2.8.0) is accepted and dropped: wheels are named by
the minor version, and the library does not depend on either.
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


class WrongVersion(ValueError):
    """A version that does not exist, or a pair that was never released; the message has what does."""


def ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def rocm_versions() -> list[str]:
    return sorted({rocm for pairs, _ in TORCH.values() for rocm in pairs}, key=ordered)


def _minor(name: str, given: str) -> str:
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
    """Why there is no such cell, or None when there is. All three are versions of the tables."""
    pairs, (first, last) = TORCH[torch]
    if rocm not in pairs:
        return f"torch {torch} was released for ROCm {' and '.join(pairs)}, not {rocm}"
    if not ordered(first) <= ordered(python) <= ordered(last):
        return f"torch {torch} has wheels for Python {first} to {last}, not {python}"
    return None


def check(flash_attn: str, python: str, torch: str, rocm: str, triton: bool = False) -> Combination:
    """The combination, or WrongVersion with the right ones."""
    flash_attn = flash_attn.removeprefix("v")
    _one_of("flash-attn", flash_attn, FLASH_ATTN)
    python, torch, rocm = _minor("Python", python), _minor("torch", torch), _minor("ROCm", rocm)
    _one_of("Python", python, PYTHON)
    _one_of("torch", torch, tuple(TORCH))
    _one_of("ROCm", rocm, rocm_versions())
    why = exclusion(python, torch, rocm)
    if why:
        others = [t for t in TORCH if exclusion(python, t, rocm) is None]
        raise WrongVersion(
            f"{why}; Python {python} with ROCm {rocm} goes with torch {', '.join(others) or 'nothing'}"
        )
    return Combination(flash_attn, python, torch, rocm, triton)


def torch_index(torch: str, rocm: str) -> str:
    """Where PyTorch's wheels of that pair are. Two pairs have a patch level in their index's name."""
    name = "6.2.4" if rocm == "6.2" and torch in ("2.6", "2.7") else rocm
    return f"https://download.pytorch.org/whl/rocm{name}"


def container(rocm: str) -> str:
    """AMD's image with that ROCm. From 7.14 on ROCm comes with torch's wheels, so that a plain system does."""
    plain = ordered(rocm) >= (7, 14)
    return containers.pinned("ubuntu:24.04" if plain else f"rocm/dev-ubuntu-22.04:{rocm}-complete")
