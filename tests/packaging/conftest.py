"""The modules of packaging/ and scripts/ as imports, the build directory, and running commands from the repository's root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
sys.path.insert(0, str(ROOT / "scripts"))

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def build() -> Path:
    return Path(os.environ.get("ROCFLASH_BUILD", ROOT / "build"))


@pytest.fixture(scope="session")
def built_archs(build: Path) -> str:
    """What the build directory has kernels for, as PYTORCH_ROCM_ARCH takes it; empty for the CPU alone."""
    import library

    return library.cached_archs(build) or ""


def source_files(folder: str = ".") -> list[str]:
    """What belongs to the repository below a folder, new files included. An unpacked archive has no git."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if told.returncode == 0:
        names = told.stdout.split()
    else:
        found = [path.relative_to(ROOT) for path in (ROOT / folder).rglob("*")]
        names = [
            str(path)
            for path in found
            if not path.parts[0].startswith(("build", "dist")) and "__pycache__" not in path.parts
        ]
    return sorted(name for name in set(names) if (ROOT / name).is_file())


@pytest.fixture
def run() -> Run:
    """Runs a command with nothing in the environment that the choices under test read, but what is given."""

    def call(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        read = (
            "PYTORCH_ROCM_ARCH",
            "GPU_ARCHS",
            "MAX_JOBS",
            "BUILD_TRITON_BACKEND",
            "ROCFLASH_BUILD",
            "SOURCE_DATE_EPOCH",
        )
        kept = {name: value for name, value in os.environ.items() if name not in read}
        nothing = {"ROCFLASH_SYSFS": "/nonexistent", "ROCFLASH_ROCMINFO": "/nonexistent"}
        return subprocess.run(
            [str(word) for word in words],
            cwd=ROOT,
            text=True,
            capture_output=True,
            env={**kept, **nothing, **environment},
            timeout=600,
        )

    return call
