"""Prints the matrix of wheels as JSON for a workflow: a job per pair of torch and ROCm that is known.

create_matrix.py [--flash-attn 2.8.3 ...] [--python 3.12 ...] [--torch 2.8 ...] [--rocm 6.4 ...] [--triton]
create_matrix.py --explain      what is left out, and why
create_matrix.py --wheels       the names of all wheels instead

All wheels carry the same binary, so that what differs in the stamp alone (flash-attn's version, Python, Triton) shares a job: far
fewer than the 256 that a workflow may have. Versions may have a patch level. Pairs that are named here and not known are built
with a warning; by default only known ones are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence

import versions

ROCM_MATRIX: dict[str, tuple[str, ...]] = {
    "flash-attn-version": versions.FLASH_ATTN,
    "python-version": versions.PYTHON,
    "torch-version": tuple(versions.TORCH),
    "rocm-version": tuple(versions.rocm_versions()),
}
# A workflow refuses a matrix with more jobs.
MOST_JOBS = 256


def cells(chosen: dict[str, Sequence[str]]) -> Iterator[tuple[dict[str, str], str | None]]:
    """Every combination, with the reason why it is not known, or None."""
    for values in itertools.product(*(chosen[name] for name in ROCM_MATRIX)):
        cell = dict(zip(ROCM_MATRIX, values))
        yield (
            cell,
            versions.exclusion(cell["python-version"], cell["torch-version"], cell["rocm-version"]),
        )


def wanted(chosen: dict[str, Sequence[str]], unknown: bool) -> list[dict[str, str]]:
    """The combinations to build: the known ones, and the others where they were named."""
    return [cell for cell, excluded in cells(chosen) if excluded is None or unknown]


def matrix(
    chosen: dict[str, Sequence[str]], triton: bool = False, unknown: bool = False
) -> dict[str, list[dict[str, str]]]:
    """A job per pair of torch and ROCm, with the versions of flash-attn and Python that it stamps."""
    grouped: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in wanted(chosen, unknown):
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
    """The names of all that the matrix makes."""
    return [
        versions.check(*cell.values(), kind).file_name
        for cell in wanted(chosen, unknown)
        for kind in ((False, True) if triton else (False,))
    ]


def explanations(chosen: dict[str, Sequence[str]]) -> list[str]:
    """Why combinations are left out, each reason once, with the number of cells that it costs."""
    counted: dict[str, int] = {}
    for _, excluded in cells(chosen):
        if excluded:
            counted[excluded] = counted.get(excluded, 0) + 1
    return [f"{count:4}  {reason}" for reason, count in counted.items()]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, allowed in ROCM_MATRIX.items():
        parser.add_argument(
            f"--{name.removesuffix('-version')}",
            dest=name,
            nargs="+",
            help=f"known are {', '.join(allowed)}",
        )
    parser.add_argument("--triton", action="store_true", help="each wheel also as one for Triton")
    parser.add_argument("--explain", action="store_true", help="say what is left out instead")
    parser.add_argument("--wheels", action="store_true", help="print the wheels' names instead")
    given = vars(parser.parse_args(words))
    chosen: dict[str, Sequence[str]] = {}
    try:
        for name, allowed in ROCM_MATRIX.items():
            label = name.removesuffix("-version")
            named = given[name] or list(allowed)
            if label == "flash-attn":
                chosen[name] = [versions.flash_attn_version(value) for value in named]
            else:
                chosen[name] = [versions.minor(label, value) for value in named]
    except versions.WrongVersion as error:
        print(f"create_matrix.py: {error}", file=sys.stderr)
        return 2
    if given["explain"]:
        print("\n".join(explanations(chosen)))
        return 0
    # Who names both says that the pair is there.
    unknown = bool(given["torch-version"] and given["rocm-version"])
    for cell, why in cells(chosen) if unknown else ():
        if why and cell["flash-attn-version"] == chosen["flash-attn-version"][0]:
            print(f"create_matrix.py: warning: {why}", file=sys.stderr)
    if given["wheels"]:
        print("\n".join(wheels(chosen, given["triton"], unknown)))
        return 0
    made = matrix(chosen, given["triton"], unknown)
    count = len(made["include"])
    if not 0 < count <= MOST_JOBS:
        print(
            f"create_matrix.py: {count} jobs; a matrix must have 1 to {MOST_JOBS}", file=sys.stderr
        )
        return 1
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
