"""space_picture: an iteration space as a static SVG: rows from left to right, steps upwards, coloured by rank."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from dovetail.ir import Piece, Space

WIDTH, STRIP, GUTTER, BASE = 760, 18, 52, 34
MOST_HEIGHT = 420
HUES = ("var(--accent)", "var(--lost)", "var(--good)", "var(--muted)")
SHADES = (0.78, 0.56, 0.36)  # alternate from turn to turn


def space_svg(space: Space) -> str:
    """Return the picture; colours are CSS variables of the page.

    >>> one = Space("rows", 0, 8, (4,), (Piece(0, 1, 1, 0, 4, False), Piece(1, 1, 1, 4, 8, False)))
    >>> space_svg(one).count("<rect")
    2
    """
    steps = max((piece.step for piece in space.pieces), default=1)
    strip = min(STRIP, MOST_HEIGHT / steps)
    height = steps * strip + BASE
    parts = [_rect(space, piece, steps, strip) for piece in space.pieces]
    parts += [f'<path d="M{_x(space, cut):.1f} 0V{steps * strip:.1f}" {INK} stroke-width="1.5"/>' for cut in space.cuts]
    parts += _labels(space, steps, strip)
    upwards = f"{space.up} {space.number(1)} to {space.number(steps)}"
    label = escape(f"Iteration space: {space.axis} {space.low} to {space.high}, {upwards}", quote=True)
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" style="width:100%;max-width:{WIDTH}px"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">{"".join(parts)}</svg>'


INK = 'fill="none" stroke="var(--ink)"'


def _rect(space: Space, piece: Piece, steps: int, strip: float) -> str:
    left, right = _x(space, piece.low), _x(space, piece.high)
    shade = SHADES[piece.turn % len(SHADES)] * (0.4 if piece.beyond else 1.0)
    where = f"{space.up} {space.number(piece.step)}, {space.axis} {piece.low} to {piece.high}"
    tooltip = f"rank {piece.rank}, turn {piece.turn}: {where}"
    tooltip += ", also computed by another rank" * piece.beyond
    place = f'x="{left:.1f}" y="{(steps - piece.step) * strip:.1f}" width="{right - left:.1f}" height="{strip:.1f}"'
    edge = 'stroke="var(--panel)" stroke-width="0.6"' if space.apart else 'shape-rendering="crispEdges"'
    paint = f'fill="{HUES[piece.rank % len(HUES)]}" fill-opacity="{shade:.2f}" {edge}'
    return f"<rect {place} {paint}><title>{escape(tooltip)}</title></rect>"


def _labels(space: Space, steps: int, strip: float) -> Iterator[str]:
    bottom, style = steps * strip, 'font-size="11" fill="var(--muted)"'
    for at in sorted({space.low, *space.cuts}):
        yield f'<text x="{_x(space, at):.1f}" y="{bottom + 14:.1f}" text-anchor="middle" {style}>{at}</text>'
    yield f'<text x="{WIDTH - 2}" y="{bottom + 14:.1f}" text-anchor="end" {style}>{space.high}</text>'
    aside = [(11.0, str(space.number(steps))), (bottom - 3, f"{space.up} {space.number(1)}")]
    if not space.apart:
        aside[1:] = [(bottom / 2, space.up), (bottom - 3, str(space.number(1)))]
    for y, text in aside:
        yield f'<text x="{GUTTER - 8}" y="{y:.1f}" text-anchor="end" {style}>{escape(text)}</text>'
    yield f'<text x="{(GUTTER + WIDTH) / 2:.0f}" y="{bottom + 28:.1f}" text-anchor="middle" {style}>{space.axis}</text>'


def _x(space: Space, at: int) -> float:
    return GUTTER + (WIDTH - GUTTER - 12) * (at - space.low) / max(space.high - space.low, 1)
