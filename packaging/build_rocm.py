"""The implementation of build_rocm.sh: builds the library once, then writes stamped wheels."""

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
ARGUMENTS = {
    "flash-attn-version": "2.8.3 or 2.7.4.post1",
    "python": "3.12",
    "torch": "2.8",
    "rocm": "6.4",
}
USAGE = f"build_rocm.sh [options] {' '.join(f'<{name}>' for name in ARGUMENTS)}"


def epilogue() -> str:
    pairs = "\n".join(
        f"    torch {t:<5} ROCm {', '.join(versions.rocm_of(t)):<14} Python {p[0]} to {p[1]}"
        for t, (_, p) in versions.TORCH.items()
    )
    return f"""known versions; others are built with a warning:
    flash-attn {", ".join(versions.FLASH_ATTN)}
{pairs}

environment:
    PYTORCH_ROCM_ARCH     GPUs to build for, such as "gfx942;gfx1100", all, or native: the AMD GPUs
                          found in this machine (in the kernel's KFD nodes or by rocminfo).
                          Default: GPU_ARCHS, else the GPUs found, else all
    MAX_JOBS              parallel compile jobs; the default depends on cores and free memory
    BUILD_TRITON_BACKEND  true: also writes a wheel with triton in its name. It depends on
                          triton and selects that backend, unless a call, ROCFLASH_BACKEND or
                          FLASH_ATTENTION_TRITON_AMD_ENABLE=FALSE selects another
    ROCFLASH_BUILD        the build directory; by default build/ if it has the same GPUs, else
                          build-rocm-...
    SOURCE_DATE_EPOCH     the timestamp of the wheel's entries; a fixed one by default
    ROCFLASH_SYSFS, ROCFLASH_ROCMINFO   where to look for GPUs instead of /sys and rocminfo

One library serves every combination: the first wheel takes minutes, each further one seconds."""


def size(path: Path) -> str:
    return f"{path.stat().st_size / 2**20:.2f} MiB"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="build_rocm.sh",
        usage=USAGE,
        epilog=epilogue(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Builds a flash_attn wheel for AMD GPUs, library included.",
    )
    for name, example in ARGUMENTS.items():
        parser.add_argument(name, metavar=f"<{name}>", help=f"such as {example}")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and exit")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="output directory (dist/)")
    options = parser.parse_args(arguments)

    try:
        triton = library.truth("BUILD_TRITON_BACKEND", os.environ.get("BUILD_TRITON_BACKEND", ""))
        kinds = (False, True) if triton else (False,)
        given = [getattr(options, name) for name in ARGUMENTS]
        combinations = [versions.check(*given, kind) for kind in kinds]
        choice = archs.choose()
        job_count, job_why = jobs.choose()
    except ValueError as error:
        print(f"build_rocm.sh: {error}", file=sys.stderr)
        return 2
    build = library.build_directory(choice)
    out = options.out.resolve()
    for warning in combinations[0].warnings:
        print(f"build_rocm.sh: warning: {warning}", file=sys.stderr)
    for combination in combinations:
        print(f"wheel    {out / combination.file_name}")
    print(f"GPUs     {' '.join(choice.names)} ({choice.why})")
    for note in choice.notes:
        print(f"         {note}")
    print(f"jobs     {job_count} ({job_why})")
    state = "existing" if library.cached_archs(build) == choice.option else "new"
    print(f"build    {build} ({state})", flush=True)
    if options.dry_run:
        print("nothing done: --dry-run")
        return 0

    missing = ""
    if choice.names != ("none",):
        missing = library.ensure_kernel_compiler(lambda topic, text: print(f"{topic:8} {text}"))
    if missing:
        print(f"build_rocm.sh: GPU kernels need {missing}; see docs/install.md", file=sys.stderr)
        return 1

    start = time.monotonic()
    try:
        library.compile_library(build, choice, job_count)
        compiled_at = time.monotonic()
        compiled = wheel.compiled_files(build)
        paths = [
            wheel.write_stamped(
                out,
                combination.version,
                combination.tag,
                compiled,
                "triton" if combination.triton else "",
            )
            for combination in combinations
        ]
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"build_rocm.sh: {error}", file=sys.stderr)
        return 1
    if [path.name for path in paths] != [combination.file_name for combination in combinations]:
        raise RuntimeError(f"{paths} do not match {combinations}")
    ended = time.monotonic()
    library_size = len(compiled["rocflash/lib/librocflash.so.0"][0]) / 2**20
    for path in paths:
        print(f"done     {path}")
    sizes = ", ".join(size(path) for path in paths)
    print(f"size     {sizes}; the library is {library_size:.2f} MiB uncompressed")
    print(f"time     {compiled_at - start:.1f} s compiling, {ended - compiled_at:.1f} s stamping")
    print(f"install  pip install {paths[0]}")
    for path in paths[1:]:
        print(f"         or, with Triton as the default backend: pip install {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
