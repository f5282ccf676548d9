#!/usr/bin/env python3
"""Writes the table of GPUs in README.md and docs/reference/support.md from kernels/table.

scripts/docs/support.py           writes it, between its two comments
scripts/docs/support.py --check   exit status 1 if a table differs from the kernel table
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))

import device_table  # noqa: E402

TABLE = ROOT / "kernels" / "table"
FILES = (ROOT / "README.md", ROOT / "docs" / "reference" / "support.md")
BEGIN, END = "<!-- gpus: scripts/docs/support.py writes this table -->", "<!-- end of gpus -->"

# Columns, and the operation of the table whose kernels must exist for a dtype to be listed: tiled
# ones for f16 and bf16, those of the schedule fp32 for f32.
OPERATIONS = {
    "forward": "forward",
    "backward": "backward_preprocess",
    "decode": "decode",
    "MLA": "decode_mla",
}
TITLES = {
    "cdna4": "CDNA4", "cdna3": "CDNA3", "cdna2": "CDNA2", "cdna1": "CDNA1", "gcn5": "GCN5",
    "rdna4": "RDNA4", "rdna3": "RDNA3", "rdna2": "RDNA2", "sm90": "Hopper", "sm80": "NVIDIA",
}  # fmt: skip
# What has run: on hardware, or on the simulator in every test run.
STATE = {"sm90": "**measured** (H200)", "sm80": "ran on an H200"}
SIMULATED = "simulated"
DASH = "\N{EN DASH}"


def lines(macro: str, file: str) -> list[list[str]]:
    found = re.findall(rf"^{macro}\((.*)\)$", (TABLE / file).read_text(), re.MULTILINE)
    return [[column.strip(' "') for column in line.split(",")] for line in found]


def families() -> dict[str, str]:
    """The vendor of each family."""
    return {row[0]: row[2] for row in lines("ROCFLASH_FAMILY", "families.inc")}


def in_sets(column: str) -> set[str]:
    """The names of a column of families, with those in its named sets."""
    sets = dict(lines("ROCFLASH_FAMILY_SET", "families.inc"))
    names = set(column.replace(" ", "").split("|"))
    return names.union(*(in_sets(sets[name]) for name in names & set(sets)))


def has(family: str, operation: str, schedule: str, dtype: str) -> bool:
    """Whether the kernel table has such a kernel; extensions run their base's too."""
    bases = {
        family,
        *(b for f, b in lines("ROCFLASH_FAMILY_EXTENSION", "families.inc") if f == family),
    }
    vendors = {families()[name] for name in bases}
    for row in lines("ROCFLASH_KERNELS", "kernels.inc"):
        wanted = row[:3] == [operation, schedule, dtype]
        if wanted and in_sets(row[4]) & (bases | vendors | {"all"}):
            return True
    return False


def dtypes(family: str, column: str) -> str:
    operation = OPERATIONS[column]
    found = [dtype for dtype in ("f16", "bf16") if has(family, operation, "tiled", dtype)]
    if found == ["f16", "bf16"]:
        found = ["16"]
    if has(family, operation, "fp32", "f32"):
        found.append("32")
    return " ".join(found) or "no"


def ranges(archs: list[str]) -> str:
    """gfx1030, gfx1031, gfx1032, gfx1100 as "gfx1030–1032, 1100"."""
    out: list[list[str]] = []
    for arch in sorted(archs, key=lambda a: (len(a), a)):
        last = out[-1][-1] if out else ""
        follows = re.fullmatch(r"gfx\d+", arch) and re.fullmatch(r"gfx\d+", last)
        if follows and int(arch[3:]) == int(last[3:]) + 1 and arch[:-1] == last[:-1]:
            out[-1].append(arch)
        else:
            out.append([arch])
    texts = [r[0] if len(r) == 1 else f"{r[0]}{DASH}{r[-1][3:]}" for r in out]
    return ", ".join([texts[0], *(text.removeprefix("gfx") for text in texts[1:])])


def table() -> str:
    members = device_table.members()
    devices = device_table.devices()
    head = ["GPUs", "architecture", *OPERATIONS, "state"]
    rows = [head, ["---"] * len(head)]
    for family, title in TITLES.items():
        archs = [m.arch for m in members if m.family == family]
        assert archs, family
        cards = [devices[a.removesuffix("a") if a == "sm_90a" else a].name for a in archs]
        named = [c for c in cards if not c.startswith("gfx")]
        rows.append([
            f"{title} ({named[0]})" if family != "sm80" else "NVIDIA from Ampere on",
            ranges(archs) if family != "sm80" else "sm_80 and newer",
            *(dtypes(family, column) for column in OPERATIONS),
            STATE.get(family, SIMULATED),
        ])  # fmt: skip
    assert {m.family for m in members} == set(TITLES), "a family has no title"
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows).replace("| --- ", "|---")
    return f"{text}\n\n16: f16 and bf16; 32: f32."


def filled(text: str) -> str:
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"no {BEGIN}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    stale = [path for path in FILES if filled(path.read_text()) != path.read_text()]
    if not arguments.check:
        for path in stale:
            path.write_text(filled(path.read_text()))
        return 0
    for path in stale:
        print(
            f"{path.relative_to(ROOT)} differs from kernels/table; run scripts/docs/support.py",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
