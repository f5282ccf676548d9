"""Tile sizes of the kernels: pure functions, ordered by expected speed.

The first tile that fits a GPU's resources is used; with FLASH_ATTENTION_TRITON_AMD_AUTOTUNE=TRUE,
the fastest of all. NVIDIA's order was measured on an H200 at 4096 queries; AMD's first tiles spill
no registers, or the fewest.
"""

from __future__ import annotations

from typing import NamedTuple

# The GPU family, as far as tiles depend on it.
CDNA, RDNA, NVIDIA, INTERPRETER = "cdna", "rdna", "nvidia", "interpreter"


class Tile(NamedTuple):
    block_m: int  # queries
    block_n: int  # keys
    warps: int
    stages: int


def family_of(arch: str) -> str:
    """The family of Triton's name of a target: gfx942, 90 (a compute capability)."""
    if not arch.startswith("gfx"):
        return NVIDIA
    return CDNA if arch.startswith("gfx9") else RDNA


def padded(size: int) -> int:
    """A head dimension padded for tiles: a power of two, at least 16 for matrix instructions."""
    return max(16, 1 << (size - 1).bit_length())


def _forward(family: str, columns: int) -> list[Tile]:
    if family == NVIDIA:
        if columns <= 64:
            return [
                Tile(128, 64, 8, 3),
                Tile(64, 64, 4, 3),
                Tile(128, 128, 8, 3),
                Tile(64, 64, 4, 2),
            ]
        if columns <= 128:
            return [
                Tile(128, 128, 8, 3),
                Tile(64, 64, 4, 3),
                Tile(128, 64, 8, 3),
                Tile(64, 64, 4, 2),
                Tile(64, 32, 4, 2),
            ]
        return [Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 1)]
    if family == CDNA:
        if columns <= 128:
            return [
                Tile(128, 64, 8, 2),
                Tile(128, 64, 4, 2),
                Tile(128, 64, 4, 1),
                Tile(128, 32, 4, 2),
                Tile(64, 32, 4, 1),
            ]
        return [Tile(64, 32, 4, 1), Tile(128, 32, 8, 1), Tile(32, 32, 4, 1)]
    if columns <= 64:
        return [Tile(64, 32, 4, 1), Tile(128, 32, 8, 1), Tile(64, 64, 4, 1), Tile(32, 32, 2, 1)]
    if columns <= 128:
        return [Tile(64, 32, 8, 1), Tile(128, 32, 8, 1), Tile(64, 16, 8, 1), Tile(32, 32, 4, 1)]
    return [Tile(64, 16, 8, 1), Tile(32, 32, 8, 1), Tile(16, 16, 2, 1)]


def _of_queries(family: str, columns: int) -> list[Tile]:
    if family == NVIDIA:
        if columns <= 64:
            return [Tile(128, 64, 8, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 32, 4, 1)]
        if columns <= 128:
            return [Tile(128, 64, 8, 3), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 1)]
        return [Tile(64, 32, 8, 2), Tile(64, 32, 4, 1), Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)]
    if family == CDNA:
        if columns <= 128:
            return [Tile(64, 32, 4, 1), Tile(128, 32, 4, 1), Tile(64, 64, 4, 1), Tile(32, 32, 4, 1)]
        return [Tile(64, 16, 4, 1), Tile(32, 32, 4, 1), Tile(16, 16, 2, 1)]
    if columns <= 64:
        return [Tile(32, 32, 4, 1), Tile(64, 32, 4, 1), Tile(16, 16, 2, 1)]
    if columns <= 128:
        return [Tile(64, 16, 8, 1), Tile(32, 32, 8, 1), Tile(16, 16, 2, 1)]
    return [Tile(16, 16, 8, 1), Tile(32, 16, 8, 1), Tile(16, 16, 2, 1)]


def _of_keys(family: str, columns: int) -> list[Tile]:
    """Both results stay in registers, so query blocks are small."""
    if family == NVIDIA:
        if columns <= 64:
            return [Tile(64, 64, 4, 2), Tile(64, 128, 8, 2), Tile(32, 64, 4, 2), Tile(32, 32, 4, 1)]
        if columns <= 128:
            return [Tile(64, 128, 8, 2), Tile(32, 64, 4, 2), Tile(32, 64, 4, 1), Tile(32, 32, 4, 1)]
        return [Tile(32, 64, 8, 2), Tile(32, 64, 8, 1), Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)]
    if family == CDNA:
        if columns <= 128:
            return [Tile(32, 64, 4, 1), Tile(32, 128, 4, 1), Tile(64, 64, 4, 1), Tile(32, 32, 4, 1)]
        return [Tile(16, 64, 4, 1), Tile(32, 32, 4, 1), Tile(16, 16, 2, 1)]
    if columns <= 64:
        return [Tile(16, 64, 8, 1), Tile(32, 32, 8, 1), Tile(16, 32, 4, 1), Tile(16, 16, 2, 1)]
    if columns <= 128:
        return [Tile(16, 32, 8, 1), Tile(16, 64, 8, 1), Tile(16, 16, 2, 1)]
    return [Tile(16, 16, 8, 1), Tile(16, 32, 8, 1), Tile(16, 16, 2, 1)]


def choices(kernel: str, family: str, columns: int) -> list[Tile]:
    """Tiles to try, in this order, for the larger of both padded head dimensions."""
    if family == INTERPRETER:  # whose cost is proportional to the number of blocks
        return [Tile(64, 64, 4, 1)]
    if kernel == "dout_dot_out":
        return [Tile(64, 16, 4, 1)]
    if kernel == "gradients_of_keys":
        return _of_keys(family, columns)
    if kernel == "gradients_of_queries":
        return _of_queries(family, columns)
    return _forward(family, columns)
