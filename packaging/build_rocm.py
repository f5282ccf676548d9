"""Behind build_rocm.sh: builds the library once, then stamps flash_attn wheels, seconds for each."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import archs
import jobs
import versions
import wheel

ROOT = wheel.ROOT
USAGE = "build_rocm.sh [options] <flash-attn-version> <python> <torch> <rocm>"


def epilogue() -> str:
    pairs = "\n".join(
        f"    torch {t:<5} ROCm {', '.join(r):<10} Python {p[0]} to {p[1]}"
        for t, (r, p) in versions.TORCH.items()
    )
    return f"""versions:
    flash-attn {", ".join(versions.FLASH_ATTN)}
{pairs}

environment:
    PYTORCH_ROCM_ARCH     GPUs to build for, such as "gfx942;gfx1100", or all; then GPU_ARCHS, then the GPUs found
                          in this machine (by the kernel's KFD nodes, then rocminfo), then all
    MAX_JOBS              compilers at once; by default from cores and free memory
    BUILD_TRITON_BACKEND  true: the wheel's name says triton. The content is the same: every wheel has the Triton
                          kernels beside its own, and the choice is made at run time
    ROCFLASH_BUILD        the build directory; by default build/ where it has the same GPUs, else build-rocm-...
    SOURCE_DATE_EPOCH     the time in the wheel's entries; by default a fixed one
    ROCFLASH_SYSFS, ROCFLASH_ROCMINFO   where to look for GPUs instead of /sys and rocminfo

One library serves every combination, so the first takes minutes and each further one seconds."""


def truth(name: str, value: str) -> bool:
    if value.lower() in ("1", "true", "on", "yes"):
        return True
    if value.lower() in ("", "0", "false", "off", "no"):
        return False
    raise ValueError(f"{name}: {value!r}; it must be true or false")


def cached_archs(build: Path) -> str | None:
    """ROCFLASH_GPU_ARCHS of a configured Release build that has kernels, or None."""
    try:
        text = (build / "CMakeCache.txt").read_text()
        targets = (build / "kernels" / "include" / "targets.inc").read_text()
    except OSError:
        return None
    # By default a build without clang 22 is for the CPU alone, whatever the cache says.
    if not re.search(r"^#define ROCFLASH_TARGETS [1-9]", targets, re.MULTILINE):
        return None
    if not re.search(r"^CMAKE_BUILD_TYPE:\w+=Release$", text, re.MULTILINE):
        return None
    found = re.search(r"^ROCFLASH_GPU_ARCHS:\w+=(.*)$", text, re.MULTILINE)
    if not found:
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


def run(words: list[str]) -> None:
    print("+ " + " ".join(words), flush=True)
    subprocess.run(words, check=True, cwd=ROOT)


def compile_library(build: Path, choice: archs.Choice, job_count: int) -> None:
    if cached_archs(build) != choice.option:
        compilers = subprocess.run(
            ["scripts/setup.sh", "--cmake-compilers"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.split()
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
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
            "rocflash_cli",
        ]
    )


def size(path: Path) -> str:
    return f"{path.stat().st_size / 2**20:.2f} MiB"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="build_rocm.sh",
        usage=USAGE,
        epilog=epilogue(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Builds a flash_attn wheel for AMD GPUs, library included.",
    )
    parser.add_argument("versions", nargs=4, metavar="version", help="such as 2.8.3 3.12 2.8 6.4")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and do nothing"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="where the wheel goes (dist/)"
    )
    given = parser.parse_args(words)

    try:
        triton = truth("BUILD_TRITON_BACKEND", os.environ.get("BUILD_TRITON_BACKEND", ""))
        wanted = versions.check(*given.versions, triton)
        choice = archs.choose()
        job_count, job_why = jobs.choose()
    except ValueError as error:
        print(f"build_rocm.sh: {error}", file=sys.stderr)
        return 2
    build = build_directory(choice)
    out = given.out.resolve()
    print(f"wheel    {out / wanted.file_name}")
    print(f"GPUs     {' '.join(choice.names)} ({choice.why})")
    for note in choice.notes:
        print(f"         {note}")
    print(f"jobs     {job_count} ({job_why})")
    state = "there already" if cached_archs(build) == choice.option else "new"
    print(f"build    {build} ({state})", flush=True)
    if given.dry_run:
        print("nothing done: --dry-run")
        return 0

    began = time.monotonic()
    try:
        compile_library(build, choice, job_count)
        compiled_at = time.monotonic()
        compiled = wheel.compiled_files(build)
        path = wheel.write_stamped(out, wanted.version, wanted.tag, compiled)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"build_rocm.sh: {error}", file=sys.stderr)
        return 1
    if path.name != wanted.file_name:
        raise RuntimeError(f"{path.name} was written instead of {wanted.file_name}")
    ended = time.monotonic()
    library = len(compiled["rocflash/lib/librocflash.so.0"][0]) / 2**20
    print(f"done     {path}")
    print(f"size     {size(path)}, of it the library {library:.2f} MiB before compression")
    print(f"time     {compiled_at - began:.1f} s compiling, {ended - compiled_at:.1f} s stamping")
    print(f"install  pip install {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
