"""The native build of `make verify`: kernels of this machine's GPUs, not installable."""

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
    """The sources, with a `cmake` that configures but only prints the build command."""
    directory = tmp_path_factory.mktemp("native")
    for name in source_files():
        if not name.startswith("tests/"):
            path = directory / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path)
    (directory / "tree" / "build").mkdir()
    for level in ("verify", "test"):
        (directory / "tree" / "build" / f".setup-{level}").touch()
    program = directory / "bin" / "cmake"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\n[ "$1" != --build ] || {{ echo "compiling $*"; exit 0; }}\nexec '
        f'{shutil.which("cmake")} "$@"\n'
    )
    program.chmod(0o755)
    return directory


def targets(tree: Path) -> list[str]:
    text = (tree / "build" / "kernels" / "include" / "targets.inc").read_text()
    return re.findall(r"^ROCFLASH_TARGET\((\w+),", text, re.MULTILINE)


@pytest.mark.skipif(
    not library.has_kernel_compiler(), reason="no kernels are compiled without clang 22"
)
def test_native_build_is_extended_before_installation(copy: Path, run: Run, tmp_path: Path) -> None:
    tree, path = copy / "tree", f"{copy / 'bin'}:{os.environ['PATH']}"

    def make(target: str, **machine: str) -> str:
        result = run("make", "-C", tree, target, PATH=path, **{**NOWHERE, **machine})
        assert result.returncode == 0, result.stdout + result.stderr
        assert "compiling --build build" in result.stdout
        return result.stdout + result.stderr

    assert "No GPU found that there are kernels for" in make("library-here")
    assert targets(tree) == []
    # A GPU that is added later gets its kernels.
    here = {"ROCFLASH_SYSFS": sysfs(tmp_path / "sys", 0, 90402, 90402)}
    assert "Kernels for the GPUs of this machine: gfx942. Others are left out." in make(
        "library-here", **here
    )
    assert targets(tree) == ["gfx942"]
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    make("library-here", ROCFLASH_PROC=str(tmp_path))
    assert targets(tree)[0] == "sm_80"

    # Neither CMake nor the wheel scripts install such a library.
    result = run("cmake", "--install", tree / "build", "--prefix", tmp_path / "prefix")
    assert (
        result.returncode != 0
        and "ROCFLASH_GPU_ARCHS=native) and is not installed" in result.stderr
    )
    assert not (tmp_path / "prefix").exists()
    result = run(
        "python3", ROOT / "packaging/universal.py", "--build", tree / "build", "--out", tmp_path
    )
    assert result.returncode == 1 and "is not installed or packaged" in " ".join(
        result.stderr.split()
    )
    assert not list(tmp_path.glob("*.whl"))
    assert library.cached_archs(tree / "build") is None

    assert "kernels of all GPUs, no longer only of those in this machine" in make("library", **here)
    assert len(targets(tree)) > 20
    # `make verify` keeps the kernels of all GPUs once they are configured.
    assert "Others are left out" not in make("library-here", **here)
    assert len(targets(tree)) > 20


def test_targets_that_ship_or_test_configure_all_kernels() -> None:
    text = (ROOT / "Makefile").read_text()
    found = re.findall(r"^([a-z -]+):([^=\n]*\n(?:\t.*\n)*)", text, re.MULTILINE)
    rules = {name: rule for names, rule in found for name in names.split()}
    for target in ("library", "build", "wheels"):
        assert "$(call all_kernels)" in rules[target], target
    for target in ("report", "install"):
        assert rules[target].split("\n")[0].split() == ["library"], target
    for target in ("test", "dist", "bench", "verify-cuda"):
        assert rules[target].split("\n")[0].split() == ["build"], target
