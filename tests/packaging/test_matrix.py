"""The matrix of wheels: what is in it, what is not and why, and its JSON."""

from __future__ import annotations

import itertools
import json
import sys

import create_matrix
import versions
from conftest import Run


def test_everything_that_is_known_once() -> None:
    names = create_matrix.wheels(create_matrix.ROCM_MATRIX, triton=True)
    assert len(names) == len(set(names)) and sum("triton" in name for name in names) * 2 == len(
        names
    )
    made = create_matrix.matrix(create_matrix.ROCM_MATRIX, triton=True)["include"]
    assert len({(job["torch-version"], job["rocm-version"]) for job in made}) == len(made) < 50
    assert 2 * sum(len(_each(job)) for job in made) == len(names), "grouping loses nothing"
    for job in made:
        for versions_of in _each(job):
            assert not versions.check(
                *versions_of, job["torch-version"], job["rocm-version"]
            ).warnings
    for name, values in create_matrix.ROCM_MATRIX.items():
        assert {value for job in made for value in job[name].split()} == set(values), name


def _each(job: dict[str, str]) -> list[tuple[str, str]]:
    """What one job stamps: versions of flash-attn and Python."""
    pairs = (job["flash-attn-version"].split(), job["python-version"].split())
    return list(itertools.product(*pairs))


def test_the_versions_that_were_asked_for() -> None:
    assert create_matrix.ROCM_MATRIX["flash-attn-version"] == ("2.6.3", "2.7.4", "2.8.3")
    assert create_matrix.ROCM_MATRIX["python-version"] == ("3.10", "3.11", "3.12", "3.13", "3.14")


def test_every_cell_is_in_or_explained() -> None:
    total = 1
    for values in create_matrix.ROCM_MATRIX.values():
        total *= len(values)
    explained = create_matrix.explanations(create_matrix.ROCM_MATRIX)
    left_out = sum(int(line.split()[0]) for line in explained)
    assert left_out + len(create_matrix.wheels(create_matrix.ROCM_MATRIX, triton=False)) == total
    assert any(
        "torch 2.8 for ROCm 6.4 is known with Python 3.10 to 3.13, not 3.14" in line
        for line in explained
    )
    assert any("torch 2.8 is known with ROCm 6.3 and 6.4, not 7.0" in line for line in explained)


def test_command(run: Run) -> None:
    """A patch level is accepted; what differs in the stamp alone shares a job."""
    command = (sys.executable, "packaging/create_matrix.py", "--flash-attn", "2.8.3", "--triton")
    told = run(*command, "--python", "3.11", "3.12", "--torch", "2.8.0")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == {
        "include": [
            {
                "flash-attn-version": "2.8.3",
                "python-version": "3.11 3.12",
                "torch-version": "2.8",
                "rocm-version": rocm,
                "build-triton-backend": "true",
            }
            for rocm in ("6.3", "6.4")
        ]
    }
    told = run(*command, "--python", "3.12", "--torch", "2.9.1", "--rocm", "7.1.1", "--wheels")
    stem = "flash_attn-2.8.3+rocm71torch2.9"
    ends = (f"{kind}-cp312-cp312-linux_x86_64.whl" for kind in ("", "triton"))
    assert told.stdout.split() == [stem + end for end in ends] and not told.stderr


def test_unknown_pairs_that_are_named(run: Run) -> None:
    told = run(sys.executable, "packaging/create_matrix.py", "--torch", "2.8", "--rocm", "7.0")
    assert told.returncode == 0 and len(json.loads(told.stdout)["include"]) == 1
    assert "warning: torch 2.8 is known with ROCm 6.3 and 6.4, not 7.0" in told.stderr
    told = run(sys.executable, "packaging/create_matrix.py", "--torch", "newest")
    assert told.returncode == 2 and "torch: 'newest' is not a version" in told.stderr


def test_release_notes(run: Run) -> None:
    """For the version at hand, with every wheel; also before its section has a number."""
    told = run("packaging/release_notes.sh")
    assert told.returncode == 0, told.stderr
    assert "### Added" in told.stdout
    assert "flash_attn-2.8.3+rocm72torch2.13triton-cp312-cp312-linux_x86_64.whl" in told.stdout
    told = run("packaging/release_notes.sh", "v9.9.9")
    assert told.returncode == 1 and "no section [9.9.9]" in told.stderr


def test_places_of_torch() -> None:
    assert versions.torch_index("2.8", "6.4") == "https://download.pytorch.org/whl/rocm6.4"
    assert versions.torch_index("2.7", "6.2") == "https://download.pytorch.org/whl/rocm6.2.4"
    assert versions.container("6.4").startswith("rocm/dev-ubuntu-22.04:6.4-complete")
    assert versions.container("7.14").startswith("ubuntu:24.04@sha256:")
    for rocm in versions.rocm_versions():
        assert versions.container(rocm)
