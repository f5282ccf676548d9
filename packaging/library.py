"""The library that wheels carry: for which GPUs, in which build directory, compiled by how many jobs."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import archs

ROOT = archs.ROOT


def truth(name: str, value: str) -> bool:
    if value.lower() in ("1", "true", "on", "yes"):
        return True
    if value.lower() in ("", "0", "false", "off", "no"):
        return False
    raise ValueError(f"{name}: {value!r}; it must be true or false")


def cached_archs(build: Path) -> str | None:
    """ROCFLASH_GPU_ARCHS of a configured Release build, or None where there is none, or it was never to be packaged,
    or it lacks the kernels it was to have."""
    try:
        text = (build / "CMakeCache.txt").read_text()
        targets = (build / "kernels" / "include" / "targets.inc").read_text()
    except OSError:
        return None
    if not re.search(r"^CMAKE_BUILD_TYPE:\w+=Release$", text, re.MULTILINE):
        return None
    found = re.search(r"^ROCFLASH_GPU_ARCHS:\w+=(.*)$", text, re.MULTILINE)
    if not found or found[1] == "native":  # CMake does not install those
        return None
    if found[1] == "none":
        return "none"
    # By default a build without clang 22 is for the CPU alone, whatever the cache says.
    if not re.search(r"^#define ROCFLASH_TARGETS [1-9]", targets, re.MULTILINE):
        return None
    named = found[1].split(";")
    return ";".join(name for name in archs.kernel_targets() if name in named) or "all"


def build_directory(choice: archs.Choice) -> Path:
    """The developer's build/ where it is for the same GPUs, since it may have everything compiled."""
    named = os.environ.get("ROCFLASH_BUILD")
    if named:
        return Path(named).resolve()
    if cached_archs(ROOT / "build") == choice.option:
        return ROOT / "build"
    label = "-".join(choice.names)
    if len(choice.names) > 3:
        label = f"{len(choice.names)}-{hashlib.sha256(choice.option.encode()).hexdigest()[:8]}"
    return ROOT / f"build-rocm-{label}"


def lost_tools(build: Path) -> bool:
    """Whether the build directory was configured with tools that are gone, such as those of pip's isolated environments."""
    text = (build / "CMakeCache.txt").read_text()
    named = re.findall(r"^CMAKE_(?:MAKE_PROGRAM|COMMAND):\w+=(.+)$", text, re.MULTILINE)
    return not all(Path(name).exists() for name in named)


def has_kernel_compiler() -> bool:
    """Whether kernels for GPUs can be compiled; cmake/Kernels.cmake says what else is missing."""
    return bool(shutil.which("clang++-22") or Path("/usr/lib/llvm-22/bin/clang++").exists())


def has_command_headers() -> bool:
    """Whether the libraries that the command `rocflash` is written with are there."""
    folders = re.split(r"[:;]", os.environ.get("CMAKE_PREFIX_PATH", "") + ":/usr:/usr/local")
    names = ("CLI/CLI.hpp", "fmt/core.h", "nlohmann/json.hpp")
    return all(any((Path(p) / "include" / n).exists() for p in folders if p) for n in names)


def run(words: list[str]) -> None:
    print("+ " + " ".join(words), flush=True)
    subprocess.run(words, check=True, cwd=ROOT)


def compile_library(
    build: Path, choice: archs.Choice, job_count: int, *options: str, command: bool = True
) -> None:
    """Configures where needed and compiles; `options` are CMake's, and `command` says whether `rocflash` is wanted."""
    there = cached_archs(build) == choice.option
    if not there or lost_tools(build):
        compilers = subprocess.run(
            ["scripts/setup.sh", "--cmake-compilers"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.split()
        ninja = shutil.which("ninja")
        generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
        parts = [f"-DROCFLASH_BUILD_{part}=OFF" for part in ("TESTS", "EXAMPLES", "SIM")]
        run(
            [
                "cmake",
                "-S",
                ".",
                "-B",
                str(build),
                *generator,
                *compilers,
                *parts,
                *options,
                "-DCMAKE_BUILD_TYPE=Release",
                f"-DROCFLASH_GPU_ARCHS={choice.option}",
                "--log-level=WARNING",
            ]
        )
    run(
        [
            "cmake",
            "--build",
            str(build),
            "--parallel",
            str(job_count),
            "--target",
            "rocflash",
            *(["rocflash_cli"] if command else []),
        ]
    )
