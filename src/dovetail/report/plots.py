"""plots: a page of cost curves with samples, fit, break points, range and residuals; it works offline."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import __version__
from dovetail.core import save_text
from dovetail.cost import Curve, Samples
from dovetail.report.summary import Provenance
from dovetail.report.template import fill, part, provenance_list
from dovetail.report.units import num_bytes, percent, seconds, significant

FIT, SAMPLE, MEDIAN, OTHER = "#c9774a", "#5b8fc9", "#4b7cb3", "#9a6fb0"
POINTS = 240  # drawn per fitted line


def write_curves(
    path: str | Path,
    curves: Mapping[str, Curve],
    *,
    title: str,
    samples: Mapping[str, Samples] | None = None,
    provenance: Provenance | None = None,
) -> Path:
    """Write `curves_page` to `path`, completely or not at all; return the path."""
    return save_text(path, curves_page(curves, title=title, samples=samples, provenance=provenance))


def curves_page(
    curves: Mapping[str, Curve],
    *,
    title: str,
    samples: Mapping[str, Samples] | None = None,
    provenance: Provenance | None = None,
) -> str:
    """Return a page with a plot for each named curve; `samples` by name replace those stored in a curve."""
    figures, sections = curve_sections(curves, samples)
    return figures_page(figures, sections, title=title, provenance=provenance)


def curve_sections(
    curves: Mapping[str, Curve], samples: Mapping[str, Samples] | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return the figures of curves as plotly's JSON, and the HTML sections that they belong into."""
    own = {name: Samples.from_json(curve.samples) for name, curve in curves.items() if curve.samples}
    known = {**own, **(samples or {})}
    figures = [curve_figure(name, curve, known.get(name)) for name, curve in curves.items()]
    return figures, "".join(_section(name, curve) for name, curve in curves.items())


def figures_page(
    figures: Sequence[Mapping[str, Any]], sections: str, *, title: str, provenance: Provenance | None = None
) -> str:
    """Return a page of HTML `sections`; the k-th element of class `plot` shows the k-th figure (plotly's JSON)."""
    from plotly.offline import get_plotlyjs

    scripts = (get_plotlyjs(), part("plots.js"))
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    parts = {
        "title": escape(title),
        "version": escape(__version__),
        "hashes": " ".join(f"'sha256-{digest}'" for digest in digests),
        "css": part("page.css"),
        "provenance": provenance_list(dict(provenance.items()) if provenance else {}),
        "plots": sections,
        "figures": json.dumps(figures).replace("<", "\\u003c"),
        "plotly": scripts[0],
        "script": scripts[1],
    }
    return fill("plots.html", parts)


def curve_figure(name: str, curve: Curve, samples: Samples | None = None) -> dict[str, Any]:
    """Return the figure of one curve as plotly's JSON: seconds above, residuals below, on one axis."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    num_rows = 2 if curve.residuals else 1
    heights = [0.74, 0.26][:num_rows]
    figure = make_subplots(rows=num_rows, cols=1, row_heights=heights, shared_xaxes=True, vertical_spacing=0.06)
    for trace in _upper_traces(go, curve, samples):
        figure.add_trace(trace, row=1, col=1)
    if curve.residuals:
        percents = [100 * r for r in curve.residuals]
        style = {"color": FIT, "size": 6}
        trace = go.Scatter(x=list(curve.x), y=percents, mode="markers", marker=style, name="residual", showlegend=False)
        figure.add_trace(trace, row=2, col=1)
        figure.update_yaxes(title_text="fit − sample, %", row=2, col=1)
    for at in curve.breaks:
        if at > 0:
            figure.add_vline(at, line={"width": 1, "dash": "dot", "color": "#8a8f94"})
    low, high = _extent(curve, samples)
    ends = curve.seconds(np.array([low, high]), extrapolate=True)
    figure.update_xaxes(**_axis(low, high, curve.x_unit))
    figure.update_xaxes(title_text=escape(curve.x_unit), row=num_rows, col=1)
    figure.update_yaxes(**_axis(float(ends[0]), float(ends[1]), "seconds"), row=1, col=1)
    margin = {"l": 70, "r": 20, "t": 16, "b": 46}
    legend = {"orientation": "h", "y": 1.04, "x": 0, "yanchor": "bottom"}
    figure.update_layout(
        height=460 if num_rows == 2 else 340, margin=margin, legend=legend, template="none", hovermode="closest"
    )
    document: dict[str, Any] = json.loads(figure.to_json())
    return document


def _axis(low: float, high: float, unit: str) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at powers of 4 or 10 for a wide range, a linear one for a narrow range."""
    if low <= 0 or high / low <= 30:
        return {
            "type": "linear",
            "ticks": "outside",
            "exponentformat": "SI",
            "ticksuffix": "s" if unit == "seconds" else "",
        }
    base = 4.0 if unit == "bytes" else 10.0
    powers = range(math.floor(math.log(low, base)) - 1, math.ceil(math.log(high, base)) + 2)
    ticks = [base**power for power in powers[:: max(1, len(powers) // 12)]]
    texts = [_tick(tick, unit) for tick in ticks]
    return {"type": "log", "ticks": "outside", "tickvals": ticks, "ticktext": texts}


def _tick(value: float, unit: str) -> str:
    if unit == "seconds":
        return seconds(value, digits=1)
    return num_bytes(value) if unit == "bytes" else significant(value, 1)


def _upper_traces(go: Any, curve: Curve, samples: Samples | None) -> list[Any]:
    """Return traces of the upper plot: timings, medians, interval, modes, and the fitted line where it is valid."""
    traces = []
    if samples is not None:
        dots = {"color": SAMPLE, "size": 4, "opacity": 0.3}
        xs, ys = samples.x.tolist(), samples.seconds.tolist()
        traces.append(go.Scatter(x=xs, y=ys, mode="markers", marker=dots, name="timings"))
        middle = {"color": MEDIAN, "size": 7, "symbol": "line-ew-open"}
        xs, ys = samples.sizes.tolist(), samples.medians.tolist()
        traces.append(go.Scatter(x=xs, y=ys, mode="markers", marker=middle, name="medians"))
    if curve.interval:
        low, high = zip(*curve.interval, strict=True)
        edge = [*curve.x, *curve.x[::-1]]
        band = {"fill": "toself", "fillcolor": "rgba(201,119,74,.22)", "line": {"width": 0}, "hoverinfo": "skip"}
        traces.append(go.Scatter(x=edge, y=[*high, *low[::-1]], mode="lines", name="95 % interval", **band))
    for number, mode in enumerate(curve.modes if len(curve.modes) > 1 else ()):
        line = {"color": OTHER, "width": 1.2, "dash": "dash"}
        label = f"mode {number + 1}: {percent(mode.share)} of timings"
        traces.append(go.Scatter(x=list(mode.x), y=list(mode.seconds), mode="lines", line=line, name=label))
    x = _grid(curve, samples)
    line = {"color": FIT, "width": 2}
    traces.append(
        go.Scatter(x=x.tolist(), y=curve.seconds(x).tolist(), mode="lines", line=line, name=f"{curve.label} fit")
    )
    return traces


def _extent(curve: Curve, samples: Samples | None) -> tuple[float, float]:
    """Return the positive range of x to show."""
    seen = [*curve.x, *curve.breaks, *(samples.sizes.tolist() if samples is not None else [])]
    seen = [x for x in seen if x > 0]
    high = curve.high if math.isfinite(curve.high) else 4 * max(seen, default=2.0**18)
    low = curve.low if curve.low > 0 else min(seen, default=high / 4096)
    return low, max(high, low * 2)


def _grid(curve: Curve, samples: Samples | None) -> NDArray[np.float64]:
    """Return the points at which to draw the fit: inside its range of validity, and at both sides of every break."""
    low, high = _extent(curve, samples)
    even = np.linspace(low, high, POINTS)
    breaks = np.array([at for at in curve.breaks if low < at < high])
    edges = np.concatenate([breaks, np.nextafter(breaks, 0)])
    return np.unique(np.concatenate([even, np.geomspace(low, high, POINTS), edges]).clip(low, high))


def _section(name: str, curve: Curve) -> str:
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in _facts(curve))
    heading = f'<h2>{escape(name)} <span class="where">{escape(curve.label)}</span></h2>'
    return f'<section>{heading}<dl class="provenance">{facts}</dl><div class="plot"></div></section>'


def _facts(curve: Curve) -> list[tuple[str, str]]:
    """Return (name, text) of the curve's numbers: range, breaks, errors, modes, provenance."""
    rows = [("valid from", f"{_amount(curve, curve.low)} to {_amount(curve, curve.high)}")]
    if curve.breaks:
        rows.append(("breaks", ", ".join(_amount(curve, at) for at in curve.breaks)))
    if curve.residuals:
        rows.append(("median error", percent(curve.median_error)))
        rows.append(("largest", percent(curve.max_error)))
    if len(curve.modes) > 1:
        rows.append(("modes", ", ".join(f"×{m.ratio:.3g} in {percent(m.share)}" for m in curve.modes)))
    rows.append(("at the start", seconds(curve.seconds(curve.low))))
    return rows + [(key, str(value)) for key, value in curve.provenance.items() if isinstance(value, str | int | float)]


def _amount(curve: Curve, x: float) -> str:
    if not math.isfinite(x):
        return "any number"
    return num_bytes(x) if curve.x_unit == "bytes" else f"{x:g} {curve.x_unit}"
