#!/usr/bin/env python3
"""Checks the assembler's log of PTX kernels: no serialized wgmma, no spills.

    scripts/ptxas_log.py build/kernels/sm_90a.ptx                with this machine's NVIDIA driver
    scripts/ptxas_log.py --ptxas PATH build/kernels/sm_90a.ptx   with a ptxas, without a GPU

Kernels are assembled one by one, as the library loads them. wgmma instructions that the assembler
serializes give correct results but are several times slower, and no other test detects them.
Register spills cost more than any schedule gains. Exit status 1: a kernel has problems, which are
printed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ENTRY = re.compile(r"^\.visible \.entry ([A-Za-z0-9_$]+)\(", re.MULTILINE)
# ptxas reports these where it inserts a wait or a fence that the kernel lacks.
INSERTED = ("C7517", "C7519")


def kernels(ptx: str) -> Iterator[tuple[str, str]]:
    """Each kernel's name, and the module with only that kernel. An entry ends with a line `}`."""
    entries = []
    for match in ENTRY.finditer(ptx):
        end = ptx.index("\n}\n", match.start()) + 3
        entries.append((match.group(1), match.start(), end))
    for name, begin, end in entries:
        shared, at = "", 0
        for _, other_begin, other_end in entries:
            shared += ptx[at:other_begin]
            if other_begin == begin:
                shared += ptx[begin:end]
            at = other_end
        yield name, shared + ptx[at:]


def problems(log: str) -> list[str]:
    """The problems that a log reports."""
    found = []
    for line in log.splitlines():
        code = re.search(r"\bC75\d\d\b", line)
        if code:
            kind = "a wait or fence is missing" if code.group() in INSERTED else "wgmma"
            found.append(f"{kind}: {line.strip()}")
        spill = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if spill and (int(spill.group(1)) or int(spill.group(2))):
            found.append(f"spills: {line.strip()}")
    if "spill stores" not in log:
        found.append("the log has no spill report")
    return found


def ptxas_assembler(program: str, arch: str) -> Callable[[str], str]:
    def assemble(module: str) -> str:
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory, "kernel.ptx")
            source.write_text(module)
            run = subprocess.run(
                [program, "-v", "-arch", arch, str(source), "-o", str(Path(directory, "out"))],
                capture_output=True,
                text=True,
                check=False,
            )
        if run.returncode != 0:
            raise SystemExit(f"{program}: {run.stdout}{run.stderr}")
        return run.stdout + run.stderr

    return assemble


def driver_assembler() -> Callable[[str], str]:
    """The driver's JIT compiler with its log, which is the one that the library uses."""
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # a cached kernel has no log
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        error = getattr(cuda, name)(*arguments)
        if error:
            raise SystemExit(f"{name}: error {error}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)

    def assemble(module: str) -> str:
        log = ctypes.create_string_buffer(1 << 16)
        # CU_JIT_INFO_LOG_BUFFER, its size, CU_JIT_LOG_VERBOSE.
        options = (ctypes.c_int * 3)(3, 4, 12)
        values = (ctypes.c_void_p * 3)(ctypes.addressof(log), len(log), 1)
        loaded = ctypes.c_void_p()
        text = module.encode() + b"\0"
        call("cuModuleLoadDataEx", ctypes.byref(loaded), text, 3, options, values)
        call("cuModuleUnload", loaded)
        return log.value.decode()

    return assemble


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ptxas", help="path of ptxas; default: the driver's JIT compiler")
    parser.add_argument("ptx", nargs="+", type=Path)
    arguments = parser.parse_args()
    bad = count = 0
    driver = None if arguments.ptxas else driver_assembler()
    for path in arguments.ptx:
        ptx = path.read_text()
        target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
        if not target:
            raise SystemExit(f"{path}: has no .target directive; must be PTX")
        assemble = driver or ptxas_assembler(arguments.ptxas, target.group(1))
        for name, module in kernels(ptx):
            found = problems(assemble(module))
            count += 1
            bad += bool(found)
            for line in found:
                print(f"{path.name} {name}: {line}", file=sys.stderr)
    print(f"{count} kernels, {bad} with problems")
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
