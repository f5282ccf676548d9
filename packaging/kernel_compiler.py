#!/usr/bin/env python3
"""Installs clang 22 and lld 22 for the GPU kernels from a wheel, without root.

    kernel_compiler.py            installs them into the user's cache
    kernel_compiler.py --wheel F  the same from a downloaded wheel, for machines without a network

The wheel `ziglang` of PyPI contains LLVM's clang and lld with the targets of AMD and NVIDIA GPUs.
Only its compiler and the compiler's headers are kept (about 180 MB), in
~/.cache/rocflash/llvm-22, where kernels/build/llvm.sh finds them. It compiles kernels only: the
host code needs the system's compiler. Version and hash are in requirements-compiler.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements-compiler.txt")
FINDER = Path(__file__).resolve().parent.parent / "kernels" / "build" / "llvm.sh"
# The compiler drives itself under this name, and reads its headers from the resource directory.
PROGRAMS = {
    "clang++": 'clang --driver-mode=g++ -resource-dir "$directory"',
    "ld.lld": "ld.lld",
}


class InstallError(RuntimeError):
    """The compiler could not be installed; the message has the reason."""


def directory() -> Path:
    """The directory that kernels/build/llvm.sh searches last."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "rocflash" / "llvm-22"


def found() -> tuple[bool, str]:
    """Whether the compiler and the linker of the kernels exist, and what llvm.sh printed."""
    result = subprocess.run(["sh", str(FINDER)], capture_output=True, text=True)
    return result.returncode == 0, result.stdout + result.stderr


def pip_command(scratch: Path) -> list[str]:
    """pip of this Python, else of a new virtual environment: Debian's python3 has no pip."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(scratch / "venv")], capture_output=True, text=True
    )
    if made.returncode:
        raise InstallError(
            "neither pip nor venv is available (Debian, Ubuntu: apt-get install python3-venv)"
        )
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]


def download(scratch: Path) -> Path:
    """The wheel from the configured package index. pip checks its hash."""
    command = [*pip_command(scratch), "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(scratch)]
    done = subprocess.run([*command, "-r", str(REQUIREMENTS)], capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise InstallError(f"pip download failed: {lines[-1] if lines else 'no message'}")
    (path,) = scratch.glob("*.whl")
    return path


def check_hash(path: Path) -> None:
    expected = re.findall(r"sha256:([0-9a-f]{64})", REQUIREMENTS.read_text())
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() not in expected:
        raise InstallError(f"{path} has sha256 {digest.hexdigest()}; must be {expected[0]}")


def unpack(wheel: Path, target: Path) -> None:
    """The compiler, its headers, and scripts under the names that llvm.sh searches."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inside = name.removeprefix("ziglang/")
            if inside == "zig":
                path = target / "zig"
            elif inside.startswith("lib/include/") and not name.endswith("/"):
                path = target / inside.removeprefix("lib/")
            else:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
    if not (target / "zig").exists() or not (target / "include" / "stdint.h").exists():
        raise InstallError(f"{wheel} has no compiler")
    (target / "zig").chmod(0o755)
    (target / "bin").mkdir()
    for name, arguments in PROGRAMS.items():
        script = target / "bin" / name
        final = shlex.quote(str(directory()))
        script.write_text(f'#!/bin/sh\ndirectory={final}\nexec "$directory/zig" {arguments} "$@"\n')
        script.chmod(0o755)


def install(wheel: Path | None = None) -> Path:
    """Installs the compiler and returns its directory. Raises InstallError."""
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise InstallError(f"the platform is {machine}; must be Linux x86_64")
    target = directory()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the same file system, so that the finished directory appears at once.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".llvm-") as scratch:
            if wheel is not None:
                check_hash(wheel)
            unpack(wheel or download(Path(scratch)), Path(scratch) / "llvm")
            shutil.rmtree(target, ignore_errors=True)
            (Path(scratch) / "llvm").rename(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise InstallError(str(error)) from error
    return target


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, help="the downloaded wheel")
    options = parser.parse_args()
    ready, text = found()
    if ready:
        print(f"installed already:\n{text}", end="")
        return 0
    try:
        target = install(options.wheel)
    except InstallError as error:
        print(f"kernel_compiler.py: {error}", file=sys.stderr)
        return 1
    ready, text = found()
    print(f"installed clang 22 and lld 22 in {target}:\n{text}", end="")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
