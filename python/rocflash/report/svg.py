"""SVG plots without a plotting library: lines over logarithmic axes, and horizontal bars.

Colors are CSS classes (`c0`, `c1`, …), so that dark mode applies to them. Every mark has its values
as a title, which browsers show as a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Optional

Points = Sequence[tuple[float, Optional[float]]]

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 16, 44


def _ticks(low: float, high: float, base: int) -> list[float]:
    """Ticks between two numbers: powers of ten, with factors 2 and 5 if these are few; or powers of
    two.
    """
    if base == 2:
        first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
        return [2.0**e for e in range(first, last + 1, max(1, (last - first) // 5 + 1))]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1,) if last - first > 3 else (1, 2, 5)
    found = [m * 10.0**e for e in range(first, last + 1) for m in steps]
    return [x for x in found if low <= x <= high]


def lines(
    series: Mapping[str, Points],
    x_title: str,
    y_title: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    base: int = 10,
) -> str:
    """Series over positive x and y, both logarithmic, with y ticks at powers of `base`; None values
    are omitted.
    """
    known = [(x, y) for points in series.values() for x, y in points if y]
    if not known:
        return "<p>There is nothing to draw.</p>"
    xs, ys = sorted({x for x, _ in known}), [y for _, y in known]
    low, high = min(ys) / 1.6, max(ys) * 1.6
    span_x = math.log(xs[-1] / xs[0]) or 1.0
    span_y = math.log(high / low)

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / xs[0]) / span_x
        up = math.log(y / low) / span_y
        return _LEFT + 12 + across * (_WIDTH - _LEFT - _RIGHT - 24), _HEIGHT - _BOTTOM - up * (
            _HEIGHT - _TOP - _BOTTOM
        )

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(y_title)} by '
        f'{escape(x_title)}">'
    ]
    for y in _ticks(low, high, base):
        at = to_pixels(xs[0], y)[1]
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{at + 4:.1f}" '
            f'text-anchor="end">{escape(y_text(y))}</text>'
        )
    for x in xs:
        at = to_pixels(x, low)[0]
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        )
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 16}" '
            f'text-anchor="middle">{escape(x_text(x))}</text>'
        )
    parts.append(
        f'<text class="axis" x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 8}" '
        f'text-anchor="middle">{escape(x_title)}</text>'
    )
    parts.append(
        f'<text class="axis" transform="translate(14 {(_HEIGHT - _BOTTOM) / 2}) rotate(-90)" '
        'text-anchor="middle">'
        f"{escape(y_title)}</text>"
    )
    for n, (name, points) in enumerate(series.items()):
        marks = [(x, y, *to_pixels(x, y)) for x, y in points if y]
        path = " ".join(f"{px:.1f},{py:.1f}" for _, _, px, py in marks)
        parts.append(f'<polyline class="line c{n}" points="{path}"/>')
        for x, y, px, py in marks:
            title = escape(f"{name}: {y_text(y)} at {x_text(x)}")
            parts.append(
                f'<circle class="dot c{n}" cx="{px:.1f}" cy="{py:.1f}" '
                f'r="4"><title>{title}</title></circle>'
            )
    parts.append("</svg>")
    return "\n".join(parts) + legend(list(series))


def legend(names: list[str]) -> str:
    """The legend of the colors."""
    items = "".join(
        f'<span><i class="key c{n}"></i>{escape(name)}</span>' for n, name in enumerate(names)
    )
    return f'<p class="legend">{items}</p>'


def bars(
    rows: Sequence[tuple[str, Sequence[Optional[float]]]],
    names: list[str],
    text: Callable[[float], str],
) -> str:
    """One label and one bar per name in each row, on one linear scale."""
    most = max(value for _, values in rows for value in values if value)
    row, thick = 14 * len(names) + 12, 12
    height, left = row * len(rows) + 8, 190
    parts = [f'<svg viewBox="0 0 760 {height}" role="img" aria-label="{escape(", ".join(names))}">']
    for r, (label, values) in enumerate(rows):
        top = 8 + r * row
        parts.append(
            f'<text class="axis" x="{left - 8}" y="{top + row / 2 - 2:.1f}" '
            f'text-anchor="end">{escape(label)}</text>'
        )
        for n, value in enumerate(values):
            at = top + n * 14
            if value is None:
                parts.append(f'<text class="tick" x="{left + 4}" y="{at + 10}">-</text>')
                continue
            long = value / most * (700 - left)
            title = escape(f"{label}, {names[n]}: {text(value)}")
            parts.append(
                f'<rect class="bar c{n}" x="{left}" y="{at}" width="{long:.1f}" '
                f'height="{thick}"><title>{title}</title></rect>'
            )
            parts.append(
                f'<text class="tick" x="{left + long + 5:.1f}" '
                f'y="{at + 10}">{escape(text(value))}</text>'
            )
    parts.append("</svg>")
    return "\n".join(parts) + legend(names)
