"""characteristics: DIL and CIL (losses by splitting and by contention) in tables, and as plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from dovetail.core import EnvironmentFault, save_text
from dovetail.prober import Beside, Characteristic, Characteristics, Ratio
from dovetail.report.plots import figures_page
from dovetail.report.summary import Provenance
from dovetail.report.tables import Align, render_table
from dovetail.report.units import MISSING, num_bytes, percent, seconds, significant

HUES = ("#4b7cb3", "#c9774a", "#5d9c59", "#9a6fb0")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "diamond-open", "square-open", "x-thin-open")
PICTURES = (".png", ".svg")
WIDTH, HEIGHT, SPACING = 1240, 1080, 0.06
NARROW, WIDE = 8.0, 300.0  # ratios of an axis's greatest to its least value that decide on its ticks
CUT = "DIL: seconds of all pieces / seconds of the whole; median ± half the interquartile range."
BESIDE = (
    "CIL: seconds with traffic / seconds in isolation, for computation / for traffic, by bytes of a message or call."
)


Along = Callable[[Characteristic], float]


class Line(NamedTuple):
    """A curve: its name, the numbers of its hue and its dash, and its value for a computation."""

    name: str
    hue: int
    dash: int
    value: Callable[[Characteristic], Ratio | None]


def characteristics_text(found: Characteristics, *, terminal: bool = False, width: int = 100) -> str:
    """Return what was measured as two tables, of splitting and of traffic; then where and how quietly."""
    cuts, traffics = found.cuts(), found.traffics()
    heads = ["size", "FLOP/B", "bytes", "whole", *(f"{way} / {pieces}" for way, pieces in cuts)]
    rows = [[*_about(each), *(_with_spread(each.dil(*cut)) for cut in cuts)] for each in found.found]
    parts = [CUT, _table(heads, rows, terminal, width)]
    if traffics:
        heads = ["size", *(f"{traffic} {num_bytes(size)}" for traffic, size in traffics)]
        rows = [[each.title, *(_either(each.cil(*key)) for key in traffics)] for each in found.found]
        parts += [BESIDE, _table(heads, rows, terminal, width)]
    return "\n\n".join([*parts, "\n".join(remarks(found))])


def remarks(found: Characteristics) -> list[str]:
    """Return sentences on where it was measured, how quietly, and what was not measured."""
    rounds, disturbed = [each.rounds for each in found.found], sum(each.disturbed for each in found.found)
    facts = [str(found.facts[key]) for key in ("cpu", "mpi") if key in found.facts]
    where = " ".join(", ".join([f"Measured on {found.ranks} ranks", *facts]).split())
    counts = f"{min(rounds)} to {max(rounds)}" if min(rounds) < max(rounds) else f"{min(rounds)}"
    return [f"{where}; {counts} rounds of each, {disturbed} disturbed.", *found.load.warnings, *found.notes]


def _about(each: Characteristic) -> list[str]:
    return [each.title, significant(each.intensity), num_bytes(each.num_bytes), seconds(each.whole.median)]


def _with_spread(ratio: Ratio | None) -> str:
    if ratio is None:
        return MISSING
    return f"{significant(ratio.median)} ± {percent((ratio.high - ratio.low) / 2 / ratio.median)}"


def _either(beside: Beside | None) -> str:
    if beside is None:
        return MISSING
    net = MISSING if beside.net is None else significant(beside.net.median)
    return f"{significant(beside.compute.median)} / {net}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], terminal: bool, width: int) -> str:
    aligns: list[Align] = ["left", *["right"] * (len(heads) - 1)]  # type: ignore[list-item]
    return render_table(heads, rows, aligns, terminal=terminal, width=width)


def write_characteristics(path: Path, found: Characteristics, provenance: Provenance) -> Path:
    """Write the curves as a page that works offline (.html, or into a folder), or as a picture (.svg, .png); return the
    file. Raises EnvironmentFault if a picture cannot be made."""
    if path.suffix not in (*PICTURES, ".html"):
        path = path / f"{found.subject}.html"
    if path.suffix == ".html":
        return save_text(path, characteristics_page(found, provenance))
    try:
        figure(found).write_image(str(path), width=WIDTH, height=HEIGHT, scale=2 if path.suffix == ".png" else 1)
    except (ValueError, ImportError, RuntimeError) as error:
        what = str(error).strip().splitlines()[0]
        hint = "pip install 'dovetail[export]' and install Chromium; or write a page: --plot FILE.html"
        raise EnvironmentFault(f"cannot draw {path}", found=what, hint=hint) from error
    return path


def characteristics_page(found: Characteristics, provenance: Provenance) -> str:
    """Return the curves and the tables as a page that works offline."""
    text = escape(characteristics_text(found))
    section = f'<section><div class="plot"></div><pre>{text}</pre></section>'
    figures = [json.loads(figure(found).to_json())]
    return figures_page(figures, section, title=_title(found), provenance=provenance)


def _title(found: Characteristics) -> str:
    dtypes = {str(each.sizes["dtype"]): None for each in found.found if "dtype" in each.sizes}
    return f"{' '.join([found.subject, *dtypes])}: decomposition and contention losses"


def figure(found: Characteristics) -> Any:
    """Return the losses (rows) against what they may depend on (columns), as a plotly figure."""
    from plotly.subplots import make_subplots

    losses = [("DIL", cut_lines(found)), ("CIL of computing", cil_lines(found, "compute"))]
    losses = [(name, lines) for name, lines in [*losses, ("CIL of traffic", cil_lines(found, "net"))] if lines]
    axes: list[tuple[str, Along]] = [
        ("op-to-byte ratio, FLOP/B", lambda each: each.intensity),
        ("memory traffic, MB", lambda each: each.num_bytes / 1e6),
        (found.aspect, lambda each: each.shape),
    ]
    made = make_subplots(len(losses), len(axes), shared_yaxes=True, horizontal_spacing=0.02, vertical_spacing=SPACING)
    for row, (name, lines) in enumerate(losses, start=1):
        for column, (_, along) in enumerate(axes, start=1):
            traces = [each for line in lines for each in traces_of(found, line, along, row, shown=column == 1)]
            made.add_traces(traces, rows=row, cols=column)
            made.add_hline(1.0, line={"width": 1, "color": "#8a8f94"}, row=row, col=column)
        known = [ratio.median for line in lines for each in found.found if (ratio := line.value(each))]
        made.update_yaxes(title_text=name, row=row, col=1)
        made.update_yaxes(**_log_axis(known), row=row)
        top = 1.0 - (row - 1) * (1.0 + SPACING) / len(losses)
        made.update_layout({_legend(row): {"x": 1.01, "y": top, "yanchor": "top"}})
    for column, (title, along) in enumerate(axes, start=1):
        made.update_xaxes(**_log_axis([along(each) for each in found.found]), col=column)
        made.update_xaxes(title_text=title, row=len(losses), col=column)
    margin = {"l": 70, "r": 20, "t": 50, "b": 50}
    made.update_layout(height=HEIGHT, margin=margin, template="none", hovermode="closest", title_text=_title(found))
    return made


def _log_axis(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at 1, 2 and 5 times powers of ten; more on a narrow range, fewer on a wide
    one.
    """
    low, high = min(values, default=1.0), max(values, default=1.0)
    steps = (1, 1.5, 2, 3, 5, 7) if high < NARROW * low else (1, 2, 5) if high < WIDE * low else (1,)
    ticks = [step * 10.0**power for power in range(floor(log10(low)) - 1, ceil(log10(high)) + 1) for step in steps]
    return {"type": "log", "ticks": "outside", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def cut_lines(found: Characteristics) -> list[Line]:
    """Return a curve for each split: a hue for each way to split, a dash for each number of pieces."""
    return _lines(found.cuts(), str, lambda cut: lambda each: each.dil(*cut))


def cil_lines(found: Characteristics, side: str) -> list[Line]:
    """Return a curve for each traffic: a hue for each kind, a dash for each size."""
    return _lines(found.traffics(), num_bytes, lambda key: lambda each: getattr(each.cil(*key), side, None))


def _lines(keys: Sequence[tuple[str, int]], unit: Callable[[int], str], value: Callable[[Any], Any]) -> list[Line]:
    kinds, sizes = (list(dict.fromkeys(column)) for column in zip(*keys, strict=True)) if keys else ([], [])
    return [Line(f"{a} / {unit(b)}", kinds.index(a), sizes.index(b), value((a, b))) for a, b in keys]


def traces_of(found: Characteristics, line: Line, along: Along, row: int, *, shown: bool) -> list[Any]:
    """Return the traces of a curve: medians with quartiles, and a line through the means at equal x."""
    import plotly.graph_objects as go

    known = [(along(each), ratio, each.title) for each in found.found if (ratio := line.value(each)) is not None]
    places = sorted({x for x, _, _ in known})
    means = [geometric_mean([ratio.median for x, ratio, _ in known if x == place]) for place in places]
    ratios, colour = [ratio for _, ratio, _ in known], HUES[line.hue % len(HUES)]
    away = {"array": [r.high - r.median for r in ratios], "arrayminus": [r.median - r.low for r in ratios]}
    stroke = {"color": colour, "width": 1, "dash": DASHES[line.dash % len(DASHES)]}
    symbol = {"color": colour, "size": 7, "symbol": SYMBOLS[line.dash % len(SYMBOLS)]}
    alike = {"legend": _legend(row), "legendgroup": f"{row} {line.name}", "name": line.name}
    through = go.Scatter(x=places, y=means, mode="lines", line=stroke, hoverinfo="skip", showlegend=False, **alike)
    dots = go.Scatter(
        x=[x for x, _, _ in known],
        y=[ratio.median for ratio in ratios],
        text=[title for _, _, title in known],
        mode="markers",
        marker=symbol,
        error_y={**away, "thickness": 0.8, "width": 2, "color": colour},
        showlegend=shown,
        **alike,
    )
    return [through, dots]


def _legend(row: int) -> str:
    return "legend" if row == 1 else f"legend{row}"
