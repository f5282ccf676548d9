"""VERSION is the only source of the version: every file that repeats it agrees, and the script sets
all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import wheel
from conftest import ROOT, VERSION

SCRIPT = ROOT / "scripts" / "set_version.sh"
REPEATED = [
    "include/rocflash/rocflash.h",
    "python/rocflash/__init__.py",
    "python/flash-attn/pyproject.toml",
    "python/flash-attn-3/pyproject.toml",
    "python/flash-attn-4/pyproject.toml",
    "rust/Cargo.toml",
    "rust/Cargo.lock",
    "rust/rocflash-sys/src/lib.rs",
    "rust/rocflash/src/info.rs",
    "docs/install.md",
]
SERIES = "SECURITY.md"  # names the series only: 0.1.x


def run(source: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ROCFLASH_SOURCE": str(source)}
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, env=environment)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ["VERSION", SERIES, *REPEATED]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_all_files_agree() -> None:
    checked = run(ROOT, "--check")
    assert checked.returncode == 0, checked.stderr


def test_readers() -> None:
    """What can read VERSION does, and has no version of its own."""
    assert wheel.project(ROOT / "pyproject.toml")["version"] == VERSION
    assert "version =" not in (ROOT / "pyproject.toml").read_text().split("[tool.")[0]
    for name in (
        "CMakeLists.txt",
        "nix/library.nix",
        "nix/python.nix",
        "packaging/release_notes.sh",
    ):
        text = (ROOT / name).read_text()
        assert "VERSION" in text and VERSION not in text, name


def test_a_new_version(tree: Path) -> None:
    written = run(tree, "12.34.56")
    assert written.returncode == 0, written.stderr
    assert (tree / "VERSION").read_text() == "12.34.56\n"
    for name in REPEATED:
        text = (tree / name).read_text()
        assert "12.34.56" in text, name
        # Other lines, such as other packages' versions, stay as they are.
        old, new = (ROOT / name).read_text().splitlines(), text.splitlines()
        changed = [before for before, after in zip(old, new, strict=True) if before != after]
        assert all(VERSION in line or re.search("VERSION_M|VERSION_P", line) for line in changed)
        assert not any(
            VERSION in line and "rocflash" in line and "librocflash" not in line for line in new
        ), name
    assert "the latest 12.34.x release" in (tree / SERIES).read_text()
    header = (tree / "include/rocflash/rocflash.h").read_text()
    assert "#define ROCFLASH_VERSION_MAJOR 12\n#define ROCFLASH_VERSION_MINOR 34\n" in header
    assert run(tree, "--check").returncode == 0


@pytest.mark.parametrize("name", REPEATED)
def test_a_difference_is_found(tree: Path, name: str) -> None:
    path = tree / name
    path.write_text(path.read_text().replace(VERSION, "9.8.7", 1))
    checked = run(tree, "--check")
    assert checked.returncode == 1
    assert f"{name} differs from VERSION" in checked.stderr


@pytest.mark.parametrize("words", [("1.2",), ("v1.2.3",), ("01.2.3",), ("--chek",), ("1.2.3", "4")])
def test_wrong_arguments(tree: Path, words: tuple[str, ...]) -> None:
    refused = run(tree, *words)
    assert refused.returncode == 2
    assert f"'{words[0]}' is not a version X.Y.Z" in refused.stderr
    assert (tree / "VERSION").read_text() == f"{VERSION}\n"
