"""curve_picture: a few curves over sizes in bytes as a small static SVG, for pages without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log2

from dovetail.report.units import num_bytes
from dovetail.reproduce import Curves

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 40, 24, 30, 44
HUES = ("#4b7cb3", "#c9774a", "#5d9c59", "#9a6fb0")
LABELS = 6  # most labels on the axis of sizes


def curves_svg(found: Curves) -> str:
    """Return the picture of speed-ups over sizes, with a line at 1 and at the printed value."""
    xs = [log2(each) for each in found.num_bytes]
    most = max([1.0, found.printed, *(y for line in found.lines.values() for y in line)])
    low, high, top = min(xs), max(xs), ceil(2 * most) / 2

    def x(value: float) -> float:
        return LEFT + (value - low) / max(high - low, 1e-9) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(found.title)}</text>']
    for value in _ticks(top):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{y(value) + 4:.1f}">{value:g}</text>')
    for power in _powers(low, high):
        parts.append(f'<text class="mid" x="{x(power):.1f}" y="{HEIGHT - BOTTOM + 16}">{num_bytes(2**power)}</text>')
    for at, name in ((1.0, "one"), (found.printed, "printed")):
        parts.append(f'<line class="{name}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(at):.1f}" y2="{y(at):.1f}"/>')
    for number, (name, line) in enumerate(found.lines.items()):
        hue = HUES[number % len(HUES)]
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(xs, line, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{hue}" stroke-width="1.6"/>')
        at = LEFT + number * (WIDTH - LEFT) / len(found.lines)
        parts.append(f'<text x="{at:.0f}" y="{HEIGHT - 8}" style="fill:{hue}">{escape(name)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(found.title)}">{"".join(parts)}</svg>'


def _ticks(top: float) -> Sequence[float]:
    step = next(each for each in (0.5, 1, 2, 5, 10) if top / each <= 5)
    return [step * i for i in range(floor(top / step) + 1)]


def _powers(low: float, high: float) -> list[int]:
    """Return whole powers of two for the labels of an axis.

    >>> _powers(10, 20)
    [10, 12, 14, 16, 18, 20]
    """
    first, last = ceil(low), floor(high)
    return list(range(first, last + 1, max(1, ceil((last - first) / (LABELS - 1)))))
