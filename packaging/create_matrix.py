"""Prints the matrix of wheels as JSON for a workflow: every combination of ROCM_MATRIX that exists.

create_matrix.py [--flash-attn 2.8.3 ...] [--python 3.12 ...] [--torch 2.8 ...] [--rocm 6.4 ...] [--triton]
create_matrix.py --explain      what is left out, and why
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
    """Every combination, with the reason why it does not exist, or None."""
    for values in itertools.product(*(chosen[name] for name in ROCM_MATRIX)):
        cell = dict(zip(ROCM_MATRIX, values))
        yield (
            cell,
            versions.exclusion(cell["python-version"], cell["torch-version"], cell["rocm-version"]),
        )


def matrix(
    chosen: dict[str, Sequence[str]], triton: bool = False
) -> dict[str, list[dict[str, str]]]:
    include = []
    for cell, excluded in cells(chosen):
        if excluded is None:
            for backend in ("false", "true") if triton else ("false",):
                include.append({**cell, "build-triton-backend": backend})
    return {"include": include}


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
            choices=allowed,
            default=allowed,
        )
    parser.add_argument(
        "--triton", action="store_true", help="each cell a second time, named triton"
    )
    parser.add_argument("--explain", action="store_true", help="say what is left out instead")
    given = vars(parser.parse_args(words))
    chosen = {name: given[name] for name in ROCM_MATRIX}
    if given["explain"]:
        print("\n".join(explanations(chosen)))
        return 0
    made = matrix(chosen, given["triton"])
    count = len(made["include"])
    if not 0 < count <= MOST_JOBS:
        print(
            f"create_matrix.py: {count} combinations; a matrix must have 1 to {MOST_JOBS}",
            file=sys.stderr,
        )
        return 1
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
