"""What a compiled file asks of the system it runs on, and the oldest systems that have it (PEP 600's manylinux tags).

auditwheel judges the same by the same rules (`make dist` compares); this needs nothing but readelf, so that tags can be
right wherever the library is built.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

# Of the libraries that every manylinux system has, those that may be needed here. libstdc++ is not among them: the
# library carries its C++ runtime.
SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
}
OWN = {"librocflash.so.0"}
# The youngest C library that a wheel for everybody may ask for: RHEL 8's. cmake/Glibc.cmake keeps to an older one.
YOUNGEST = (2, 28)


class Refused(ValueError):
    """A file that may not be shipped; the message says why."""


@dataclass(frozen=True)
class Needs:
    """What a dynamic file needs: libraries, and the youngest version of libc's symbols."""

    libraries: tuple[str, ...]
    glibc: tuple[int, int]


def needs(path: Path) -> Needs:
    told = subprocess.run(
        ["readelf", "--wide", "--dynamic", "--version-info", "--program-headers", str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    ).stdout
    libraries = re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", told)
    strange = sorted(set(libraries) - SYSTEM - OWN)
    if strange:
        raise Refused(
            f"{path.name} needs {', '.join(strange)}; allowed are {', '.join(sorted(SYSTEM | OWN))}"
        )
    for place in re.findall(r"\((?:RPATH|RUNPATH)\)\s+Library r(?:un)?path: \[(.*)\]", told):
        if any(not part.startswith("$ORIGIN") for part in place.split(":")):
            raise Refused(
                f"{path.name} looks for libraries in {place}; only places relative to $ORIGIN travel"
            )
    if "(TEXTREL)" in told:
        raise Refused(f"{path.name} has text relocations")
    stack = re.search(r"GNU_STACK\s+(?:0x\w+\s+){5}(\S+)", told)
    if stack and "E" in stack[1]:
        raise Refused(f"{path.name} wants an executable stack")
    names = re.findall(r"Name: (\S+)\s+Flags", told)
    foreign = sorted({name for name in names if not name.startswith(("GLIBC_", "ROCFLASH_"))})
    if foreign:
        raise Refused(
            f"{path.name} needs symbol versions {', '.join(foreign)}; only those of libc and of the library itself are allowed"
        )
    found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name) for name in names]
    versions = [(int(match[1]), int(match[2])) for match in found if match]
    return Needs(tuple(libraries), max(versions, default=(2, 17)))


def platform_tag(paths: list[Path]) -> str:
    """The manylinux tag of all files together; none is older than manylinux_2_17, the first x86-64 one still in use."""
    major, minor = max([(2, 17), *(needs(path).glibc for path in paths)])
    return f"manylinux_{major}_{minor}_x86_64"


def refuse_young(paths: list[Path]) -> None:
    """Refuses files that the machines which wheels are meant for could not load."""
    for path in paths:
        major, minor = needs(path).glibc
        if (major, minor) > YOUNGEST:
            raise Refused(
                f"{path.name} needs glibc {major}.{minor}; a wheel may ask for {YOUNGEST[0]}.{YOUNGEST[1]} at most: "
                "configure with ROCFLASH_GLIBC=2.17, which is the default"
            )


def compiled_members(wheel: Path, folder: Path) -> list[Path]:
    """Unpacks the ELF files of a wheel."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if archive.read(name)[:4] == b"\x7fELF":
                found.append(Path(archive.extract(name, folder)))
    return found


def main(wheels: list[str]) -> int:
    for wheel in map(Path, wheels):
        with tempfile.TemporaryDirectory() as folder:
            members = compiled_members(wheel, Path(folder))
            tag = platform_tag(members) if members else "any"
            print(f"{wheel.name}: {tag}")
            for member in members:
                print(f"  {member.relative_to(folder)}: {' '.join(needs(member).libraries)}")
            if not wheel.name.endswith(("-linux_x86_64.whl", f"{tag}.whl")):
                print(f"audit.py: {wheel.name} should be tagged {tag}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
