"""Audits ELF files: needed libraries, and the manylinux tag (PEP 600). Files of Windows: needed
DLLs, and the tag win_amd64.

auditwheel applies the same rules (`make dist` compares the results). This module needs only
readelf, so that tags are correct wherever the library is built.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

# Libraries of every manylinux system that may be needed here. libstdc++ is not among them: the
# library links its C++ runtime statically.
SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
# DLLs of every Windows, without those of compilers.
WINDOWS = {"advapi32.dll", "kernel32.dll", "msvcrt.dll", "shell32.dll", "user32.dll", "ws2_32.dll"}
WINDOWS_AMD64 = 0x8664
OWN = {"librocflash.so.0", "rocflash.dll"}
# ELF's numbers of machines, and their names in tags.
MACHINES = {62: "x86_64", 183: "aarch64"}
# The newest glibc that a universal wheel may need: RHEL 8's. cmake/Glibc.cmake targets an older
# one.
NEWEST_GLIBC = (2, 28)


class AuditError(ValueError):
    """A file that must not be shipped; the message has the reason."""


@dataclass(frozen=True)
class Needs:
    """The needed libraries, and the newest version of glibc's symbols."""

    libraries: tuple[str, ...]
    glibc: tuple[int, int]


def needs(path: Path) -> Needs:
    output = subprocess.run(
        ["readelf", "--wide", "--dynamic", "--version-info", "--program-headers", str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    ).stdout
    libraries = re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", output)
    unexpected = sorted(set(libraries) - SYSTEM - OWN)
    if unexpected:
        raise AuditError(
            f"{path.name} needs {', '.join(unexpected)}; allowed are "
            f"{', '.join(sorted(SYSTEM | OWN))}"
        )
    for rpath in re.findall(r"\((?:RPATH|RUNPATH)\)\s+Library r(?:un)?path: \[(.*)\]", output):
        if any(not part.startswith("$ORIGIN") for part in rpath.split(":")):
            raise AuditError(
                f"{path.name} has the rpath {rpath}; only paths relative to $ORIGIN are allowed"
            )
    if "(TEXTREL)" in output:
        raise AuditError(f"{path.name} has text relocations")
    stack = re.search(r"GNU_STACK\s+(?:0x\w+\s+){5}(\S+)", output)
    if stack and "E" in stack[1]:
        raise AuditError(f"{path.name} needs an executable stack")
    names = re.findall(r"Name: (\S+)\s+Flags", output)
    foreign = sorted({name for name in names if not name.startswith(("GLIBC_", "ROCFLASH_"))})
    if foreign:
        raise AuditError(
            f"{path.name} needs symbol versions {', '.join(foreign)}; only those of libc and of "
            "the library itself are allowed"
        )
    found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name) for name in names]
    versions = [(int(match[1]), int(match[2])) for match in found if match]
    return Needs(tuple(libraries), max(versions, default=(2, 17)))


def is_windows(path: Path) -> bool:
    """Whether a file is a DLL or a program of Windows."""
    return path.read_bytes()[:2] == b"MZ"


def windows_needs(path: Path) -> Needs:
    """The DLLs in the import table of a 64-bit file; the delay-import table must be empty."""
    data = path.read_bytes()

    def number(at: int, size: int = 4) -> int:
        return int.from_bytes(data[at : at + size], "little")

    header = number(0x3C)
    if data[header : header + 4] != b"PE\0\0" or number(header + 4, 2) != WINDOWS_AMD64:
        raise AuditError(f"{path.name} is no DLL or program for 64-bit x86 Windows")
    optional = header + 24
    sections = optional + number(header + 20, 2)

    def offset(address: int) -> int:
        for at in range(sections, sections + 40 * number(header + 6, 2), 40):
            begin = number(at + 12)
            if begin <= address < begin + number(at + 16):
                return address - begin + number(at + 20)
        raise AuditError(f"{path.name} has an address outside of its sections")

    directories = optional + 112
    if number(directories + 8 * 13):
        raise AuditError(f"{path.name} has delay-loaded DLLs; none is allowed")
    libraries = []
    at = offset(number(directories + 8))
    while name := number(at + 12):
        begin = offset(name)
        libraries.append(data[begin : data.index(0, begin)].decode())
        at += 20
    unexpected = sorted({name for name in libraries if name.lower() not in WINDOWS | OWN})
    if unexpected:
        raise AuditError(
            f"{path.name} needs {', '.join(unexpected)}; allowed are "
            f"{', '.join(sorted(WINDOWS | {'rocflash.dll'}))}"
        )
    return Needs(tuple(libraries), (0, 0))


def machine(path: Path) -> str:
    """The architecture of an ELF file."""
    number = int.from_bytes(path.read_bytes()[18:20], "little")
    if number not in MACHINES:
        raise AuditError(f"{path.name} is for ELF machine {number}; allowed are {MACHINES}")
    return MACHINES[number]


def platform_tag(paths: list[Path]) -> str:
    """The manylinux tag of all files together, at least manylinux_2_17; or win_amd64."""
    if any(map(is_windows, paths)):
        for path in paths:
            windows_needs(path)  # rejects files of other systems
        return "win_amd64"
    major, minor = max([(2, 17), *(needs(path).glibc for path in paths)])
    machines = sorted({machine(path) for path in paths})
    if len(machines) != 1:
        raise AuditError(
            f"the files are for {' and '.join(machines)}; a wheel has one architecture"
        )
    return f"manylinux_{major}_{minor}_{machines[0]}"


def check_glibc(paths: list[Path]) -> None:
    """Rejects files that need a newer glibc than NEWEST_GLIBC."""
    for path in paths:
        if is_windows(path):
            continue
        major, minor = needs(path).glibc
        if (major, minor) > NEWEST_GLIBC:
            raise AuditError(
                f"{path.name} needs glibc {major}.{minor}; a wheel may need at most "
                f"{NEWEST_GLIBC[0]}.{NEWEST_GLIBC[1]}: "
                "configure with ROCFLASH_GLIBC=2.17, which is the default"
            )


def compiled_members(wheel: Path, directory: Path) -> list[Path]:
    """Unpacks the ELF files of a wheel, and those of Windows."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if archive.read(name).startswith((b"\x7fELF", b"MZ")):
                found.append(Path(archive.extract(name, directory)))
    return found


def main(wheels: list[str]) -> int:
    for wheel in map(Path, wheels):
        with tempfile.TemporaryDirectory() as directory:
            members = compiled_members(wheel, Path(directory))
            tag = platform_tag(members) if members else "any"
            print(f"{wheel.name}: {tag}")
            for member in members:
                found = windows_needs(member) if is_windows(member) else needs(member)
                print(f"  {member.relative_to(directory)}: {' '.join(found.libraries)}")
            of_system = f"-linux_{tag.split('_', 3)[-1]}.whl"
            if not wheel.name.endswith((of_system, f"{tag}.whl")):
                print(f"audit.py: {wheel.name} should be tagged {tag}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AuditError as error:
        sys.exit(f"audit.py: {error}")
