#!/usr/bin/env python3
"""Draws the recorded timelines of tests/gpu/timelines as pictures of the design pages.

scripts/docs/timelines.py           writes docs/design/timeline-*.svg
scripts/docs/timelines.py --check   exit status 1 if one differs from its recording

A timeline has a row for each wave of a SIMD and one for its matrix unit. The simulator's cycle
model wrote it (ROCFLASH_SIM_TIMELINE): it is modeled, not measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "gpu" / "timelines"
PAGES = ROOT / "docs" / "design"

# Picture: recording, first clock of the recording and number of clocks shown.
PICTURES = {
    "forward-cdna": ("gfx942-forward-d128-forward_tail_split_bf16_128_specialized", 0, 4000),
    "forward-rdna": ("gfx1100-forward-d128-forward_bf16_128_specialized", 0, 4000),
    "backward-amd": ("gfx942-backward-d128-backward_fused_bf16_128_specialized", 0, 4000),
    "decode-splitkv": ("gfx942-decode-d128-decode_bf16_128", 0, 4000),
    "decode-mla": ("gfx942-decode-mla-decode_mla_f16_576", 0, 4000),
}
COLORS = {
    "matrix": "#d9480f",
    "transcendental": "#5f3dc4",
    "vector": "#1864ab",
    "lds": "#2b8a3e",
    "memory": "#e67700",
    "scalar and other": "#868e96",
    "wait": "#e9ecef",
}
WIDTH, LEFT, ROW = 700, 96, 22
FONT = "font-family='Helvetica, Arial, sans-serif'"


def category(event: dict[str, Any]) -> str:
    name = event["cat"]
    if name in COLORS:
        return name
    return "memory" if name == "scalar_memory" else "scalar and other"


def spans(events: list[dict[str, Any]], gap: float) -> list[tuple[float, float]]:
    """Intervals of the events, joined where less than `gap` is between two."""
    found: list[list[float]] = []
    for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        if found and begin - found[-1][1] < gap:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return [(a, b) for a, b in found]


def row_title(name: str) -> str:
    return name.replace("workgroup ", "WG ").replace(" wave ", ", wave ")


def draw(recording: str, skip: int, length: int) -> str:
    with gzip.open(RECORDED / f"{recording}.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    shown = [e for e in events if e["ph"] == "X"]
    first = min(e["ts"] for e in shown) + skip
    shown = [e for e in shown if e["ts"] + e["dur"] > first and e["ts"] < first + length]
    # The matrix unit first, then the waves that run in this interval.
    active = {e["tid"] for e in shown} | {t for t in names if names[t] == "matrix unit"}
    rows = sorted(active, key=lambda tid: (names[tid] != "matrix unit", tid))
    scale = (WIDTH - LEFT) / length
    top, parts = 58, []
    for n, tid in enumerate(rows):
        y = top + n * (ROW + 6)
        parts.append(
            f"<text x='0' y='{y + 15}' font-size='11'>{escape(row_title(names[tid]))}</text>"
        )
        for kind in reversed(COLORS):
            mine = [e for e in shown if e["tid"] == tid and category(e) == kind]
            path = ""
            for begin, end in spans(mine, 0.4 / scale):
                begin, end = max(begin, first), min(end, first + length)
                path += f"M{LEFT + (begin - first) * scale:.1f} {y}h{(end - begin) * scale:.1f}"
                path += f"v{ROW}h{-(end - begin) * scale:.1f}z"
            if path:
                parts.append(f"<path d='{path}' fill='{COLORS[kind]}'/>")
    bottom = top + len(rows) * (ROW + 6)
    for tick in range(0, length + 1, 1000):
        x = LEFT + tick * scale
        anchor = "end" if tick == length else "middle"
        parts.append(
            f"<path d='M{x:.1f} {top - 4}V{bottom}' stroke='#adb5bd' stroke-dasharray='2 3'/>"
            f"<text x='{x:.1f}' y='{bottom + 14}' font-size='11' text-anchor='{anchor}'>"
            f"{tick}</text>"
        )
    x = float(LEFT)
    for kind, color in COLORS.items():
        parts.append(
            f"<rect x='{x:.0f}' y='32' width='11' height='11' fill='{color}'/>"
            f"<text x='{x + 15:.0f}' y='42' font-size='11'>{kind}</text>"
        )
        x += 26 + 6.1 * len(kind)
    arch, kernel = recording.split("-", 1)
    kernel = kernel.rsplit("-", 1)[1]
    title = f"{kernel} on {arch}: one SIMD, clocks from the middle of the launch (modeled)"
    height = bottom + 24
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='-8 -4 {WIDTH + 16} {height}'"
        f" width='{WIDTH + 16}' height='{height}' role='img' {FONT} fill='#212529'>\n"
        f"<title>{escape(title)}</title>\n"
        f"<rect x='-8' y='-4' width='{WIDTH + 16}' height='{height}' fill='#fff'/>\n"
        f"<text x='0' y='16' font-size='13' font-weight='bold'>{escape(title)}</text>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    stale = 0
    for name, (recording, skip, length) in PICTURES.items():
        path, text = PAGES / f"timeline-{name}.svg", draw(recording, skip, length)
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} differs from {recording}", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
