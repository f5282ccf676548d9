"""The wheel matrix: its combinations, the excluded ones with reasons, and its JSON."""

from __future__ import annotations

import itertools
import json
import sys

import pytest
import versions
from conftest import Run

import create_matrix


def test_every_known_combination_occurs_once() -> None:
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
    """The versions of flash-attn and Python that one job stamps."""
    pairs = (job["flash-attn-version"].split(), job["python-version"].split())
    return list(itertools.product(*pairs))


def test_supported_versions() -> None:
    assert create_matrix.ROCM_MATRIX["flash-attn-version"] == ("2.6.3", "2.7.4", "2.8.3")
    assert create_matrix.ROCM_MATRIX["python-version"] == ("3.10", "3.11", "3.12", "3.13", "3.14")


def test_every_combination_is_included_or_explained() -> None:
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
    """A patch level is accepted; combinations that differ only in the stamp share a job."""
    command = (sys.executable, "packaging/create_matrix.py", "--flash-attn", "2.8.3", "--triton")
    result = run(*command, "--python", "3.11", "3.12", "--torch", "2.8.0")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
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
    result = run(*command, "--python", "3.12", "--torch", "2.9.1", "--rocm", "7.1.1", "--wheels")
    stem = "flash_attn-2.8.3+rocm71torch2.9"
    ends = (f"{kind}-cp312-cp312-linux_x86_64.whl" for kind in ("", "triton"))
    assert result.stdout.split() == [stem + end for end in ends] and not result.stderr


def test_unknown_pairs(run: Run) -> None:
    result = run(sys.executable, "packaging/create_matrix.py", "--torch", "2.8", "--rocm", "7.0")
    assert result.returncode == 0 and len(json.loads(result.stdout)["include"]) == 1
    assert "warning: torch 2.8 is known with ROCm 6.3 and 6.4, not 7.0" in result.stderr
    result = run(sys.executable, "packaging/create_matrix.py", "--torch", "newest")
    assert result.returncode == 2 and "torch is 'newest'; it must be a version" in result.stderr


def test_script_of_the_guide(run: Run) -> None:
    """create_matrix.py at the root has the options of packaging/create_matrix.py."""
    arguments = ("--torch", "2.8", "--python", "3.12")
    result = run("./create_matrix.py", *arguments)
    assert result.returncode == 0, result.stderr
    inner = run(sys.executable, "packaging/create_matrix.py", *arguments)
    assert result.stdout == inner.stdout


def test_switch(capsys: pytest.CaptureFixture[str]) -> None:
    assert create_matrix.main([], False) == 0
    assert json.loads(capsys.readouterr().out) == {"include": []}
    own = {**create_matrix.ROCM_MATRIX, "python-version": ("3.11",), "torch-version": ("2.6",)}
    assert create_matrix.main([], own) == 0
    jobs = json.loads(capsys.readouterr().out)["include"]
    assert {job["python-version"] for job in jobs} == {"3.11"}
    assert [job["rocm-version"] for job in jobs] == ["6.1", "6.2"]
    assert create_matrix.main([], {"torch-version": ("2.6",)}) == 2
    assert "rocm: torch-version; must have flash-attn-version," in capsys.readouterr().err


def test_release_notes(run: Run) -> None:
    """For the current version, with every wheel; also while its section is Unreleased."""
    result = run("packaging/release_notes.sh")
    assert result.returncode == 0, result.stderr
    assert "### Added" in result.stdout
    assert "flash_attn-2.8.3+rocm72torch2.13triton-cp312-cp312-linux_x86_64.whl" in result.stdout
    result = run("packaging/release_notes.sh", "v9.9.9")
    assert result.returncode == 1 and "no section [9.9.9]" in result.stderr


def test_torch_index_and_container() -> None:
    assert versions.torch_index("2.8", "6.4") == "https://download.pytorch.org/whl/rocm6.4"
    assert versions.torch_index("2.7", "6.2") == "https://download.pytorch.org/whl/rocm6.2.4"
    assert versions.container("6.4").startswith("rocm/dev-ubuntu-22.04:6.4-complete")
    assert versions.container("7.14").startswith("ubuntu:24.04@sha256:")
    for rocm in versions.rocm_versions():
        assert versions.container(rocm)
