"""Builds the library of the wheels: GPUs, build directory, compile jobs."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import archs
import kernel_compiler

ROOT = archs.ROOT


def truth(name: str, value: str) -> bool:
    if value.lower() in ("1", "true", "on", "yes"):
        return True
    if value.lower() in ("", "0", "false", "off", "no"):
        return False
    raise ValueError(f"{name} is {value!r}; it must be true or false")


def cached_archs(build: Path) -> str | None:
    """ROCFLASH_GPU_ARCHS of a Release build that may be packaged and has its kernels, or None."""
    try:
        text = (build / "CMakeCache.txt").read_text()
        targets = (build / "kernels" / "include" / "targets.inc").read_text()
    except OSError:
        return None
    if not re.search(r"^CMAKE_BUILD_TYPE:\w+=Release$", text, re.MULTILINE):
        return None
    found = re.search(r"^ROCFLASH_GPU_ARCHS:\w+=(.*)$", text, re.MULTILINE)
    if not found or found[1] == "native":  # CMake does not install such a build
        return None
    if found[1] == "none":
        return "none"
    # Without clang 22 the default build has no kernels, although the cache names architectures.
    if not re.search(r"^#define ROCFLASH_TARGETS [1-9]", targets, re.MULTILINE):
        return None
    named = found[1].split(";")
    return ";".join(name for name in archs.kernel_targets() if name in named) or "all"


def build_directory(choice: archs.Choice) -> Path:
    """The developer's build/ if it has the same GPUs, because it may be compiled already."""
    named = os.environ.get("ROCFLASH_BUILD")
    if named:
        return Path(named).resolve()
    if cached_archs(ROOT / "build") == choice.option:
        return ROOT / "build"
    label = "-".join(choice.names)
    if len(choice.names) > 3:
        label = f"{len(choice.names)}-{hashlib.sha256(choice.option.encode()).hexdigest()[:8]}"
    return ROOT / f"build-rocm-{label}"


def has_stale_tools(build: Path) -> bool:
    """Whether the tools of the configured build, such as pip's isolated ones, no longer exist."""
    text = (build / "CMakeCache.txt").read_text()
    named = re.findall(r"^CMAKE_(?:MAKE_PROGRAM|COMMAND):\w+=(.+)$", text, re.MULTILINE)
    return not all(Path(name).exists() for name in named)


def missing_kernel_tools() -> str:
    """The missing ones of clang 22 and lld 22, as CMake searches them; empty if both exist."""
    return ", ".join(
        line.removeprefix("missing ")
        for line in kernel_compiler.found()[1].splitlines()
        if line.startswith("missing ")
    )


def has_kernel_compiler() -> bool:
    """Whether GPU kernels can be compiled; cmake/Kernels.cmake reports other missing tools."""
    return kernel_compiler.found()[0]


def ensure_kernel_compiler(report: Callable[[str, str], None]) -> str:
    """Installs the compiler from PyPI if there is none. Returns what is still missing, or
    nothing.
    """
    missing = missing_kernel_tools()
    if not missing:
        return ""
    report("compiler", f"missing: {missing}; installing clang 22 from PyPI (100 MB)")
    try:
        report("", f"installed in {kernel_compiler.install()}")
    except kernel_compiler.InstallError as error:
        report("", f"not installed: {error}")
        return missing
    return missing_kernel_tools()


def kernel_compiler_path() -> str:
    """The compiler that CMake uses for the kernels. Raises RuntimeError if there is none."""
    for line in kernel_compiler.found()[1].splitlines():
        if line.startswith("compiler "):
            return line.removeprefix("compiler ")
    raise RuntimeError(f"no compiler of GPU kernels: {missing_kernel_tools()}")


def signs_of_gpus() -> list[str]:
    """GPUs, their device files and their drivers on this machine."""
    script = ROOT / "kernels" / "build" / "native.sh"
    found = subprocess.run(
        ["sh", str(script), "--signs"], capture_output=True, text=True, check=True
    )
    return found.stdout.splitlines()


def has_command_headers() -> bool:
    """Whether the libraries of the command `rocflash` are installed."""
    prefixes = re.split(r"[:;]", os.environ.get("CMAKE_PREFIX_PATH", "") + ":/usr:/usr/local")
    names = ("CLI/CLI.hpp", "fmt/core.h", "nlohmann/json.hpp")
    return all(any((Path(p) / "include" / n).exists() for p in prefixes if p) for n in names)


def run(command: list[str]) -> None:
    print("+ " + " ".join(command), flush=True)
    subprocess.run(command, check=True, cwd=ROOT)


def compile_library(
    build: Path, choice: archs.Choice, job_count: int, *options: str, command: bool = True
) -> None:
    """Configures if needed and compiles; `options` go to CMake, `command` also builds
    `rocflash`.
    """
    is_configured = cached_archs(build) == choice.option
    if not is_configured or has_stale_tools(build):
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
