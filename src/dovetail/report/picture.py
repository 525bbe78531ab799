"""picture: a timeline as a static SVG: predicted above measured, lane by lane, on one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from pathlib import Path

import numpy as np

from dovetail.core import save_text
from dovetail.ir import Program
from dovetail.report.span_classes import GROUPS, span_groups
from dovetail.report.summary import Provenance
from dovetail.report.tables import visible
from dovetail.report.template import programs_of
from dovetail.report.tracks import Track, tracks
from dovetail.report.units import second_unit, seconds
from dovetail.timeline import Timeline

GUTTER, STRIP, RIGHT = 184, 15, 14
LETTER = 6.3  # pixels of a letter, on average
LEAST_PIXELS = 0.4  # narrow spans with smaller gaps are drawn as one
STYLE = """
text { font: 11px Inter, "Segoe UI", -apple-system, "Helvetica Neue", "DejaVu Sans", sans-serif; fill: #22262b; }
.muted { fill: #6d7278; } .bold { font-weight: 600; } .title { font-size: 14px; font-weight: 600; }
.ground { fill: #ffffff; } .line { stroke: #e4e4df; } .end { stroke: #6d7278; } .inside { fill: #ffffff; }
"""
DARK = """
text { fill: #e4e5e3; } .muted { fill: #9a9ea3; } .ground { fill: #1d2023; } .line { stroke: #303438; }
.end { stroke: #9a9ea3; } .inside { fill: #17191c; }
"""


@dataclass(frozen=True)
class _Row:
    """One strip: its track, its y, and whether it has labels for rank and lane."""

    timeline: int
    track: Track
    y: float
    rank: bool
    lane: bool


def write_svg(
    path: str | Path,
    timelines: Sequence[Timeline],
    program: Program | Sequence[Program | None] | None = None,
    *,
    title: str = "",
    provenance: Provenance | None = None,
    width: int = 960,
) -> Path:
    """Write `svg` to `path`, completely or not at all; return the path."""
    return save_text(path, svg(timelines, program, title=title, provenance=provenance, width=width))


def svg(
    timelines: Sequence[Timeline],
    program: Program | Sequence[Program | None] | None = None,
    *,
    title: str = "",
    provenance: Provenance | None = None,
    width: int = 960,
) -> str:
    """Return the picture as text, `width` pixels wide, as high as needed, in the viewer's light or dark theme."""
    top = 40 if title else 12
    sorted_tracks = [tracks(timeline) for timeline in timelines]
    rows = _rows([found for found, _ in sorted_tracks], timelines, top + 24)
    bottom = rows[-1].y + STRIP + 8 if rows else top + 24
    end_s = max((t.makespan_s for t in timelines), default=0.0) or 1.0
    scale = (width - GUTTER - RIGHT) / end_s
    groups = [span_groups(t, p) for t, p in zip(timelines, programs_of(timelines, program), strict=True)]
    parts = [f'<text class="title" x="12" y="24">{escape(visible(title))}</text>'] if title else []
    parts += _axis(end_s, scale, top, bottom)
    for row in rows:
        timeline, (_, order) = timelines[row.timeline], sorted_tracks[row.timeline]
        parts += _labels(timeline, row, width)
        parts += _strip(timeline, groups[row.timeline], row, order, scale)
    parts += _ends(timelines, scale, top, bottom)
    parts += _legend(timelines, groups, bottom + 18)
    height = bottom + (44 if provenance and provenance.items() else 32)
    for name, text in provenance.items() if provenance else []:
        parts.append(f'<text class="muted" x="12" y="{height:.0f}">{name} {escape(visible(text))}</text>')
        height += 16
    return document(parts, width, ceil(height), title)


def document(parts: Sequence[str], width: int, height: int, title: str) -> str:
    """Return an SVG of these parts, with a class g0, g1, … per group for its light or dark colour."""
    light = "".join(f".g{i} {{ fill: {g.light}; stroke: {g.light}; }}" for i, g in enumerate(GROUPS))
    dark = "".join(f".g{i} {{ fill: {g.dark}; stroke: {g.dark}; }}" for i, g in enumerate(GROUPS))
    pale = ".predicted { fill-opacity: .38; } .emulated { fill-opacity: .66; }"
    style = f"{STYLE}{light}{pale}@media (prefers-color-scheme: dark) {{{DARK}{dark}}}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    ground = f'<rect class="ground" width="{width}" height="{height}" rx="6"/>'
    heading = f"<title>{escape(visible(title))}</title>"
    return "\n".join([f'{head} role="img">', heading, f"<style>{style}</style>", ground, *parts, "</svg>", ""])


def _rows(found: Sequence[Sequence[Track]], timelines: Sequence[Timeline], y: float) -> list[_Row]:
    """Return the strips by rank, lane, timeline, depth, with larger gaps between ranks than between lanes."""
    names = list(dict.fromkeys(lane for t in timelines for lane in t.lanes))
    keyed = sorted(
        (track.rank, names.index(timelines[i].lanes[track.lane]), i, track.depth, track)
        for i, each in enumerate(found)
        for track in each
    )
    rows: list[_Row] = []
    last: tuple[int, int] | None = None
    for rank, lane, i, _, track in keyed:
        new_rank, new_lane = last is None or rank != last[0], last != (rank, lane)
        y += 0.0 if last is None else 12.0 if new_rank else 6.0 if new_lane else 2.0
        rows.append(_Row(i, track, y, new_rank, new_lane))
        y, last = y + STRIP, (rank, lane)
    return rows


def _labels(timeline: Timeline, row: _Row, width: int) -> Iterator[str]:
    y = row.y + STRIP - 4
    if row.rank:
        yield f'<line class="line" x1="0" x2="{width}" y1="{row.y - 6:.1f}" y2="{row.y - 6:.1f}"/>'
        yield f'<text class="bold" x="12" y="{y:.1f}">rank {row.track.rank}</text>'
    if row.lane:
        yield f'<text x="58" y="{y:.1f}">{escape(visible(timeline.lanes[row.track.lane])[:9])}</text>'
    if row.track.depth == 0:
        shade = "" if timeline.label == "measured" else ' class="muted"'
        yield f'<text{shade} x="{GUTTER - 8}" y="{y:.1f}" text-anchor="end">{timeline.label}</text>'


def _strip(timeline: Timeline, groups: np.ndarray, row: _Row, order: np.ndarray, scale: float) -> Iterator[str]:
    """Yield the spans of one track; narrow neighbours of one group with small gaps (`LEAST_PIXELS`) become one."""
    spans = order[row.track.first : row.track.first + row.track.num_spans]
    start = GUTTER + timeline.columns["start_s"][spans] * scale
    end = GUTTER + timeline.columns["end_s"][spans] * scale
    group = groups[spans]
    tiny = end - start < 3
    joins = (group[1:] == group[:-1]) & tiny[1:] & tiny[:-1] & (start[1:] - end[:-1] < LEAST_PIXELS)
    firsts = np.flatnonzero(np.concatenate([[True], ~joins]))
    lasts = np.append(firsts[1:], len(spans)) - 1
    for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True):
        wide = max(end[b] - start[a] - (0.6 if end[b] - start[a] > 3 else 0), 0.5)
        box = f'x="{start[a]:.2f}" y="{row.y:.1f}" width="{wide:.2f}" height="{STRIP}"'
        pale = (
            f' {timeline.label}" stroke-width="1'
            if wide > 3 and timeline.label != "measured"
            else f' {timeline.label}" stroke-width="0'
        )
        yield f'<rect class="g{group[a]}{pale}" {box}/>'
        name = timeline.names[timeline.columns["name"][spans[a]]]
        if a == b and wide > 6.4 * len(name) + 8:
            shade = ' class="inside"' if timeline.label == "measured" else ""
            yield f'<text{shade} x="{start[a] + 5:.2f}" y="{row.y + STRIP - 4:.1f}">{escape(visible(name))}</text>'


def _axis(end_s: float, scale: float, top: float, bottom: float) -> Iterator[str]:
    """Yield ticks at 1, 2 or 5 times a power of ten, about a hundred pixels apart."""
    rough = 90 / scale
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    unit, name = second_unit(end_s)
    places = max(0, -floor(log10(step / unit) + 1e-9))
    for k in range(floor(end_s / step) + 1):
        x = GUTTER + k * step * scale
        label = f"{k * step / unit:.{places}f} {name}" if k else "0"
        yield f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 14}" y2="{bottom:.1f}"/>'
        if x + 4 + LETTER * len(label) < GUTTER + end_s * scale + RIGHT:  # else it would be cut off
            yield f'<text class="muted" x="{x + 4:.1f}" y="{top + 10}">{label}</text>'


def _ends(timelines: Sequence[Timeline], scale: float, top: float, bottom: float) -> Iterator[str]:
    """Yield a line at the end of each timeline, dashed unless it is measured."""
    for timeline in timelines:
        x = GUTTER + timeline.makespan_s * scale
        dash = "" if timeline.label == "measured" else ' stroke-dasharray="3 3"'
        yield f'<line class="end" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 14}" y2="{bottom:.1f}"{dash}/>'


def _legend(timelines: Sequence[Timeline], groups: Sequence[np.ndarray], y: float) -> Iterator[str]:
    """Yield each timeline with its length, and each group of ops that occurs."""
    x = 12.0
    entries = [(0, t.label, f"{t.label} {seconds(t.makespan_s)}") for t in timelines]
    seen = np.unique(np.concatenate([*groups, np.zeros(0, dtype=np.uint8)]))
    entries += [(int(g), "measured", GROUPS[g].name) for g in seen]
    for place, (group, label, text) in enumerate(entries):
        x += 14.0 if place == len(timelines) else 0.0
        box = f'x="{x:.0f}" y="{y - 9:.0f}" width="11" height="11" rx="2"'
        yield f'<rect class="g{group} {label}" {box} stroke-width="{0 if label == "measured" else 1}"/>'
        yield f'<text x="{x + 16:.0f}" y="{y:.0f}">{escape(text)}</text>'
        x += 16 + LETTER * len(text) + 16
