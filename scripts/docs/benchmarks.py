#!/usr/bin/env python3
"""Writes docs/benchmarks from the results in benchmarks/results.

scripts/docs/benchmarks.py           writes the pages and charts
scripts/docs/benchmarks.py --check   exit status 1 if one differs from what the results give

A result file has a device and sets. A set has its basis (measured, modeled, simulated), date,
versions, method and command, and either rows with named cases, whose ratios and geometric means are
computed here, or a table as it was recorded. Modeled charts show the error of the model.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from pathlib import Path
from typing import Any

import svg

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "benchmarks"
HERE = "scripts/docs/benchmarks.py"

Set = dict[str, Any]


def load() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def wrap(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def case(row: Set, names: dict[str, str]) -> str:
    """ "MI300X, d 128, 2048 tokens, 32 heads on 8, causal" """
    parts = [names[row["arch"]]] if "arch" in row else []
    parts.append(f"d {row['d']}")
    parts.append(f"{row['tokens']} tokens")
    if "heads" in row:
        heads, kv_heads = row["heads"].split("/")
        parts.append(f"{heads} heads" + ("" if heads == kv_heads else f" on {kv_heads}"))
    return ", ".join(parts + (["causal"] if row["causal"] else []))


def ratio(row: Set, other: str) -> float | None:
    """The speed of rocflash relative to another."""
    if other in row.get("ratio", {}):
        return float(row["ratio"][other])
    return row["rocflash"] / row[other] if other in row else None


def rms_error(error: Set) -> float:
    squares = [(r["modeled"] / r["published"] - 1) ** 2 for r in error["rows"]]
    return math.sqrt(sum(squares) / len(squares))


def largest_error(error: Set) -> float:
    return max(abs(r["modeled"] / r["published"] - 1) for r in error["rows"])


def error_sentence(error: Set) -> str:
    return (
        f"Model error over {len(error['rows'])} published kernels: {rms_error(error):.1%} rms,"
        f" {largest_error(error):.0%} at most"
    )


def provenance(s: Set, file: str) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in s.get("versions", {}).items())
    lines = [f"- **{s['basis'].capitalize()}** {s['date']}" + (f", {versions}" if versions else "")]
    if s.get("device"):
        lines.append(f"- Device: {s['device']}")
    if s.get("unit"):
        lines.append(f"- Unit: {s['unit']}")
    command = f"`{s['command']}`" if s.get("command") else "not recorded"
    lines.append(f"- Command: {command}")
    lines.append(f"- Source: [{file}](../../{file}), set `{s['id']}`")
    return [item(line.removeprefix("- ")) for line in lines]


def rows_table(s: Set, names: dict[str, str]) -> list[str]:
    """Rows with their ratios in brackets, and geometric means by head dimension."""
    of = s.get("of", ["rocflash"])
    others = [name for name in of if name != "rocflash"]
    ratios = s.get("ratios", [])
    published = s.get("published", [])
    head = ["case", *of, *(f"relative to {name}" for name in ratios)]
    lines = [head + (["published by others"] if published else [])]
    for row in s["rows"]:
        cells = [case(row, names), f"{row['rocflash']:g}"]
        cells += [f"{row[n]:g} ({ratio(row, n):.2f}x)" if n in row else "" for n in others]
        cells += [f"{row['ratio'][n]:.2f}x" if n in row["ratio"] else "" for n in ratios]
        if published:
            # Others publish their own shapes, so a figure is shown once.
            alike = [p for p in published if all(p[k] == row[k] for k in ("arch", "d", "causal"))]
            first = next(
                r for r in s["rows"] if all(r[k] == row[k] for k in ("arch", "d", "causal"))
            )
            cells.append(
                "; ".join(f"{p['value']} ({p['by']})" for p in alike) if row is first else ""
            )
        lines.append(cells)
    for d in sorted({row["d"] for row in s["rows"]}) if others or ratios else []:
        cells = [f"**geometric mean, d {d}**", ""]
        for name in [*others, *ratios]:
            found = [ratio(r, name) for r in s["rows"] if r["d"] == d]
            known = [value for value in found if value is not None]
            cells.append(f"**{geometric_mean(known):.2f}x**" if known else "")
        lines.append(cells)
    return markdown(lines)


def item(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="- ", subsequent_indent="  ",
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def markdown(lines: list[list[Any]]) -> list[str]:
    """A table, or a list where the table would be wider than a line."""
    texts = [["" if cell is None else f"{cell}" for cell in line] for line in lines]
    rows = ["| " + " | ".join(line) + " |" for line in texts]
    if max(map(len, rows)) <= 100:
        return [rows[0], "|" + "---|" * len(texts[0]), *rows[1:]]
    return [
        item(
            f"**{line[0]}**: " + "; ".join(f"{h}: {c}" for h, c in zip(texts[0][1:], line[1:]) if c)
        )
        for line in texts[1:]
    ]


def where_text(where: Set) -> str:
    parts = [f"d {where['d']}"]
    if "heads" in where:
        heads, kv_heads = where["heads"].split("/")
        parts.append(f"{heads} heads" + ("" if heads == kv_heads else f" on {kv_heads}"))
    if "tokens" in where:
        parts.append(f"{where['tokens']} tokens")
    return ", ".join([*parts, "causal" if where["causal"] else "not causal"])


def rows_panel(
    s: Set, where: Set, device: str, names: dict[str, str], error: Set | None
) -> svg.Panel:
    archs = where.get("archs")
    rows = [r for r in s["rows"] if all(r[key] == v for key, v in where.items() if key != "archs")]
    rows = [r for r in rows if archs is None or r["arch"] in archs]
    of = s.get("of", ["rocflash"])
    modeled = s["basis"] == "modeled"
    margin = rms_error(error) if error and modeled else 0.0
    compared = {r["device"] for r in error["rows"]} if error else set()
    groups, marks = [], {}
    for row in sorted(rows, key=lambda r: 0 if "arch" in r else r["tokens"]):
        name = names[row["arch"]] if "arch" in row else f"{row['tokens']} tokens"
        shown = margin if name in compared else 0.0
        bars = [svg.Bar(row[n], modeled=modeled, error=shown) if n in row else None for n in of]
        groups.append((name, bars))
        points = [
            (p["value"], p["by"])
            for p in s.get("published", [])
            if p["arch"] == row.get("arch") and p["d"] == row["d"] and p["causal"] == row["causal"]
        ]
        if points:
            marks[name] = points
    subject = s["title"][0].lower() + s["title"][1:]
    title = f"{device}: {subject}, {where_text(where)}, bf16"
    lines = [
        f"{s['basis'].capitalize()} {s['date']}"
        + (", not measured" if modeled else "")
        + ". Higher is better."
    ]
    if modeled and error:
        unknown = [name for name, _ in groups if name not in compared]
        whiskers = " (whiskers: rms)" if len(unknown) < len(groups) else ""
        lines.append(f"{error_sentence(error)}{whiskers}.")
        if unknown:
            lines.append(f"Error unknown, since nothing was compared: {', '.join(unknown)}.")
        lines += [
            f"Known: {e['where']}: {e['error']}." for e in error["known"] if s["id"] in e["where"]
        ]
    return svg.Panel(title, lines, s["unit"], of, groups, marks)


def table_panel(s: Set, chart: Set) -> svg.Panel:
    groups = [
        (str(r[chart["label"]]), [svg.Bar(r[n]) for n in chart["values"]]) for r in s["table"]
    ]
    lines = [
        f"{s['basis'].capitalize()} {s['date']}. Higher is better; dashed: {chart['reference']:g}."
    ]
    return svg.Panel(
        s["title"], lines, s["unit"], chart["names"], groups, reference=chart["reference"]
    )


def error_section(error: Set, file: str) -> list[str]:
    lines = ["## Error of the model", ""]
    lines += [wrap(
        "No AMD GPU was available: the simulator's cycle model predicts these figures. The table"
        f" compares the model with {error['source']}. {error['held_out']}"
        f" {error_sentence(error)}."
    ), ""]  # fmt: skip
    head = ["device", "kernel", "published TFLOP/s", "modeled", "error"]
    lines += markdown([head] + [
        [r["device"], r["kernel"], r["published"], r["modeled"],
        f"{r['modeled'] / r['published'] - 1:+.0%}"]
        for r in error["rows"]
    ])  # fmt: skip
    lines += ["", "Known to be wrong by more:", ""]
    for e in error["known"]:
        lines.append(
            item(f"{e['where'][0].upper()}{e['where'][1:]}: {e['error']}. {e['evidence']}.")
        )
    command = item(f"Command: `{error['command']}`")
    return [*lines, "", command, f"- Source: [{file}](../../{file})", ""]


def page(name: str, result: dict[str, Any]) -> dict[Path, str]:
    """The page of a result file and its charts."""
    file = f"benchmarks/results/{name}.json"
    names, error = result.get("names", {}), result.get("model_error")
    lines = [
        f"# {result['device']}",
        "",
        f"<!-- Written by {HERE} from {file}. Do not edit. -->",
        "",
    ]
    out: dict[Path, str] = {}
    if error:
        lines += error_section(error, file)
    for s in result["sets"]:
        lines += [f"## {s['title']}", "", wrap(s["method"]), ""]
        for n, chart in enumerate(s.get("charts", [])):
            panel = (
                rows_panel(s, chart["where"], result["device"], names, error)
                if "where" in chart
                else table_panel(s, chart)
            )
            picture = PAGES / f"{name}-{s['id']}{'' if n == 0 else f'-{n + 1}'}.svg"
            out[picture] = svg.chart([panel])
            lines += [wrap(f"![{panel.title}, {s['basis']}]({picture.name})"), ""]
        lines += rows_table(s, names) if "rows" in s else markdown([s["columns"], *s["table"]])
        for remark in s.get("remarks", []):
            lines += ["", wrap(remark)]
        lines += ["", *provenance(s, file)]
        if "published_source" in s:
            lines.append(item(f"Published by others: {s['published_source']}; not measured here"))
        lines.append("")
    out[PAGES / f"{name}.md"] = "\n".join(lines).rstrip("\n") + "\n"
    return out


def find(result: dict[str, Any], name: str) -> Set:
    return next(s for s in result["sets"] if s["id"] == name)


def summary(results: dict[str, dict[str, Any]]) -> dict[Path, str]:
    """The first page, with means, and the chart of the README."""
    h200, cpu, amd = results["h200"], results["cpu"], results["amd"]
    lines = ["# Benchmarks", "", f"<!-- Written by {HERE}. Do not edit. -->", ""]
    lines += [wrap(
        "Each figure is *measured* on the named device, *modeled* by the simulator's cycle model, "
        "or"
        " *published* by others. The three are never mixed in one column. The pages are generated "
        "from"
        " the files in [benchmarks/results](../../benchmarks/results/h200.json), which state date,"
        " versions and command."
    ), "", "![Overview](overview.svg)", "",
        "Source: `benchmarks/results/h200.json` and `benchmarks/results/amd.json`.", "",
        "## H200 (measured)", "",
        "Speed relative to each peer, geometric means of the cases on the",
        "[page of the H200](h200.md). Above 1 rocflash is faster.", ""]  # fmt: skip
    table = [["bf16", "FA3", "FA4", "cuDNN"]]
    for operation in ("forward", "backward"):
        s = find(h200, operation)
        for d in sorted({row["d"] for row in s["rows"]}):
            cells = [f"{operation}, d {d}"]
            for name in ("FA3", "FA4", "cuDNN"):
                values = [ratio(r, name) for r in s["rows"] if r["d"] == d]
                cells.append(f"{geometric_mean(values):.2f}x" if name in s["of"] else "no backward")
            table.append(cells)
    lines += [*markdown(table), "", "## CPUs (measured)", ""]
    zen = find(cpu, "zen4")
    lines += [wrap(f"{zen['device']}, {zen['unit']}, geometric means ([all figures](cpu.md))."), ""]
    lines += markdown(
        [
            ["dtype", "forward", "backward"],
            *([r[0], f"{r[1]:.2f}x", f"{r[3]:.2f}x"] for r in zen["table"]),
        ]
    )
    error = amd["model_error"]
    lines += ["", "## AMD GPUs (modeled)", "", wrap(
        "TFLOP/s in bf16, d 128, 4096 tokens, not causal ([all figures](amd.md)). "
        f"{error_sentence(error)}."
        " Backward's f32 atomics are modeled too cheaply on CDNA4: see there."
    ), ""]  # fmt: skip
    table = [["device", "forward", "backward"]]
    for arch in ("gfx942", "gfx950", "gfx90a", "gfx1100", "gfx1201"):
        cells = [f"{amd['names'][arch]} ({arch})"]
        for operation in ("forward", "backward"):
            found = [r for r in find(amd, operation)["rows"]
                     if r["arch"] == arch and r["d"] == 128 and not r["causal"]
                     and r["tokens"] == 4096]  # fmt: skip
            cells.append(f"{found[0]['rocflash']:g}" if found else "")
        table.append(cells)
    lines += [*markdown(table), "",
    "How to measure: [Verify and measure](../guides/measure.md). What limits each"
              " device:", "[Rooflines](../design/rooflines.md).", ""]  # fmt: skip
    h = rows_panel(
        find(h200, "forward"), {"d": 128, "heads": "16/16", "causal": True}, "H200", {}, None
    )
    h.title, h.height = "NVIDIA H200, measured: forward, bf16, d 128, causal", 170
    a = rows_panel(find(amd, "forward"), {"d": 128, "causal": False, "tokens": 4096,
    "archs": ["gfx942", "gfx950", "gfx1100", "gfx1201"]},
                   "AMD", amd["names"], error)  # fmt: skip
    a.title, a.height = "AMD GPUs, modeled, not measured: forward, bf16, d 128, 4096 tokens", 170
    return {PAGES / "index.md": "\n".join(lines), PAGES / "overview.svg": svg.chart([h, a])}


BEGIN, END = (
    "<!-- speed: scripts/docs/benchmarks.py writes this paragraph -->",
    "<!-- end of speed -->",
)


def span(h200: dict[str, Any], name: str, other: str, dims: tuple[int, ...]) -> str:
    """The range of the geometric means against another, over head dimensions."""
    rows = find(h200, name)["rows"]
    means = []
    for d in dims:
        found = [ratio(r, other) for r in rows if r["d"] == d]
        means.append(geometric_mean([value for value in found if value is not None]))
    low, high = f"{min(means):.2f}", f"{max(means):.2f}"
    return low if low == high else f"{low} to {high}"


def speed(results: dict[str, dict[str, Any]]) -> str:
    """The README with its paragraph on the H200."""
    h = results["h200"]
    every = (64, 128, 256)
    paragraph = (
        "On the H200 **FA3's forward is faster, and FA4's backward up to head dimension 128.** "
        "Means"
        " over the cases measured, as speed relative to the other: forward "
        f"{span(h, 'forward', 'FA3', every)}"
        f" of FA3, {span(h, 'forward', 'FA4', every)} of FA4 and "
        f"{span(h, 'forward', 'cuDNN', every)} of cuDNN;"
        f" backward {span(h, 'backward', 'FA4', (64, 128))} of FA4 (head dimension 256:"
        f" {span(h, 'backward', 'FA4', (256,))}), {span(h, 'backward', 'cuDNN', every)} of cuDNN "
        "and"
        f" {span(h, 'backward-lengths', 'FA2', every)} of FlashAttention 2."
    )
    text = (ROOT / "README.md").read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{wrap(paragraph)}\n\n{END}{after}"


def outputs() -> dict[Path, str]:
    results = load()
    out = summary(results)
    out[ROOT / "README.md"] = speed(results)
    for name, result in results.items():
        out.update(page(name, result))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    files = outputs()
    if arguments.check:
        stale = [p for p, text in files.items() if not p.exists() or p.read_text() != text]
        stale += [p for p in PAGES.iterdir() if p not in files]
        for path in stale:
            print(
                f"{path.relative_to(ROOT)} differs from benchmarks/results; run {HERE}",
                file=sys.stderr,
            )
        return 1 if stale else 0
    PAGES.mkdir(exist_ok=True)
    for path, text in files.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
