#!/usr/bin/env python3
"""Reads the device table, kernels/table/devices.inc.

packaging/device_table.py            prints it as JSON
packaging/device_table.py --write    writes the copy that the Python package ships
packaging/device_table.py --check    exit status 1 if that copy differs from the table
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "kernels" / "table" / "devices.inc"
COPY = ROOT / "python" / "rocflash" / "report" / "devices.py"


class Member(NamedTuple):
    """Limits of an architecture: the columns of ROCFLASH_MEMBER."""

    family: str
    arch: str
    vgprs: int
    vgpr_granule: int
    sgprs: int
    waves: int
    simds: int
    lds: int
    lds_granule: int
    workgroup_lds: int


class Device(NamedTuple):
    """The reference card of an architecture: the columns of ROCFLASH_DEVICE."""

    arch: str
    name: str
    cus: int
    mhz: int
    xcds: int
    cus_per_multiprocessor: int
    math: str
    flops_per_clock: int

    @property
    def peak_tflops(self) -> float:
        """Dense f16, to the tenth that data sheets state; 0 where no rate is stated."""
        return round(self.cus * self.flops_per_clock * self.mhz * 1e-6, 1)


def rows(macro: str, table: Path = TABLE) -> list[list[str]]:
    """The columns of each line of a macro."""
    lines = re.findall(rf"^{macro}\((.*)\)$", table.read_text(), re.MULTILINE)
    if not lines:
        raise RuntimeError(f"{table} has no line {macro}")
    return [[column.strip(' "') for column in line.split(",")] for line in lines]


def members(table: Path = TABLE) -> list[Member]:
    """What there are kernels for, in the order of the catalog."""
    return [Member(*row[:2], *map(int, row[2:])) for row in rows("ROCFLASH_MEMBER", table)]


def devices(table: Path = TABLE) -> dict[str, Device]:
    """The reference cards, by architecture."""
    found = [
        Device(row[0], row[1], *map(int, row[2:6]), row[6], int(row[7]))
        for row in rows("ROCFLASH_DEVICE", table)
    ]
    return {device.arch: device for device in found}


def package_copy() -> str:
    """The text of python/rocflash/report/devices.py: what the package needs of the table."""
    lines = [f'    "{device.arch}": "{device.name}",\n' for device in devices().values()]
    return (
        '"""Names of the reference cards, by architecture. packaging/device_table.py --write makes '
        "this"
        " file\nfrom kernels/table/devices.inc, which the installed package does not have.\n"
        '"""\n\nDEVICE_NAMES: dict[str, str] = {\n' + "".join(lines) + "}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help=f"write {COPY.relative_to(ROOT)}")
    action.add_argument("--check", action="store_true", help="compare it with the table")
    arguments = parser.parse_args()
    if arguments.write:
        COPY.write_text(package_copy())
    elif arguments.check:
        if COPY.read_text() != package_copy():
            print(f"{COPY.relative_to(ROOT)} differs from the device table", file=sys.stderr)
            return 1
    else:
        table = {
            "members": [member._asdict() for member in members()],
            "devices": [device._asdict() for device in devices().values()],
        }
        print(json.dumps(table, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
