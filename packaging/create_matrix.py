"""Prints the wheel matrix of a workflow as JSON: one job per known pair of torch and ROCm.

create_matrix.py [--flash-attn 2.8.3 ...] [--python 3.12 ...] [--torch 2.8 ...] [--rocm 6.4 ...]
                 [--triton]
create_matrix.py --explain      prints what is excluded, and why
create_matrix.py --wheels       prints the names of all wheels

All wheels have the same binary. So combinations that differ only in the stamp (version of
flash-attn, Python, Triton) share a job, and the matrix stays far below the limit of 256 jobs.
Versions may have a patch level. The default matrix has known pairs only. A pair that is given
explicitly but is not known is built with a warning.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import versions

ROCM_MATRIX: dict[str, tuple[str, ...]] = {
    "flash-attn-version": versions.FLASH_ATTN,
    "python-version": versions.PYTHON,
    "torch-version": tuple(versions.TORCH),
    "rocm-version": tuple(versions.rocm_versions()),
}
# GitHub rejects a matrix with more jobs.
MAX_JOBS = 256


def cells(chosen: dict[str, Sequence[str]]) -> Iterator[tuple[dict[str, str], str | None]]:
    """Every combination, with the reason why it is excluded, or None."""
    for values in itertools.product(*(chosen[name] for name in ROCM_MATRIX)):
        cell = dict(zip(ROCM_MATRIX, values))
        yield (
            cell,
            versions.exclusion(cell["python-version"], cell["torch-version"], cell["rocm-version"]),
        )


def selected(chosen: dict[str, Sequence[str]], unknown: bool) -> list[dict[str, str]]:
    """The combinations to build: the known ones and, with `unknown`, the others."""
    return [cell for cell, excluded in cells(chosen) if excluded is None or unknown]


def matrix(
    chosen: dict[str, Sequence[str]], triton: bool = False, unknown: bool = False
) -> dict[str, list[dict[str, str]]]:
    """A job per pair of torch and ROCm, with the versions of flash-attn and Python that it
    stamps.
    """
    grouped: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in selected(chosen, unknown):
        job = grouped.setdefault((cell["torch-version"], cell["rocm-version"]), {})
        for name in ("flash-attn-version", "python-version"):
            values = job.setdefault(name, [])
            if cell[name] not in values:
                values.append(cell[name])
    include = [
        {
            "flash-attn-version": " ".join(job["flash-attn-version"]),
            "python-version": " ".join(job["python-version"]),
            "torch-version": torch,
            "rocm-version": rocm,
            "build-triton-backend": "true" if triton else "false",
        }
        for (torch, rocm), job in grouped.items()
    ]
    return {"include": include}


def wheels(chosen: dict[str, Sequence[str]], triton: bool, unknown: bool = False) -> list[str]:
    """The names of all wheels of the matrix."""
    return [
        versions.check(*cell.values(), kind).file_name
        for cell in selected(chosen, unknown)
        for kind in ((False, True) if triton else (False,))
    ]


def explanations(chosen: dict[str, Sequence[str]]) -> list[str]:
    """Why combinations are excluded: each reason once, with the number of combinations."""
    counted: dict[str, int] = {}
    for _, excluded in cells(chosen):
        if excluded:
            counted[excluded] = counted.get(excluded, 0) + 1
    return [f"{count:4}  {reason}" for reason, count in counted.items()]


def main(
    arguments: list[str],
    rocm: dict[str, Sequence[str]] | Literal[False] = ROCM_MATRIX,
) -> int:
    """Prints the matrix of `rocm`, whose default values the options replace; False: an empty
    one.
    """
    if rocm is False:
        if not {"--explain", "--wheels"} & {*arguments}:
            print(json.dumps({"include": []}))
        return 0
    if list(rocm) != list(ROCM_MATRIX):
        print(
            f"create_matrix.py: rocm: {', '.join(rocm)}; must have {', '.join(ROCM_MATRIX)}",
            file=sys.stderr,
        )
        return 2
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, allowed in ROCM_MATRIX.items():
        parser.add_argument(
            f"--{name.removesuffix('-version')}",
            dest=name,
            nargs="+",
            help=f"known versions: {', '.join(allowed)}",
        )
    parser.add_argument("--triton", action="store_true", help="also a Triton variant of each wheel")
    parser.add_argument("--explain", action="store_true", help="print what is excluded")
    parser.add_argument("--wheels", action="store_true", help="print the names of the wheels")
    options = vars(parser.parse_args(arguments))
    chosen: dict[str, Sequence[str]] = {}
    try:
        for name, default in rocm.items():
            label = name.removesuffix("-version")
            named = options[name] or list(default)
            if label == "flash-attn":
                chosen[name] = [versions.flash_attn_version(value) for value in named]
            else:
                chosen[name] = [versions.minor(label, value) for value in named]
    except versions.InvalidVersion as error:
        print(f"create_matrix.py: {error}", file=sys.stderr)
        return 2
    if options["explain"]:
        print("\n".join(explanations(chosen)))
        return 0
    # A pair that is given explicitly is assumed to exist.
    unknown = bool(options["torch-version"] and options["rocm-version"])
    for cell, why in cells(chosen) if unknown else ():
        if why and cell["flash-attn-version"] == chosen["flash-attn-version"][0]:
            print(f"create_matrix.py: warning: {why}", file=sys.stderr)
    for value in chosen["flash-attn-version"]:
        if why := versions.flash_attn_warning(value):
            print(f"create_matrix.py: warning: {why}", file=sys.stderr)
    if options["wheels"]:
        print("\n".join(wheels(chosen, options["triton"], unknown)))
        return 0
    made = matrix(chosen, options["triton"], unknown)
    count = len(made["include"])
    if not 0 < count <= MAX_JOBS:
        print(
            f"create_matrix.py: {count} jobs; a matrix must have 1 to {MAX_JOBS}", file=sys.stderr
        )
        return 1
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
