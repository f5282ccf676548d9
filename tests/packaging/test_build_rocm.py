"""build_rocm.sh as a command: its plan, its error messages, and wheels within seconds."""

from __future__ import annotations

import re
import time
from pathlib import Path

import library
import pytest
from conftest import ROOT, Run

SCRIPT = "./build_rocm.sh"
VERSIONS = ("2.8.3", "3.12", "2.8", "6.4")


def test_help(run: Run) -> None:
    result = run(SCRIPT, "--help")
    assert result.returncode == 0
    for arguments in (
        "<flash-attn-version> <python> <torch> <rocm>",
        "PYTORCH_ROCM_ARCH",
        "MAX_JOBS",
        "BUILD_TRITON_BACKEND",
        "--dry-run",
        "torch 2.8   ROCm 6.3, 6.4",
    ):
        assert arguments in result.stdout


def test_dry_run_prints_the_plan(run: Run, tmp_path: Path) -> None:
    result = run(
        SCRIPT,
        "--dry-run",
        "--out",
        tmp_path / "out",
        *VERSIONS,
        PYTORCH_ROCM_ARCH="gfx1030;gfx1031",
        MAX_JOBS="3",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"wheel    {tmp_path}/out/flash_attn-2.8.3+rocm64torch2.8-cp312-cp312-linux_x86_64.whl",
        "GPUs     gfx1030 gfx1031 (PYTORCH_ROCM_ARCH)",
        "jobs     3 (MAX_JOBS)",
        f"build    {ROOT}/build-rocm-gfx1030-gfx1031 (new)",
        "nothing done: --dry-run",
    ]
    assert not (tmp_path / "out").exists() and not (ROOT / "build-rocm-gfx1030-gfx1031").exists()


def test_default_architectures_are_reported(run: Run) -> None:
    assert (
        "GPUs     all (no GPU requested and no AMD GPU found)"
        in run(SCRIPT, "--dry-run", *VERSIONS).stdout
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (
            ("3.0.0", "3.12", "2.8", "6.4"),
            {},
            "build_rocm.sh: flash-attn is '3.0.0'; it must be a version of flash-attn 2 such as",
        ),
        (
            VERSIONS,
            {"PYTORCH_ROCM_ARCH": "gfx1"},
            "build_rocm.sh: PYTORCH_ROCM_ARCH: gfx1; ",
        ),
        (
            VERSIONS,
            {"PYTORCH_ROCM_ARCH": "native"},
            "build_rocm.sh: PYTORCH_ROCM_ARCH: native; this machine has no AMD GPU",
        ),
        (
            VERSIONS,
            {"PYTORCH_ROCM_ARCH": "sm_80"},
            "build_rocm.sh: PYTORCH_ROCM_ARCH: sm_80 is an NVIDIA architecture; ",
        ),
        (
            VERSIONS,
            {"GPU_ARCHS": "sm_80"},
            "build_rocm.sh: GPU_ARCHS: sm_80; a wheel for ROCm must have at least one AMD",
        ),
        (VERSIONS, {"MAX_JOBS": "many"}, "build_rocm.sh: MAX_JOBS is 'many'; it must be"),
        (
            VERSIONS,
            {"BUILD_TRITON_BACKEND": "maybe"},
            "build_rocm.sh: BUILD_TRITON_BACKEND is 'maybe'; it must be true or false",
        ),
        *(
            (
                VERSIONS[:count],
                {},
                "usage: build_rocm.sh [options] <flash-attn-version> <python> <torch> <rocm>\n"
                f"build_rocm.sh: error: the following arguments are required: {missing}\n",
            )
            for count, missing in ((3, "<rocm>"), (2, "<torch>, <rocm>"))
        ),
        ((*VERSIONS, "--fast"), {}, "usage: build_rocm.sh"),
    ],
)
def test_invalid_arguments(
    run: Run, arguments: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    result = run(SCRIPT, "--dry-run", *arguments, **environment)
    assert result.returncode == 2
    assert result.stderr.startswith(message), result.stderr


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
def test_reusable_build_directories(
    tmp_path: Path, cached: str, count: int, kind: str, found: str | None
) -> None:
    """A Release build with kernels is reusable; the order of its architectures has no effect."""
    assert library.cached_archs(tmp_path) is None
    (tmp_path / "kernels/include").mkdir(parents=True)
    (tmp_path / "kernels/include/targets.inc").write_text(f"#define ROCFLASH_TARGETS {count}\n")
    (tmp_path / "CMakeCache.txt").write_text(
        f"CMAKE_BUILD_TYPE:STRING={kind}\nROCFLASH_GPU_ARCHS:STRING={cached}\n"
    )
    assert library.cached_archs(tmp_path) == found


def test_missing_python_is_reported(run: Run, tmp_path: Path) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    result = run("/bin/bash", SCRIPT, "--help", PATH=str(tmp_path))
    assert result.returncode == 2 and "no Python 3.9 or newer" in result.stderr


def test_a_wheel_takes_seconds_with_a_built_library(
    run: Run, tmp_path: Path, build: Path, built_archs: str
) -> None:
    """Two combinations from one built library: nothing is compiled."""
    if not built_archs:
        pytest.skip("this build is CPU only")
    start = time.monotonic()
    for arguments in (VERSIONS, ("2.7.4.post1", "3.10", "2.13", "7.2")):
        triton = "true" if arguments is VERSIONS else "false"
        result = run(
            SCRIPT,
            "--out",
            tmp_path,
            *arguments,
            GPU_ARCHS=built_archs,
            ROCFLASH_BUILD=str(build),
            BUILD_TRITON_BACKEND=triton,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        installs = re.findall(r"pip install (\S+)", result.stdout)
        assert len(installs) == (2 if triton == "true" else 1), "a command for each wheel"
        assert all(Path(path).exists() for path in installs)
        assert result.stderr.count("is not known") == ("post1" in arguments[0])
        assert "Building" not in result.stdout
        assert (
            "MiB" in result.stdout
            and "s stamping" in result.stdout
            and "pip install" in result.stdout
        )
    assert time.monotonic() - start < 60
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "flash_attn-2.7.4.post1+rocm72torch2.13-cp310-cp310-linux_x86_64.whl",
        "flash_attn-2.8.3+rocm64torch2.8-cp312-cp312-linux_x86_64.whl",
        "flash_attn-2.8.3+rocm64torch2.8triton-cp312-cp312-linux_x86_64.whl",
    ]
