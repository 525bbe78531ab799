"""topology: a picture of a machine's nodes, switches and links, and a page with it and the machine's curves."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from math import cos, pi, sin
from pathlib import Path

from dovetail.core import save_text
from dovetail.cost import CostModel
from dovetail.machine import Machine
from dovetail.report.plots import curve_sections, figures_page
from dovetail.report.summary import Provenance

WIDTH, HEIGHT, MARGIN = 760, 420, 46
HUES = ("#4b7cb3", "#c9774a", "#5d9c59", "#9a6fb0", "#8a8f94")
HALO = "paint-order:stroke;stroke:var(--bg,Canvas);stroke-width:6px;stroke-linejoin:round"  # Canvas: outside a page
LABELLED, DRAWN = 40, 512  # most nodes that have labels, and that are drawn
Place = tuple[float, float]


def write_machine(path: str | Path, machine: Machine, provenance: Provenance | None = None) -> Path:
    """Write a page with the topology and the cost curves, completely or not at all; return the path."""
    curves = dict(CostModel.of(machine).curves)
    figures, sections = curve_sections(curves)
    drawn = f"<section><h2>Topology</h2>{topology_svg(machine)}</section>"
    page = figures_page(figures, drawn + sections, title=f"Machine {machine.name}", provenance=provenance)
    return save_text(path, page)


def topology_svg(machine: Machine) -> str:
    """Return the picture: nodes with their ranks, switches, and one line for the links of each pair.

    Without switches, or with one, nodes stand in a circle; with several, in a row below them. Of more than 512 nodes
    there is a sentence instead.
    """
    nodes = sorted(set(machine.nodes))
    if len(nodes) > DRAWN:
        return f"<p>{len(nodes)} nodes and {len(machine.links)} links, too many to draw.</p>"
    places = _places(machine, nodes)
    kinds = list(dict.fromkeys(link.kind for link in machine.links if link.src != link.dst))
    hues = {kind: HUES[i % len(HUES)] for i, kind in enumerate(kinds)}
    parts = [*_lines(machine, places, hues), *_dots(places, len(nodes) <= LABELLED)]
    if len(nodes) <= LABELLED:
        parts += [f'<g style="{HALO}">', *_labels(machine, places), "</g>"]
    for number, kind in enumerate(kinds):
        x = 14 + number * 150
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="16" y2="16" stroke="{hues[kind]}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 28}" y="20">{escape(kind)}</text>')
    style = "max-width:760px;width:100%;height:auto;font:11px sans-serif;fill:currentColor"
    title = f"Topology of {machine.name}"
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" style="{style}" role="img" aria-label="{escape(title)}">'
    return head + "".join(parts) + "</svg>"


def _places(machine: Machine, nodes: list[int]) -> dict[int, Place]:
    """Return where each node and switch stands."""
    switches = sorted({end for link in machine.links for end in (link.src, link.dst) if end < 0}, reverse=True)
    if len(switches) <= 1:
        middle = WIDTH / 2, HEIGHT / 2 + 10
        radius = HEIGHT / 2 - MARGIN if len(nodes) > 1 else 0.0
        turns = {node: 2 * pi * i / len(nodes) - pi / 2 for i, node in enumerate(nodes)}
        circle = {node: (middle[0] + radius * cos(a), middle[1] + radius * sin(a)) for node, a in turns.items()}
        return circle | dict.fromkeys(switches, middle)
    above = {end: _rank_of(machine, end) for end in switches}
    levels = [nodes, *([end for end in switches if above[end] == level] for level in sorted(set(above.values())))]
    step = (HEIGHT - 2 * MARGIN) / (len(levels) - 1)
    return {
        end: (MARGIN + (i + 0.5) * (WIDTH - 2 * MARGIN) / len(row), HEIGHT - MARGIN - level * step)
        for level, row in enumerate(levels)
        for i, end in enumerate(row)
    }


def _rank_of(machine: Machine, switch: int) -> int:
    """Return the level of a switch: 1 if it has nodes, 2 if only other switches."""
    return 1 if any(link.src == switch and link.dst >= 0 for link in machine.links) else 2


def _lines(machine: Machine, places: dict[int, Place], hues: dict[str, str]) -> Iterator[str]:
    """Yield a line for the links of each pair of ends."""
    pairs = sorted((min(a, b), max(a, b), kind) for a, b, kind in machine.links if a != b)
    for (a, b, kind), _ in groupby(pairs):
        (x1, y1), (x2, y2) = places[a], places[b]
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        yield f'<line {ends} stroke="{hues[kind]}" stroke-width="1.4" opacity="0.7"/>'


def _dots(places: dict[int, Place], large: bool) -> Iterator[str]:
    """Yield a square for each switch and a circle for each node."""
    for end, (x, y) in places.items():
        if end < 0:
            yield f'<rect x="{x - 7:.1f}" y="{y - 7:.1f}" width="14" height="14" fill="#8a8f94"/>'
        else:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{7 if large else 3}" fill="#4b7cb3"/>'


def _labels(machine: Machine, places: dict[int, Place]) -> Iterator[str]:
    """Yield the text below each node: its ranks, and the link kind between them if there are several."""
    ranks: dict[int, list[int]] = {}
    for rank, node in enumerate(machine.nodes):
        ranks.setdefault(node, []).append(rank)
    for node, some in ranks.items():
        x, y = places[node]
        text = f"rank {some[0]}" if len(some) == 1 else f"node {node}: ranks {some[0]}–{some[-1]}"
        yield f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{text}</text>'
        if len(some) > 1:
            inside = f"{machine.kind_within(node)} within"
            yield f'<text x="{x:.1f}" y="{y + 33:.1f}" text-anchor="middle">{escape(inside)}</text>'
