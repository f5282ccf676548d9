"""The build of `make verify`: for the GPUs of this machine, to which everything else adds all others; it cannot be installed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import library
import pytest
from conftest import ROOT, Run, source_files
from test_archs import NOWHERE, sysfs


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources without a build directory, with a `cmake` that configures but only says what it would compile."""
    folder = tmp_path_factory.mktemp("native")
    for name in source_files():
        if not name.startswith("tests/"):
            place = folder / "tree" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place)
    (folder / "tree" / "build").mkdir()
    for level in ("verify", "test"):
        (folder / "tree" / "build" / f".setup-{level}").touch()
    program = folder / "bin" / "cmake"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\n[ "$1" != --build ] || {{ echo "compiling $*"; exit 0; }}\nexec {shutil.which("cmake")} "$@"\n'
    )
    program.chmod(0o755)
    return folder


def targets(tree: Path) -> list[str]:
    text = (tree / "build" / "kernels" / "include" / "targets.inc").read_text()
    return re.findall(r"^ROCFLASH_TARGET\((\w+),", text, re.MULTILINE)


@pytest.mark.skipif(
    not library.has_kernel_compiler(), reason="no kernels are compiled without clang 22"
)
def test_from_a_first_result_to_an_installation(copy: Path, run: Run, tmp_path: Path) -> None:
    tree, path = copy / "tree", f"{copy / 'bin'}:{os.environ['PATH']}"

    def make(target: str, **machine: str) -> str:
        told = run("make", "-C", tree, target, PATH=path, **{**NOWHERE, **machine})
        assert told.returncode == 0, told.stdout + told.stderr
        assert "compiling --build build" in told.stdout
        return told.stdout + told.stderr

    assert "No GPU found that there are kernels for" in make("library-here")
    assert targets(tree) == []
    # GPUs that come later get their kernels.
    here = {"ROCFLASH_SYSFS": sysfs(tmp_path / "sys", 0, 90402, 90402)}
    assert "Kernels for the GPUs of this machine: gfx942. Others are left out." in make(
        "library-here", **here
    )
    assert targets(tree) == ["gfx942"]
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    make("library-here", ROCFLASH_PROC=str(tmp_path))
    assert targets(tree)[0] == "sm_80"

    # Neither by CMake nor as a wheel does such a library leave the build directory.
    told = run("cmake", "--install", tree / "build", "--prefix", tmp_path / "prefix")
    assert told.returncode != 0 and "ROCFLASH_GPU_ARCHS=native) and is not installed" in told.stderr
    assert not (tmp_path / "prefix").exists()
    told = run(
        "python3", ROOT / "packaging/universal.py", "--build", tree / "build", "--out", tmp_path
    )
    assert told.returncode == 1 and "is not installed or packaged" in " ".join(told.stderr.split())
    assert not list(tmp_path.glob("*.whl"))
    assert library.cached_archs(tree / "build") is None

    assert "kernels of all GPUs, no longer only of those in this machine" in make("library", **here)
    assert len(targets(tree)) > 20
    # Once all are there, `make verify` keeps them.
    assert "Others are left out" not in make("library-here", **here)
    assert len(targets(tree)) > 20


def test_every_command_that_ships_or_tests_asks_for_all_kernels() -> None:
    text = (ROOT / "Makefile").read_text()
    rules = dict(re.findall(r"^([a-z-]+):([^=\n]*\n(?:\t.*\n)*)", text, re.MULTILINE))
    for target in ("library", "build", "wheels"):
        assert "$(call all_kernels)" in rules[target], target
    for target in ("report", "install"):
        assert rules[target].split("\n")[0].split() == ["library"], target
    for target in ("test", "dist", "bench", "verify-cuda"):
        assert rules[target].split("\n")[0].split() == ["build"], target
