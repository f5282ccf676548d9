"""The matrix of wheels: what is in it, what is not and why, and its JSON."""

from __future__ import annotations

import json
import sys

import create_matrix
import versions
from conftest import Run


def test_everything_that_exists_once() -> None:
    made = create_matrix.matrix(create_matrix.ROCM_MATRIX)["include"]
    keys = [tuple(cell[name] for name in create_matrix.ROCM_MATRIX) for cell in made]
    assert len(keys) == len(set(keys)) <= create_matrix.MOST_JOBS
    for key in keys:
        versions.check(*key)
    for name, values in create_matrix.ROCM_MATRIX.items():
        assert {cell[name] for cell in made} == set(values), f"a {name} has no cell at all"


def test_the_versions_that_were_asked_for() -> None:
    assert create_matrix.ROCM_MATRIX["flash-attn-version"] == ("2.6.3", "2.7.4", "2.8.3")
    assert create_matrix.ROCM_MATRIX["python-version"] == ("3.10", "3.11", "3.12", "3.13", "3.14")


def test_every_cell_is_in_or_explained() -> None:
    total = 1
    for values in create_matrix.ROCM_MATRIX.values():
        total *= len(values)
    explained = create_matrix.explanations(create_matrix.ROCM_MATRIX)
    left_out = sum(int(line.split()[0]) for line in explained)
    assert left_out + len(create_matrix.matrix(create_matrix.ROCM_MATRIX)["include"]) == total
    assert any(
        "torch 2.8 has wheels for Python 3.10 to 3.13, not 3.14" in line for line in explained
    )
    assert any("torch 2.8 was released for ROCm 6.3 and 6.4, not 7.0" in line for line in explained)


def test_command(run: Run) -> None:
    told = run(
        sys.executable,
        "packaging/create_matrix.py",
        "--flash-attn",
        "2.8.3",
        "--python",
        "3.12",
        "--torch",
        "2.8",
        "--triton",
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == {
        "include": [
            {
                "flash-attn-version": "2.8.3",
                "python-version": "3.12",
                "torch-version": "2.8",
                "rocm-version": rocm,
                "build-triton-backend": triton,
            }
            for rocm in ("6.3", "6.4")
            for triton in ("false", "true")
        ]
    }


def test_refusals(run: Run) -> None:
    told = run(sys.executable, "packaging/create_matrix.py", "--torch", "1.13")
    assert told.returncode == 2 and "'2.14'" in told.stderr
    told = run(sys.executable, "packaging/create_matrix.py", "--torch", "2.8", "--rocm", "7.0")
    assert told.returncode == 1 and "0 combinations" in told.stderr
    told = run(sys.executable, "packaging/create_matrix.py", "--triton")
    assert told.returncode == 1 and "must have 1 to 256" in told.stderr


def test_places_of_torch() -> None:
    assert versions.torch_index("2.8", "6.4") == "https://download.pytorch.org/whl/rocm6.4"
    assert versions.torch_index("2.7", "6.2") == "https://download.pytorch.org/whl/rocm6.2.4"
    assert versions.container("6.4").startswith("rocm/dev-ubuntu-22.04:6.4-complete")
    assert versions.container("7.14").startswith("ubuntu:24.04@sha256:")
    for rocm in versions.rocm_versions():
        assert versions.container(rocm)
