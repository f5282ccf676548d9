"""Bar charts as SVG text. Modeled bars are hatched, and say so; no fonts or scripts from
elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Optional

WIDTH = 700
LEFT, RIGHT = 52, 12
COLORS = ("#d9480f", "#1864ab", "#2b8a3e", "#868e96", "#5f3dc4", "#0b7285")
# Others have one color in all charts; a name that is not listed has that of its position.
COLOR_OF = {"rocflash": 0, "FA3": 1, "FA4": 2, "cuDNN": 3, "FA2": 4}
FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass
class Bar:
    value: float
    label: str = ""
    modeled: bool = False
    error: float = 0.0  # relative, drawn as a whisker in both directions


@dataclass
class Panel:
    """Groups of bars side by side; `marks` are points of others, by group."""

    title: str
    subtitle: Sequence[str]
    unit: str
    series: list[str]
    groups: list[tuple[str, list[Optional[Bar]]]]
    marks: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    reference: Optional[float] = None
    height: int = 250


def ticks(highest: float) -> list[float]:
    """Round values from 0 to at least `highest`, about five."""
    step = 10 ** math.floor(math.log10(highest / 4))
    for factor in (1, 2, 2.5, 5, 10):
        if highest / (step * factor) <= 5:
            step *= factor
            break
    return [step * n for n in range(math.ceil(highest / step) + 1)]


def color_of(series: list[str], n: int) -> int:
    return COLOR_OF.get(series[n], n % len(COLORS))


def text(
    x: float, y: float, content: str, size: int = 11, anchor: str = "start", more: str = ""
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' {more}>"
        f"{escape(content)}</text>"
    )


def short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class Drawing:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 0.0

    def panel(self, p: Panel) -> None:
        self.parts.append(text(0, self.y + 18, p.title, 15, more="font-weight='bold'"))
        top = self.y + 24
        for line in p.subtitle:
            self.parts.append(text(0, top + 10, line, 11, more="fill='#495057'"))
            top += 15
        top += 30
        bottom = top + p.height
        values = [b.value * (1 + b.error) for _, bars in p.groups for b in bars if b]
        values += [value for points in p.marks.values() for value, _ in points]
        scale = ticks(max(values))
        height = lambda v: bottom - p.height * v / scale[-1]  # noqa: E731
        self.parts.append(text(LEFT - 44, top - 14, p.unit, 11, more="fill='#495057'"))
        for tick in scale:
            y = height(tick)
            self.parts.append(
                f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='#dee2e6' fill='none'/>"
            )
            self.parts.append(text(LEFT - 6, y + 4, f"{tick:g}", 11, "end", "fill='#495057'"))
        width = (WIDTH - LEFT - RIGHT) / len(p.groups)
        for n, (name, bars) in enumerate(p.groups):
            self.group(p, name, bars, LEFT + n * width, width, height, bottom)
        if p.reference is not None:
            y = height(p.reference)
            self.parts.append(
                f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='#212529' stroke-dasharray='5 "
                "4'/>"
            )
        self.legend(p, bottom + 40)

    def group(self, p: Panel, name: str, bars: list[Optional[Bar]], x: float, width: float,
              height, bottom: float) -> None:  # fmt: skip
        bar_width = min(width * 0.8 / len(p.series), 62)
        start = x + (width - bar_width * len(p.series)) / 2
        for n, bar in enumerate(bars):
            if bar is None:
                continue
            left, y = start + n * bar_width, height(bar.value)
            color = COLORS[color_of(p.series, n)]
            fill = f"url(#hatch{color_of(p.series, n)})" if bar.modeled else color
            self.parts.append(
                f"<rect x='{left + 1:.1f}' y='{y:.1f}' width='{bar_width - 2:.1f}'"
                f" height='{bottom - y:.1f}' fill='{fill}' stroke='{color}'/>"
            )
            label = y - 4
            if bar.error:
                low, high = height(bar.value * (1 - bar.error)), height(bar.value * (1 + bar.error))
                middle = left + bar_width / 2
                self.parts.append(
                    f"<path d='M{middle:.1f} {low:.1f}V{high:.1f}M{middle - 5:.1f} {low:.1f}h10"
                    f"M{middle - 5:.1f} {high:.1f}h10' stroke='#212529' fill='none'/>"
                )
                label = high - 4
            size = 10 if bar_width > 20 else 8
            self.parts.append(
                text(left + bar_width / 2, label, bar.label or short(bar.value), size, "middle")
            )
        middle = x + width / 2
        for value, _ in p.marks.get(name, []):
            y = height(value)
            end = start + bar_width * len(p.series) + 9
            self.parts.append(
                f"<path d='M{end:.1f} {y:.1f}m-5 0l5-5 5 5-5 5z' fill='{COLORS[3]}'/>"
            )
        for n, line in enumerate(name.split("\n")):
            self.parts.append(text(middle, bottom + 15 + 13 * n, line, 11, "middle"))

    def legend(self, p: Panel, y: float) -> None:
        x = float(LEFT)
        modeled = any(b.modeled for _, bars in p.groups for b in bars if b)
        for n, name in enumerate(p.series):
            color = COLORS[color_of(p.series, n)]
            fill = f"url(#hatch{color_of(p.series, n)})" if modeled else color
            self.parts.append(
                f"<rect x='{x:.1f}' y='{y:.1f}' width='12' height='12' fill='{fill}' "
                f"stroke='{color}'/>"
            )
            self.parts.append(text(x + 17, y + 10, name))
            x += 30 + 6.2 * len(name)
        if p.marks:
            name = "published by others"
            self.parts.append(
                f"<path d='M{x + 1:.1f} {y + 6:.1f}l5-5 5 5-5 5z' fill='{COLORS[3]}'/>"
            )
            self.parts.append(text(x + 17, y + 10, name))
        self.y = y + 34

    def svg(self, description: str) -> str:
        hatches = "".join(
            f"<pattern id='hatch{n}' width='6' height='6' patternUnits='userSpaceOnUse'"
            f" patternTransform='rotate(45)'><rect width='6' height='6' fill='#fff'/>"
            f"<rect width='3' height='6' fill='{color}'/></pattern>"
            for n, color in enumerate(COLORS)
        )
        height = math.ceil(self.y)
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='-8 -4 {WIDTH + 16} {height}'"
            f" width='{WIDTH + 16}' height='{height}' role='img' {FONT} fill='#212529'>\n"
            f"<title>{escape(description)}</title>\n<defs>{hatches}</defs>\n"
            f"<rect x='-8' y='-4' width='{WIDTH + 16}' height='{height}' fill='#fff'/>\n"
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def chart(panels: Sequence[Panel]) -> str:
    """The panels one below the other."""
    drawing = Drawing()
    for panel in panels:
        drawing.panel(panel)
    return drawing.svg("; ".join(p.title for p in panels))
