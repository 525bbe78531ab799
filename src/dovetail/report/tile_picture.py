"""tile_picture: a 2D tiling as a static SVG: tile, dependences, neighbours, time steps of both schedules Π."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice, product
from math import ceil, floor
from pathlib import Path
from typing import NamedTuple

from dovetail.core import OperatorError, save_text
from dovetail.loops.matrices import Vector
from dovetail.report.picture import document
from dovetail.report.span_classes import COLLECTIVE, COMPUTE, FORWARD, IDLE, RECEIVE, SEND, SYNC
from dovetail.tiling.facts import TileFacts
from dovetail.tiling.hyperplanes import step_of
from dovetail.tiling.spaces import Space
from dovetail.tiling.tile_loops import tiles
from dovetail.tiling.tile_points import tile_points
from dovetail.tiling.tiling import Tiling

PANEL, GAP, TOP = 440, 24, 64
COLOURS = (SEND, RECEIVE, COLLECTIVE, FORWARD, SYNC)  # assigned to neighbours in turn
MOST_DOTS, MOST_TILES, WINDOW = 700, 160, 4
_EXTRA = """<style>.outline { fill: none; stroke: #6d7278; } .space { fill: none; stroke: #c25b79; stroke-width: 1.6; }
.plane { stroke: #c25b79; stroke-dasharray: 5 4; stroke-width: 1.2; } .arrow { stroke-width: 1; fill: none; }
.wash { fill-opacity: .16; stroke: none; } .flat { stroke: none; } .middle { text-anchor: middle; }</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0 L8 4 L0 8 z" fill="context-stroke"/></marker></defs>"""

Point = tuple[float, float]
_SHIFT = 0.25  # edges are drawn this far below the points on them


class _Panel(NamedTuple):
    """A panel: upper left corner and height in pixels, pixels per unit, and the range of coordinates shown."""

    x: float
    y: float
    height: float
    scale: float
    low: Point
    high: Point

    def at(self, point: Sequence[float]) -> Point:
        """Return the pixels of a point: the first loop goes right, the second up."""
        x = self.x + (point[0] - self.low[0]) * self.scale
        return x, self.y + self.height - (point[1] - self.low[1]) * self.scale


def check_drawable(num_loops: int) -> None:
    """Raise OperatorError unless there are two loops."""
    if num_loops != 2:
        hint = "choose two of the loops, and give the dependence vectors in these two"
        raise OperatorError("only tiles of two loops can be drawn", found=f"{num_loops} loops", hint=hint)


def write_tile_svg(path: str | Path, facts: TileFacts) -> Path:
    """Write `tile_svg` to `path`, completely or not at all; return the path."""
    return save_text(path, tile_svg(facts))


def tile_svg(facts: TileFacts) -> str:
    """Return the picture as text: left, the tile and its messages; right, the time steps of all tiles for both Π.

    Raises OperatorError unless there are two loops.
    """
    tiling = facts.tiling
    check_drawable(tiling.num_loops)
    space = facts.bounded.space if facts.bounded else None
    mapped = facts.bounded.mapped if facts.bounded else facts.mapped if facts.mapped is not None else 1
    title = f"Tile of {tiling.volume} points, sides {tiling.edges[0]} and {tiling.edges[1]}"
    around = [(0, 0), *(message.to for message in (facts.counts.messages if facts.counts else ()))]
    shown = (whole := _tiles_of(tiling, space)) or list(product(range(WINDOW), repeat=2))
    panels = [_fitted(tiling, tiles, 12 + k * (PANEL + GAP)) for k, tiles in enumerate((around, shown, shown))]
    parts = [_EXTRA, f'<text class="title" x="12" y="24">{escape(title)}</text>', *_tile_panel(panels[0], facts)]
    pis = [(1, 1), (1, 2) if mapped == 0 else (2, 1)]
    words = ["receive, compute, send in each step", f"overlapped; tiles along {mapped} on one processor"]
    schedules = [facts.bounded.non_overlapping, facts.bounded.overlapping] if facts.bounded else [None, None]
    for k, (pi, word, schedule) in enumerate(zip(pis, words, schedules, strict=True)):
        name = f"Π = [{pi[0]} {pi[1]}]" + (f", {schedule.steps} steps" if schedule else "")
        parts += _steps_panel(panels[k + 1], tiling, space if whole else None, shown, pi, mapped if k else None)
        parts.append(f'<text class="bold" x="{panels[k + 1].x}" y="{TOP - 20}">{escape(name)}: {escape(word)}</text>')
    height = TOP + max(panel.height for panel in panels) + 28
    return document(parts, 3 * PANEL + 2 * GAP + 24, ceil(height), title)


def _tile_panel(panel: _Panel, facts: TileFacts) -> Iterator[str]:
    """Yield the tile at the origin with its points, the neighbours that it sends to, and its dependence vectors."""
    tiling, messages = facts.tiling, facts.counts.messages if facts.counts else ()
    yield from _grid(panel, tiling)
    yield f'<text class="bold" x="12" y="{TOP - 20}">The tile, and the values sent to its neighbours</text>'
    for k, message in enumerate(messages):
        colour = COLOURS[k % len(COLOURS)]
        shape = _shape(panel, tiling, message.to)
        yield f'<polygon class="g{colour} wash" points="{shape}"/><polygon class="outline" points="{shape}"/>'
        x, y = panel.at(_centre(tiling, message.to))
        to = "processor" if facts.mapped is not None else "tile"
        yield f'<text class="middle bold" x="{x:.1f}" y="{y - 2:.1f}">{to} {message.to}</text>'
        yield f'<text class="middle" x="{x:.1f}" y="{y + 13:.1f}">{len(message.points)} values</text>'
    shape = _shape(panel, tiling, (0, 0))
    yield f'<polygon class="g{COMPUTE} wash" points="{shape}"/>'
    yield f'<polygon class="outline" points="{shape}" stroke-width="1.6"/>'
    yield from _dots(panel, facts)
    yield from _dependences(panel, tiling)


def _dots(panel: _Panel, facts: TileFacts) -> Iterator[str]:
    """Yield the points of the tile as dots; around each, a ring in the colour of each neighbour that gets its value."""
    if facts.tiling.volume > MOST_DOTS:
        return
    dot = min(3.4, 0.16 * panel.scale)
    rings: dict[tuple[int, ...], int] = {}
    for k, message in enumerate(facts.counts.messages if facts.counts else ()):
        for point in map(tuple, message.points.tolist()):
            rings[point] = rings.get(point, 0) + 1
            x, y = panel.at(point)
            style = f'fill="none" stroke-width="1.6" r="{dot + 2.4 * rings[point]:.1f}"'
            yield f'<circle class="g{COLOURS[k % len(COLOURS)]}" style="fill:none" {style} cx="{x:.1f}" cy="{y:.1f}"/>'
    for point in tile_points(facts.tiling).tolist():
        x, y = panel.at(point)
        yield f'<circle class="g{COMPUTE} flat" r="{dot:.1f}" cx="{x:.1f}" cy="{y:.1f}"/>'


def _dependences(panel: _Panel, tiling: Tiling) -> Iterator[str]:
    """Yield the dependence vectors as arrows from the tile's centre, each labelled at its end."""
    middle = [round(x) for x in _centre(tiling, (0, 0))]
    for vector in tiling.vectors:
        (x, y), (to_x, to_y) = panel.at(middle), panel.at([a + b for a, b in zip(middle, vector, strict=True)])
        line = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
        yield f'<line class="g{FORWARD} arrow" stroke-width="2" marker-end="url(#tip)" {line}/>'
        yield f'<text class="bold" x="{to_x + 5:.1f}" y="{to_y - 5:.1f}">{escape(str(vector))}</text>'


def _steps_panel(
    panel: _Panel, tiling: Tiling, space: Space | None, shown: list[Vector], pi: Vector, mapped: int | None
) -> Iterator[str]:
    """Yield the tiles with their time steps, and dashed hyperplanes; the tiles of every other processor are shaded."""
    first = min(step_of(pi, tile) for tile in shown)
    for tile in shown:
        shade = COMPUTE if mapped is None or tile[1 - mapped] % 2 else IDLE
        shape = _shape(panel, tiling, tile)
        yield f'<polygon class="g{shade} wash" points="{shape}"/>'
        yield f'<polygon class="outline" points="{shape}" stroke-width=".7"/>'
    if space is not None and space.set.is_box():
        corners = [panel.at((x - 0.5, y - 0.5)) for x, y in _corners(space)]
        yield f'<polygon class="space" points="{_joined(corners)}"/>'
    for step in range(first, max(step_of(pi, tile) for tile in shown) + 1):
        if (ends := _plane(panel, tiling, pi, step)) is not None:
            (x, y), (to_x, to_y) = ends
            yield f'<line class="plane" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'
    for tile in shown:
        x, y = panel.at(_centre(tiling, tile))
        yield f'<circle class="ground" r="9" cx="{x:.1f}" cy="{y:.1f}"/>'
        yield f'<text class="middle" x="{x:.1f}" y="{y + 4:.1f}">{step_of(pi, tile) - first}</text>'


def _plane(panel: _Panel, tiling: Tiling, pi: Vector, step: int) -> tuple[Point, Point] | None:
    """Return the ends of the line through the centres of all tiles of a step, clipped to the panel; None if outside."""
    normal = [sum(p * row[i] for p, row in zip(pi, tiling.normals, strict=True)) for i in (0, 1)]
    height = (step + sum(pi) / 2) * tiling.volume - _SHIFT * sum(normal)
    (low_x, low_y), (high_x, high_y) = panel.low, panel.high
    hits = []
    if normal[1]:
        hits += [(x, (height - normal[0] * x) / normal[1]) for x in (low_x, high_x)]
    if normal[0]:
        hits += [((height - normal[1] * y) / normal[0], y) for y in (low_y, high_y)]
    e = 1e-9
    inside = sorted({(x, y) for x, y in hits if low_x - e <= x <= high_x + e and low_y - e <= y <= high_y + e})
    return (panel.at(inside[0]), panel.at(inside[-1])) if len(inside) > 1 else None


def _tiles_of(tiling: Tiling, space: Space | None) -> list[Vector]:
    """Return the tiles of a small space; none for a large one, or without a space."""
    if space is None or space.num_points > MOST_DOTS * MOST_TILES:
        return []
    found = [tile for tile, _ in islice(tiles(tiling, space), MOST_TILES + 1)]
    return found if len(found) <= MOST_TILES else []


def _fitted(tiling: Tiling, tiles: list[Vector], left: float) -> _Panel:
    """Return a panel that shows these tiles completely."""
    corners = [corner for tile in tiles for corner in _tile_corners(tiling, tile)]
    low = (min(x for x, _ in corners) - 1, min(y for _, y in corners) - 1)
    high = (max(x for x, _ in corners) + 1, max(y for _, y in corners) + 1)
    scale = min(PANEL / (high[0] - low[0]), PANEL / (high[1] - low[1]))
    return _Panel(left, TOP, (high[1] - low[1]) * scale, scale, low, high)


def _grid(panel: _Panel, tiling: Tiling) -> Iterator[str]:
    """Yield grid lines with their coordinates."""
    step = max(1, ceil(40 / panel.scale))
    for k in range(ceil(panel.low[0] / step), floor(panel.high[0] / step) + 1):
        (x, y), (_, end) = panel.at((k * step, panel.low[1])), panel.at((k * step, panel.high[1]))
        yield f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{end:.1f}"/>'
        yield f'<text class="muted middle" x="{x:.1f}" y="{y + 14:.1f}">{k * step}</text>'
    for k in range(ceil(panel.low[1] / step), floor(panel.high[1] / step) + 1):
        (x, y), (end, _) = panel.at((panel.low[0], k * step)), panel.at((panel.high[0], k * step))
        yield f'<line class="line" x1="{x:.1f}" x2="{end:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="muted" x="{x + 2:.1f}" y="{y - 2:.1f}">{k * step}</text>'


def _tile_corners(tiling: Tiling, tile: Vector) -> list[Point]:
    """Return the four corners of a tile, shifted by `_SHIFT`, so that no point lies on an edge."""
    (x, y), ((a, b), (c, d)) = tiling.origin(tile), tiling.sides
    first = (x - _SHIFT, y - _SHIFT)
    return [(first[0] + p * a + q * b, first[1] + p * c + q * d) for p, q in ((0, 0), (1, 0), (1, 1), (0, 1))]


def _centre(tiling: Tiling, tile: Vector) -> Point:
    corners = _tile_corners(tiling, tile)
    return (corners[0][0] + corners[2][0]) / 2, (corners[0][1] + corners[2][1]) / 2


def _shape(panel: _Panel, tiling: Tiling, tile: Vector) -> str:
    return _joined([panel.at(corner) for corner in _tile_corners(tiling, tile)])


def _joined(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _corners(space: Space) -> list[Point]:
    (low_x, high_x), (low_y, high_y) = space.ranges
    return [(low_x, low_y), (high_x + 1, low_y), (high_x + 1, high_y + 1), (low_x, high_y + 1)]
