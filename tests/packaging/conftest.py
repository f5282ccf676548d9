"""Fixtures: imports of packaging/ and scripts/, the build directory, commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
sys.path.insert(0, str(ROOT / "packaging"))
sys.path.insert(0, str(ROOT / "scripts"))

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def build() -> Path:
    found = Path(os.environ.get("ROCFLASH_BUILD", ROOT / "build"))
    if not (found / "lib" / "librocflash.so").exists():
        pytest.skip(f"{found} has no library; build first (make build)")
    return found


@pytest.fixture(scope="session")
def built_archs(build: Path) -> str:
    """The build's architectures in the form of PYTORCH_ROCM_ARCH; empty for CPU only."""
    import library

    return library.cached_archs(build) or ""


def source_files(directory: str = ".") -> list[str]:
    """The repository's files in a directory, including new ones. An unpacked archive has no git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", directory]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode == 0:
        names = result.stdout.split()
    else:
        found = [path.relative_to(ROOT) for path in (ROOT / directory).rglob("*")]
        names = [
            str(path)
            for path in found
            if not path.parts[0].startswith(("build", "dist")) and "__pycache__" not in path.parts
        ]
    return sorted(name for name in set(names) if (ROOT / name).is_file())


@pytest.fixture
def run() -> Run:
    """Runs a command without the environment variables of builds, except the given ones."""

    def call(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
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
            [str(argument) for argument in arguments],
            cwd=ROOT,
            text=True,
            capture_output=True,
            env={**kept, **nothing, **environment},
            timeout=600,
        )

    return call
