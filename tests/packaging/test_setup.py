"""The packages of each setup level; `verify` needs nothing of the tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, Run

LEVELS = ("verify", "test", "all")


def packages(run: Run, level: str) -> set[str]:
    result = run("scripts/setup.sh", "--list", level)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_levels(run: Run) -> None:
    verify, test, everything = (packages(run, level) for level in LEVELS)
    assert verify < test < everything
    names = {re.sub(r"-\d+$", "", name) for name in verify}
    assert names == {
        "clang",
        "cmake",
        "g++",
        "libcli11-dev",
        "libdlpack-dev",
        "libfmt-dev",
        "libzstd-dev",
        "lld",
        "make",
        "ninja-build",
        "nlohmann-json3-dev",
    }
    assert {"libgtest-dev", "python3-venv", "lintian", "nix-bin"} <= test
    assert run("scripts/setup.sh", "--list").stdout.split() == sorted(everything)


def test_invalid_level(run: Run) -> None:
    result = run("scripts/setup.sh", "--check", "quick")
    assert result.returncode == 2 and "level: quick; must be verify, test or all" in result.stderr


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_verify_builds_only_library_and_command(tmp_path: Path) -> None:
    """In a clone without a build directory: setup level, options, targets and progress messages."""
    for name in ("Makefile", "CMakePresets.json"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")

    def commands(target: str) -> str:
        result = subprocess.run(
            ["make", "-n", target], cwd=tmp_path, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    verify = commands("verify")
    assert re.findall(r"scripts/setup\.sh (\w+);", verify) == ["verify"]
    for part in ("TESTS", "SIM", "EXAMPLES"):
        assert f"-DROCFLASH_BUILD_{part}=OFF" in verify
    assert re.findall(r"cmake --build build .*--target (.*)", verify) == ["rocflash rocflash_cli"]
    assert re.findall(r"== (\d) of (\d)", verify) == [("1", "3"), ("2", "3"), ("3", "3")]
    test = commands("build")
    assert re.findall(r"scripts/setup\.sh (\w+);", test) == ["test"]
    assert "-UROCFLASH_BUILD_TESTS" in test and "--target" not in test
    assert re.findall(r"scripts/setup\.sh (\w+);", commands("lint"))[0] == "all"
