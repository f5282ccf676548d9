"""build_rocm.sh as it is typed: what it says it will do, what it refuses, and a wheel in seconds."""

from __future__ import annotations

import time
from pathlib import Path

import library
import pytest
from conftest import ROOT, Run

SCRIPT = "./build_rocm.sh"
VERSIONS = ("2.8.3", "3.12", "2.8", "6.4")


def test_help(run: Run) -> None:
    told = run(SCRIPT, "--help")
    assert told.returncode == 0
    for words in (
        "<flash-attn-version> <python> <torch> <rocm>",
        "PYTORCH_ROCM_ARCH",
        "MAX_JOBS",
        "BUILD_TRITON_BACKEND",
        "--dry-run",
        "torch 2.8   ROCm 6.3, 6.4",
    ):
        assert words in told.stdout


def test_dry_run_tells_everything_and_does_nothing(run: Run, tmp_path: Path) -> None:
    told = run(
        SCRIPT,
        "--dry-run",
        "--out",
        tmp_path / "out",
        *VERSIONS,
        PYTORCH_ROCM_ARCH="gfx1030;gfx1031",
        MAX_JOBS="3",
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        f"wheel    {tmp_path}/out/flash_attn-2.8.3+rocm64torch2.8-cp312-cp312-linux_x86_64.whl",
        "GPUs     gfx1030 gfx1031 (PYTORCH_ROCM_ARCH)",
        "jobs     3 (MAX_JOBS)",
        f"build    {ROOT}/build-rocm-gfx1030-gfx1031 (new)",
        "nothing done: --dry-run",
    ]
    assert not (tmp_path / "out").exists() and not (ROOT / "build-rocm-gfx1030-gfx1031").exists()


def test_says_that_it_builds_for_all(run: Run) -> None:
    assert (
        "GPUs     all (nothing asked for and no AMD GPU found)"
        in run(SCRIPT, "--dry-run", *VERSIONS).stdout
    )


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (("2.8.4", "3.12", "2.8", "6.4"), {}, "build_rocm.sh: flash-attn: 2.8.4; there are 2.6.3,"),
        (
            VERSIONS,
            {"PYTORCH_ROCM_ARCH": "gfx1"},
            "build_rocm.sh: PYTORCH_ROCM_ARCH: gfx1; there are kernels for gfx90a",
        ),
        (VERSIONS, {"MAX_JOBS": "many"}, "build_rocm.sh: MAX_JOBS: 'many'; it must be"),
        (
            VERSIONS,
            {"BUILD_TRITON_BACKEND": "maybe"},
            "build_rocm.sh: BUILD_TRITON_BACKEND: 'maybe'; it must be true or false",
        ),
        (VERSIONS[:3], {}, "usage: build_rocm.sh"),
        ((*VERSIONS, "--fast"), {}, "usage: build_rocm.sh"),
    ],
)
def test_refusals(
    run: Run, words: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    told = run(SCRIPT, "--dry-run", *words, **environment)
    assert told.returncode == 2
    assert told.stderr.startswith(message), told.stderr


@pytest.mark.parametrize(
    ("cached", "count", "kind", "found"),
    [
        ("gfx1100;gfx942", 2, "Release", "gfx942;gfx1100"),
        ("", 21, "Release", "all"),
        ("all", 21, "Release", "all"),
        ("", 0, "Release", None),
        ("all", 21, "Debug", None),
    ],
)
def test_which_builds_are_taken(
    tmp_path: Path, cached: str, count: int, kind: str, found: str | None
) -> None:
    """A Release build with kernels, whatever the order in which they were named."""
    assert library.cached_archs(tmp_path) is None
    (tmp_path / "kernels/include").mkdir(parents=True)
    (tmp_path / "kernels/include/targets.inc").write_text(f"#define ROCFLASH_TARGETS {count}\n")
    (tmp_path / "CMakeCache.txt").write_text(
        f"CMAKE_BUILD_TYPE:STRING={kind}\nROCFLASH_GPU_ARCHS:STRING={cached}\n"
    )
    assert library.cached_archs(tmp_path) == found


def test_needs_a_python(run: Run, tmp_path: Path) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    told = run("/bin/bash", SCRIPT, "--help", PATH=str(tmp_path))
    assert told.returncode == 2 and "no Python 3.9 or newer" in told.stderr


def test_each_further_wheel_takes_seconds(
    run: Run, tmp_path: Path, build: Path, built_archs: str
) -> None:
    """Two combinations from the library that is there: nothing is compiled, and they differ in nothing but the stamp."""
    if not built_archs:
        pytest.skip("this build is for the CPU alone")
    began = time.monotonic()
    for words in (VERSIONS, ("2.7.4", "3.10", "2.13", "7.2")):
        told = run(
            SCRIPT,
            "--out",
            tmp_path,
            *words,
            PYTORCH_ROCM_ARCH=built_archs,
            ROCFLASH_BUILD=str(build),
        )
        assert told.returncode == 0, told.stdout + told.stderr
        assert "Building" not in told.stdout
        assert "MiB" in told.stdout and "s stamping" in told.stdout and "pip install" in told.stdout
    assert time.monotonic() - began < 60
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "flash_attn-2.7.4+rocm72torch2.13-cp310-cp310-linux_x86_64.whl",
        "flash_attn-2.8.3+rocm64torch2.8-cp312-cp312-linux_x86_64.whl",
    ]
