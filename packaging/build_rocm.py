"""Behind build_rocm.sh: builds the library once, then stamps flash_attn wheels, seconds for each."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import archs
import jobs
import library
import versions
import wheel

ROOT = wheel.ROOT
USAGE = "build_rocm.sh [options] <flash-attn-version> <python> <torch> <rocm>"


def epilogue() -> str:
    pairs = "\n".join(
        f"    torch {t:<5} ROCm {', '.join(versions.rocm_of(t)):<14} Python {p[0]} to {p[1]}"
        for t, (_, p) in versions.TORCH.items()
    )
    return f"""versions that are known; others are built with a warning:
    flash-attn {", ".join(versions.FLASH_ATTN)}
{pairs}

environment:
    PYTORCH_ROCM_ARCH     GPUs to build for, such as "gfx942;gfx1100", or all; then GPU_ARCHS, then the GPUs found
                          in this machine (by the kernel's KFD nodes, then rocminfo), then all
    MAX_JOBS              compilers at once; by default from cores and free memory
    BUILD_TRITON_BACKEND  true: also a wheel whose name says triton. It depends on triton, and calls use that backend unless
                          they, ROCFLASH_BACKEND or FLASH_ATTENTION_TRITON_AMD_ENABLE=FALSE say otherwise; the library is the same
    ROCFLASH_BUILD        the build directory; by default build/ where it has the same GPUs, else build-rocm-...
    SOURCE_DATE_EPOCH     the time in the wheel's entries; by default a fixed one
    ROCFLASH_SYSFS, ROCFLASH_ROCMINFO   where to look for GPUs instead of /sys and rocminfo

One library serves every combination, so the first takes minutes and each further one seconds."""


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
        triton = library.truth("BUILD_TRITON_BACKEND", os.environ.get("BUILD_TRITON_BACKEND", ""))
        kinds = (False, True) if triton else (False,)
        combinations = [versions.check(*given.versions, kind) for kind in kinds]
        choice = archs.choose()
        job_count, job_why = jobs.choose()
    except ValueError as error:
        print(f"build_rocm.sh: {error}", file=sys.stderr)
        return 2
    build = library.build_directory(choice)
    out = given.out.resolve()
    for warning in combinations[0].warnings:
        print(f"build_rocm.sh: warning: {warning}", file=sys.stderr)
    for wanted in combinations:
        print(f"wheel    {out / wanted.file_name}")
    print(f"GPUs     {' '.join(choice.names)} ({choice.why})")
    for note in choice.notes:
        print(f"         {note}")
    print(f"jobs     {job_count} ({job_why})")
    state = "there already" if library.cached_archs(build) == choice.option else "new"
    print(f"build    {build} ({state})", flush=True)
    if given.dry_run:
        print("nothing done: --dry-run")
        return 0

    began = time.monotonic()
    try:
        library.compile_library(build, choice, job_count)
        compiled_at = time.monotonic()
        compiled = wheel.compiled_files(build)
        paths = [
            wheel.write_stamped(
                out, wanted.version, wanted.tag, compiled, "triton" if wanted.triton else ""
            )
            for wanted in combinations
        ]
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"build_rocm.sh: {error}", file=sys.stderr)
        return 1
    if [path.name for path in paths] != [wanted.file_name for wanted in combinations]:
        raise RuntimeError(f"{paths} were written instead of {combinations}")
    ended = time.monotonic()
    inside = len(compiled["rocflash/lib/librocflash.so.0"][0]) / 2**20
    for path in paths:
        print(f"done     {path}")
    print(f"size     {size(paths[0])}, of it the library {inside:.2f} MiB before compression")
    print(f"time     {compiled_at - began:.1f} s compiling, {ended - compiled_at:.1f} s stamping")
    print(f"install  pip install {paths[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
