#!/usr/bin/env python3
"""Holds PTX kernels to what their assembler says of them: no serialised wgmma, no spills.

    scripts/ptxas_log.py build/kernels/sm_90a.ptx                  by the NVIDIA driver of this machine
    scripts/ptxas_log.py --ptxas PATH build/kernels/sm_90a.ptx     by a ptxas, without any GPU

Kernels are assembled one by one, as the library loads them. A warpgroup's products that the assembler serialises are
right but several times slower, and nothing else tells; a spill costs more than any schedule wins. Exit status 1 names
each kernel with what was said about it.
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
# What ptxas says where it inserts a wait or a fence of its own: a missing one of ours.
INSERTED = ("C7517", "C7519")


def kernels(ptx: str) -> Iterator[tuple[str, str]]:
    """Each kernel's name and the module with it alone: an entry ends with a brace of its own."""
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


def complaints(log: str) -> list[str]:
    """What a log says against a kernel; empty if nothing."""
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
        found.append("the log does not tell about spills")
    return found


def by_ptxas(program: str, arch: str) -> Callable[[str], str]:
    def assemble(module: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "kernel.ptx")
            source.write_text(module)
            run = subprocess.run(
                [program, "-v", "-arch", arch, str(source), "-o", str(Path(folder, "out"))],
                capture_output=True,
                text=True,
                check=False,
            )
        if run.returncode != 0:
            raise SystemExit(f"{program}: {run.stdout}{run.stderr}")
        return run.stdout + run.stderr

    return assemble


def by_driver() -> Callable[[str], str]:
    """The driver's own compiler, with its log: what a call of the library goes through."""
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # what comes from the cache has no log
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
        # The log, its size, and that it is to be verbose.
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
    parser.add_argument("--ptxas", help="an assembler; without it the driver's")
    parser.add_argument("ptx", nargs="+", type=Path)
    arguments = parser.parse_args()
    bad = count = 0
    driver = None if arguments.ptxas else by_driver()
    for path in arguments.ptx:
        ptx = path.read_text()
        target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
        if not target:
            raise SystemExit(f"{path}: no PTX")
        assemble = driver or by_ptxas(arguments.ptxas, target.group(1))
        for name, module in kernels(ptx):
            found = complaints(assemble(module))
            count += 1
            bad += bool(found)
            for line in found:
                print(f"{path.name} {name}: {line}", file=sys.stderr)
    print(f"{count} kernels, {bad} with complaints")
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
