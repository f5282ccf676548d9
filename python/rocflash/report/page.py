"""The page: one self-contained HTML file, generated from a dictionary that it also contains as
JSON.
"""

from __future__ import annotations

import json
import math
from html import escape
from typing import Any, Optional

from . import svg
from .cards import CARDS
from .measure import OPERATIONS, SIDES

_STYLE = """
:root { --ink: #1d2430; --soft: #5d6778; --paper: #ffffff; --line: #dde2ea; --good: #1a7f4b;
  --bad: #c2273d;
  --c0: #d4452b; --c1: #2b6cb0; --c2: #6b7280; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf1; --soft: #9aa5b6; --paper: #14181f;
  --line: #2c3442; --good: #4cc38a;
  --bad: #ff6b81; --c0: #ff7a5c; --c1: #6cb2ff; --c2: #a3acba; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1120px; margin: 0 auto; padding: 24px; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2em; border-bottom: 1px solid var(--line); }
h3 { margin-bottom: 0.2em; }
p.sub, .note { color: var(--soft); } .good { color: var(--good); }
.bad { color: var(--bad); font-weight: 600; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 8px 32px; }
.scroll { overflow-x: auto; }
.tall { max-height: 24em; overflow-y: auto; border: 1px solid var(--line); padding: 0 12px; }
.tall th { position: sticky; top: 0; background: var(--paper); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 2px 14px 2px 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg text.axis { fill: var(--ink); font-size: 12px; }
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 2; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.dot.c0, .bar.c0 { fill: var(--c0); } .dot.c1, .bar.c1 { fill: var(--c1); }
.dot.c2, .bar.c2 { fill: var(--c2); }
.legend span { margin-right: 20px; }
.key { display: inline-block; width: 14px; height: 4px; margin-right: 6px; vertical-align: middle; }
.key.c0 { background: var(--c0); } .key.c1 { background: var(--c1); }
.key.c2 { background: var(--c2); }
.predicted { border-left: 4px solid var(--c2); padding-left: 16px; }
"""

_NAMES = {"rocflash": "rocflash", "torch": "torch's own", "standard": "naive attention"}
_TITLES = {"forward": "Forward", "training": "Forward and gradients"}


def _table(titles: list[str], rows: list[list[Any]], text: int = 1, tall: bool = False) -> str:
    """A table whose first `text` columns are aligned left; a tall one scrolls. Cells are text or
    (class, text).
    """

    def cell(tag: str, n: int, value: Any) -> str:
        kind = "text" if n < text else ""
        if isinstance(value, tuple):
            kind, value = f"{kind} {value[0]}", value[1]
        return f'<{tag} class="{kind.strip()}">{escape(str(value))}</{tag}>'

    def row(tag: str, values: list[Any]) -> str:
        return f"<tr>{''.join(cell(tag, n, value) for n, value in enumerate(values))}</tr>"

    body = "\n".join(row("td", values) for values in rows)
    return (
        "<div "
        f'class="scroll{" tall" if tall else ""}"><table>{row("th", titles)}\n{body}</table></div>'
    )


def seconds_text(x: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if x >= size * 0.9995:
            return f"{x / size:.3g} {unit}"
    return f"{x * 1e9:.3g} ns"


def bytes_text(x: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if x >= size * 0.9995:
            return f"{x / size:.3g} {unit}"
    return f"{x:.0f} B"


def length_text(x: float) -> str:
    return f"{x / 1024:g}k" if x >= 1024 and x % 1024 == 0 else f"{x:g}"


def growth(lengths: list[int], values: list[Optional[float]]) -> Optional[float]:
    """The exponent of growth with the length, from the last two values."""
    known = [(n, x) for n, x in zip(lengths, values) if x]
    if len(known) < 2:
        return None
    (n, x), (m, y) = known[-2:]
    return math.log(y / x) / math.log(m / n)


def _devices(data: dict[str, Any]) -> str:
    info = data["info"]
    rows = [
        [f"{d['type']}:{d['index']}", d["name"], d["arch"], d["units"], " ".join(d["features"])]
        for d in info["devices"]
    ]
    found = _table(["device", "name", "architecture", "units", "features"], rows, 3)
    drivers = _table(
        ["driver", "what came of it"], [[d["name"], d["reason"]] for d in info["drivers"]], 2
    )
    targets = " ".join(t["arch"] for t in info["targets"]) or "none"
    words = f"Backend {info['backend']} ({info['why']}). GPU kernels in this library: {targets}."
    return f"<h2>Devices</h2>{found}<p></p>{drivers}<p>{escape(words)}</p>"


def _family(result: dict[str, Any]) -> str:
    return str(result["name"]).split("/")[0].split(" (")[0]


def _worst(results: list[dict[str, Any]], gradients: bool) -> Optional[float]:
    ratios = [
        t["ratio"]
        for r in results
        for name, t in r.get("tensors", {}).items()
        if (name[0] == "d") == gradients and t["ratio"] is not None
    ]
    return max(ratios) if ratios else None


def _verify(data: dict[str, Any]) -> str:
    record = data["verify"]
    if "missing" in record:
        return f"<h2>Is it right?</h2><p class='bad'>Not verified: {escape(record['missing'])}</p>"
    results = record["results"]
    failed = [r for r in results if not r["good"]]
    dtypes = [t for t in ("f32", "f16", "bf16") if any(f"/{t}/" in r["name"] for r in results)]
    rows: list[list[Any]] = []
    for family in dict.fromkeys(map(_family, results)):
        mine = [r for r in results if _family(r) == family]
        row: list[Any] = [family]
        for dtype in dtypes:
            part = [r for r in mine if f"/{dtype}/" in r["name"]]
            for gradients in (False, True):
                ratio = _worst(part, gradients)
                row.append(
                    ""
                    if ratio is None
                    else f"{ratio:.2f}"
                    if ratio <= 1
                    else ("bad", f"{ratio:.2f}")
                )
        row.append(len(mine))
        good = all(r["good"] for r in mine)
        row.append(("good", "held") if good else ("bad", "OFF"))
        rows.append(row)
    titles = [
        "feature",
        *(f"{dtype} {what}" for dtype in dtypes for what in ("forward", "gradients")),
        "cases",
        "",
    ]
    refused = f", {record['refused']} were refused by name" if record.get("refused") else ""
    verdict = f"{len(results) - len(failed)} of {len(results)} cases held{refused}"
    kind = "good" if not failed else "bad"
    words = (
        "Each figure is the largest error against the definition in double precision, as a share "
        "of what is allowed: 2 times the error of "
        "naive attention in the same dtype for forward, 3 times for gradients. Up to 1.00 holds."
    )
    sample = f" One case in {record['every']} was run." if record["every"] > 1 else ""
    worst = [_worst(results, gradients) or 0 for gradients in (False, True)]
    return (
        f"<h2>Is it right?</h2><p><b class='{kind}'>{verdict}</b> on {escape(record['device'])}; "
        f"worst share {worst[0]:.2f} forward, "
        f"{worst[1]:.2f} gradients.{sample}</p><p "
        f"class='note'>{words}</p>{_table(titles, rows, tall=True)}"
    )


def _series(
    data: dict[str, Any], operation: str, kind: str
) -> dict[str, list[tuple[float, Optional[float]]]]:
    rows = data["speed"][operation]
    return {_NAMES[name]: [(row["length"], row[kind][name]) for row in rows] for name in SIDES}


def _speed(data: dict[str, Any]) -> str:
    parts = [
        f"<h2>How fast, how much memory</h2><p class='sub'>{escape(data['shape'])}, on "
        f"{escape(data['device'])}. "
        "Torch's own is scaled_dot_product_attention; naive attention has all scores in memory.</p>"
    ]
    for operation in OPERATIONS:
        rows = data["speed"][operation]
        time_plot = svg.lines(
            _series(data, operation, "seconds"),
            "tokens",
            "time of a call",
            length_text,
            seconds_text,
        )
        memory_plot = svg.lines(
            _series(data, operation, "bytes"),
            "tokens",
            "peak memory beyond the inputs",
            length_text,
            bytes_text,
            2,
        )
        cells = []
        for row in rows:
            ours, ours_bytes = row["seconds"]["rocflash"], row["bytes"]["rocflash"]
            line: list[Any] = [length_text(row["length"]), seconds_text(ours) if ours else "-"]
            for other in ("torch", "standard"):
                line.append(
                    f"{row['seconds'][other] / ours:.2f}x"
                    if ours and row["seconds"][other]
                    else "no memory"
                )
            line.append(bytes_text(ours_bytes) if ours_bytes is not None else "-")
            for other in ("torch", "standard"):
                line.append(
                    f"{row['bytes'][other] / ours_bytes:.2f}x"
                    if ours_bytes and row["bytes"][other]
                    else "-"
                )
            cells.append(line)
        titles = [
            "tokens",
            "rocflash",
            "faster than torch",
            "than standard",
            "memory",
            "torch needs",
            "standard needs",
        ]
        parts.append(
            f"<h3>{_TITLES[operation]}</h3><div "
            f"class='pair'><div>{time_plot}</div><div>{memory_plot}</div></"
            f"div>{_table(titles, cells)}"
        )
    return "".join(parts)


def _growth(data: dict[str, Any]) -> str:
    rows: list[list[Any]] = []
    for operation in OPERATIONS:
        found = data["speed"][operation]
        lengths = [row["length"] for row in found]
        for name in SIDES:
            powers = [
                growth(lengths, [row[kind][name] for row in found]) for kind in ("seconds", "bytes")
            ]
            rows.append(
                [
                    _TITLES[operation],
                    _NAMES[name],
                    *("-" if p is None else f"{p:.2f}" for p in powers),
                ]
            )
    words = (
        "The power of the length that time and memory grow with, between the two longest lengths: "
        "2 means that twice the tokens need four times as "
        "much. Exact attention has quadratic work; memory need not be quadratic."
    )
    return (
        "<h2>Growth with length</h2><p "
        f"class='note'>{words}</p>{_table(['', 'by', 'time', 'memory'], rows, 2)}"
    )


def _cards() -> str:
    rows = [
        (f"{c.name} ({c.arch}), d {c.head_dim}", (c.predicted, c.bound, c.best_known))
        for c in CARDS
    ]
    names = [
        "predicted by the simulator's cycle model",
        "bound, from counted instructions",
        "best known kernels of others, published",
    ]
    words = (
        "None of this was measured here: it is about this library's kernels on cards that were not "
        "at hand. The simulator's cycle model predicts, and "
        "has not been held against whole kernels on hardware. The bound counts instructions and "
        "leaves out memory, latency and clocks. Forward, bf16, 4096 tokens, "
        "not causal, TFLOP/s."
    )
    plot = svg.bars(rows, names, lambda x: f"{x:,.0f}")
    return (
        "<h2>AMD cards: predicted, not measured</h2><div class='predicted'><p "
        f"class='note'>{words}</p>{plot}</div>"
    )


def build(data: dict[str, Any]) -> str:
    """The page for the data of `__main__.collect`."""
    info, machine = data["info"], data["machine"]
    sub = (
        f"{machine['host']}, {machine['when']}; rocflash {info['version']}, torch "
        f"{machine['torch']}, Python {machine['python']}"
    )
    facts = json.dumps(data, default=str).replace("</", "<\\/")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>rocflash on {escape(machine["host"])}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>rocflash on this machine</h1>
<p class="sub">{escape(sub)}</p>
{_devices(data)}
{_verify(data)}
{_speed(data)}
{_growth(data)}
{_cards()}
<p class="note">Made by <code>{escape(data["command"])}</code>.
The figures are in the page as JSON, in the element with the id "data".</p>
<script type="application/json" id="data">{facts}</script>
</body>
</html>
"""
