"""html: the HTML page: schedules, losses, reasons and timeline in one file that works offline."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from math import ceil, log10
from pathlib import Path

from dovetail import __version__
from dovetail.core import save_text
from dovetail.ir import Program, Space
from dovetail.report.op_details import OpDetails
from dovetail.report.payload import encode
from dovetail.report.space_picture import space_svg
from dovetail.report.summary import Losses, Provenance, Row, Summary
from dovetail.report.template import fill, part, programs_of, provenance_list
from dovetail.report.units import ideal_share, second_unit, seconds, seconds_column, significant
from dovetail.timeline import Label, Timeline

SCRIPTS = ("data.js", "view.js", "draw.js", "over.js", "input.js", "find.js", "findings.js", "main.js")
EMPTY = "<section><h2>Timeline</h2><p>Nothing ran: no spans.</p></section>"
MEANINGS = {
    "dil": "pieces slower than the whole",
    "cil": "compute and traffic slow each other",
    "head": "before the lane's first work",
    "tail": "after the lane's last work",
    "stall": "gaps between its first and last work",
    "startup": "before the rank's first op",
    "imbalance": "waiting for slower ranks",
}


def write_page(
    path: str | Path,
    *,
    title: str,
    timelines: Sequence[Timeline] = (),
    program: Program | Sequence[Program | OpDetails | None] | None = None,
    summary: Summary | None = None,
    further: str = "",
) -> Path:
    """Write the page to `path`, completely or not at all; return the path.

    `program`: the program that all timelines ran, or one for each timeline (None if unknown). With it, tooltips show
    each op's text and source line, and arrows show messages. `further`: HTML to insert above the timeline. Raises
    EnvironmentFault if the file cannot be written.
    """
    return save_text(path, page(title=title, timelines=timelines, program=program, summary=summary, further=further))


def page(
    *,
    title: str,
    timelines: Sequence[Timeline] = (),
    program: Program | Sequence[Program | OpDetails | None] | None = None,
    summary: Summary | None = None,
    further: str = "",
) -> str:
    """Return the page that `write_page` writes."""
    facts = summary or Summary()
    ran: list[Program | OpDetails | None] = programs_of(timelines, program)
    shown = [run for run in zip(timelines, ran, strict=True) if run[0].num_spans]
    script = part(*SCRIPTS) if shown else ""
    parts = {
        "title": escape(title),
        "version": escape(__version__),
        "hash": "sha256-" + b64encode(sha256(script.encode()).digest()).decode(),
        "css": part("page.css"),
        "provenance": _provenance(facts.provenance, timelines),
        "summary": _summary(facts),
        "space": _space(facts.space),
        "further": further,
        "timeline": part("timeline.html") if shown else EMPTY,
        "data": encode(shown) if shown else "",
        "script": script,
    }
    return fill("page.html", parts)


def _provenance(given: Provenance, timelines: Sequence[Timeline]) -> str:
    """Return command, machine and commit, as given or else from the timelines, and how well clocks agree."""
    known = dict(given.items())
    for timeline in timelines:
        for name in ("command", "machine", "commit"):
            if timeline.meta.get(name):
                known.setdefault(name, str(timeline.meta[name]))
    errors = [t.meta["clock_error_s"] for t in timelines if t.meta.get("clock_error_s")]
    if errors:
        known["clocks of ranks agree within"] = seconds(max(errors))
    return provenance_list(known)


def _summary(summary: Summary) -> str:
    left = right = ""
    if summary.rows:
        left += f"<section><h2>Schedules</h2>{_schedules(summary)}</section>"
    if summary.notes:
        notes = "".join(f"<p{' class=lines' * (chr(10) in note)}>{escape(note)}</p>" for note in summary.notes)
        left += f'<section class="notes"><h2>Why</h2>{notes}</section>'
    if summary.losses:
        right = f"<section><h2>Where the time beyond the ideal goes</h2>{_losses(summary.losses)}</section>"
    sides = "".join(f"<div>{side}</div>" for side in (left, right) if side)
    return f'<div class="pair{" both" if left and right else ""}">{sides}</div>' if sides else ""


def _space(space: Space | None) -> str:
    if space is None:
        return ""
    what = "A part of it, with a colour for each rank; alternating shades separate tiles computed one after another"
    what += "; pale parts are computed by another rank, too" * any(piece.beyond for piece in space.pieces)
    return f"<section><h2>Iteration space</h2><p>{what}.</p>{space_svg(space)}</section>"


def _schedules(summary: Summary) -> str:
    aside = '<th class="aside">vs predicted</th>'
    head = '<th class="name">schedule</th>'
    for label in summary.labels:
        head += f'<th class="number">{label}</th>' + aside * (label != "predicted")
    gains, whys = any(r.ideal_gain is not None for r in summary.rows), any(r.why for r in summary.rows)
    head += "<th>share of ideal gain</th>" * gains + "<th>why</th>" * whys
    columns = [
        seconds_column([row.seconds(label) for row in summary.rows], distinct=label != "measured")
        for label in summary.labels
    ]
    times = zip(*columns, strict=True) if columns else [()] * len(summary.rows)
    body = "".join(
        _schedule(row, dict(zip(summary.labels, cells, strict=True)), gains, whys)
        for row, cells in zip(summary.rows, times, strict=True)
    )
    return _table("schedules", head, body)


def _schedule(row: Row, times: Mapping[Label, str], gains: bool, whys: bool) -> str:
    tag = '<span class="tag">chosen</span>' if row.chosen else ""
    cells = f'<td class="name">{escape(row.schedule)}{tag}</td>'
    for label, time in times.items():
        cells += f'<td class="number">{time.strip()}</td>'
        cells += f'<td class="aside">{_aside(row, label)}</td>' * (label != "predicted")
    if gains:
        share = 0.0 if row.ideal_gain is None else min(max(row.ideal_gain, 0.0), 1.0)
        bar = f'<span class="gain"><i style="width:{100 * share:.1f}%"></i></span>' * (row.ideal_gain is not None)
        cells += f'<td class="share">{bar}{ideal_share(row.ideal_gain)}</td>'
    cells += f'<td class="why">{escape(row.why)}</td>' * whys
    return f"<tr{' class=chosen' if row.chosen else ''}>{cells}</tr>"


def _table(name: str, head: str, body: str) -> str:
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="{name}">{table}</table></div>'


def _aside(row: Row, label: Label) -> str:
    """Return the spread of a measured time, and its difference to the prediction."""
    value, parts = row.seconds(label), []
    if value is None:
        return ""
    if label == "measured" and row.spread_s is not None:
        parts.append(f"± {_in_unit_of(row.spread_s, value)}")
    if row.predicted_s:
        parts.append(signed_percent(value / row.predicted_s - 1))
    return ", ".join(parts)


def _in_unit_of(value_s: float, other_s: float) -> str:
    """Return the number of `value_s` in the unit in which `other_s` is shown.

    >>> _in_unit_of(0.0003, 0.0527)
    '0.30'
    """
    return significant(value_s / second_unit(other_s)[0], 2)


def signed_percent(share: float) -> str:
    """Return a difference as a percentage with its sign.

    >>> signed_percent(0.0512), signed_percent(-0.25)
    ('+5.1 %', '−25 %')
    """
    return f"{'−' if share < 0 else '+'}{significant(abs(100 * share), 2)} %"


def _losses(losses: Sequence[Losses]) -> str:
    return f'<div class="total">{_totals(losses)}</div>{_loss_table(losses)}'


def _totals(losses: Sequence[Losses]) -> str:
    """Return a bar for each label: the ideal, then the losses."""
    most = max((max(x.makespan_s, x.ideal_s) for x in losses), default=0.0) or 1.0
    lines = []
    for entry in losses:
        lost_s = entry.makespan_s - entry.ideal_s
        ideal, lost = 100 * entry.ideal_s / most, max(100 * lost_s / most, 0.0)
        where = f'<span class="where">along {escape(entry.where)}</span>' if entry.where else ""
        digits = 3 if not lost_s else min(max(2 + ceil(log10(max(entry.makespan_s / abs(lost_s), 1))), 3), 6)
        text = f"{entry.label}: {seconds(entry.makespan_s, digits)} = {seconds(entry.ideal_s, digits)} ideal"
        lines.append(
            f"<p>{text} {'−' if lost_s < 0 else '+'} {seconds(abs(lost_s))} lost{where}</p>"
            f'<div class="stack {entry.label}"><i class="ideal" style="width:{ideal:.2f}%"></i>'
            f'<i class="lost" style="width:{lost:.2f}%"></i></div>'
        )
    return "".join(lines)


def _loss_table(losses: Sequence[Losses]) -> str:
    """Return a row per loss, the largest first, with a bar per label; below, causes that lost nothing."""
    largest: dict[str, float] = {}
    for entry in losses:
        for name, value in entry.lost_s.items():
            largest[name] = max(largest.get(name, 0.0), abs(value))
    names = sorted(largest, key=lambda name: -largest[name])
    least = 1e-6 * max(entry.makespan_s for entry in losses)  # smaller losses are rounding errors
    none = ", ".join(escape(name) for name in names if largest[name] <= least)
    head = "<th>loss</th><th></th>" + "".join(f'<th class="number">{entry.label}</th>' for entry in losses)
    body = "".join(_loss(name, losses, max(largest.values())) for name in names if largest[name] > least)
    return _table("losses", head, body) + (f'<p class="none">nothing lost to {none}</p>' if none else "")


def _loss(name: str, losses: Sequence[Losses], most_s: float) -> str:
    bars = "".join(_bar(entry.label, entry.lost_s.get(name, 0.0) / most_s) for entry in losses)
    cells = (seconds(entry.lost_s.get(name)).replace("-", "−") for entry in losses)
    values = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    meaning = f'<span class="meaning">{escape(MEANINGS[name])}</span>' if name in MEANINGS else ""
    return f'<tr><td>{escape(name)}{meaning}</td><td class="bars">{bars}</td>{values}</tr>'


def _bar(label: Label, share: float) -> str:
    """Return a bar with `share` of the greatest length; negative losses (gains) have another colour."""
    sign = " negative" if share < 0 else ""
    fill = f'<i style="width:{max(100 * abs(share), 0.6):.2f}%"></i>' if share else ""
    return f'<div class="bar {label}{sign}">{fill}</div>'
