"""reproductions: what `dovetail reproduce` found, as a table and as a page that works offline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from dovetail import __version__
from dovetail.core import save_text
from dovetail.report.curve_picture import curves_svg
from dovetail.report.summary import Provenance
from dovetail.report.tables import Align, render_table
from dovetail.report.template import fill, part, provenance_list
from dovetail.report.units import MISSING, percent, significant
from dovetail.reproduce import CONFLICT, MISSED, NOT, REPRODUCED, SOURCES, Reproduction, Row

WORDS = {REPRODUCED: "reproduced", NOT: "not reproducible", CONFLICT: "source inconsistent", MISSED: "missed"}
CLASSES = {REPRODUCED: "good", NOT: "open", CONFLICT: "conflict", MISSED: "bad"}
HEADERS = ("item", "theirs", "ours", "best", "difference", "verdict")
ALIGNS: tuple[Align, ...] = ("left", "right", "right", "right", "right", "left")


def reproduction_text(found: Reproduction, *, terminal: bool = False, width: int = 100) -> str:
    """Return a table for each source, the reasons of all rows but reproduced ones, and how many have which verdict."""
    parts = []
    for source, rows in groupby(found.rows, lambda row: row.source):
        some = list(rows)
        cells = [_cells(row) for row in some]
        table = render_table(list(HEADERS), cells, ALIGNS, terminal=terminal, width=width)
        reasons = [f"{row.item}: {row.why}." for row in some if row.verdict != REPRODUCED]
        title = f"{source}: {SOURCES[source].title}"
        parts.append("\n\n".join(filter(None, [title, table, "\n".join(dict.fromkeys(reasons))])))
    return "\n\n\n".join([*parts, counts_text(found)])


def counts_text(found: Reproduction) -> str:
    """Return how many rows have which verdict, in one line."""
    return ", ".join(f"{count} {WORDS[verdict]}" for verdict, count in found.counts.items())  # type: ignore[index]


def write_reproduction(path: str | Path, found: Reproduction, provenance: Provenance | None = None) -> Path:
    """Write `reproduction_page` to `path`, completely or not at all; return the path."""
    return save_text(path, reproduction_page(found, provenance))


def reproduction_page(found: Reproduction, provenance: Provenance | None = None) -> str:
    """Return a page with the rows and curves of each source, by section."""
    known = dict(provenance.items()) if provenance else {}
    parts = {
        "title": "Figures of the sources, reproduced",
        "version": escape(__version__),
        "css": part("page.css", "reproduction.css"),
        "provenance": provenance_list({**known, "rows": f"{len(found.rows)}: {counts_text(found)}"}),
        "body": "".join(_source(name, found) for name in SOURCES if found.of(name)),
    }
    return fill("reproduction.html", parts)


def _source(name: str, found: Reproduction) -> str:
    rows = found.of(name)
    counts = Reproduction(rows)
    plots = "".join(curves_svg(each) for each in found.curves if each.source == name)
    drawn = f'<div class="curves">{plots}</div>' if plots else ""
    head = f"<h2>{escape(SOURCES[name].title)}</h2><p class='counts'>{_tally(counts)}</p>"
    cells = "".join(_rows(rows))
    heads = "".join(f"<th{_numeric(i)}>{escape(text)}</th>" for i, text in enumerate((*HEADERS, "how, or why not")))
    table = (
        f'<div class="scroll"><table class="rows"><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>'
    )
    return f'<section id="{name}">{head}{drawn}{table}</section>'


def _tally(found: Reproduction) -> str:
    known = [(verdict, count) for verdict, count in found.counts.items() if count]
    return " ".join(f'<span class="{CLASSES[v]}">{count} {WORDS[v]}</span>' for v, count in known)  # type: ignore[index]


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the rows of the table, with a line above each section."""
    for section, some in groupby(rows, lambda row: row.section):
        yield f'<tr class="section"><td colspan="7">{escape(section)}</td></tr>'
        for row in some:
            texts = [*_cells(row)[:5]]
            cells = "".join(f"<td{_numeric(i)}>{escape(text)}</td>" for i, text in enumerate(texts))
            verdict = f'<td class="verdict {CLASSES[row.verdict]}">{WORDS[row.verdict]}</td>'
            basis = f"{row.basis}: " if row.basis and row.ours is not None else ""
            yield f'<tr>{cells}{verdict}<td class="why">{escape(basis + row.why)}</td></tr>'


def _numeric(column: int) -> str:
    return ' class="number"' if 0 < column < 5 else ""


def _cells(row: Row) -> list[str]:
    values = [_value(each, row.unit) for each in (row.theirs, row.ours, row.best)]
    difference = MISSING if row.difference is None else percent(row.difference) if row.difference else "0 %"
    return [row.item, *values, difference, WORDS[row.verdict]]


def _value(value: Any, unit: str) -> str:
    """Return a value with its unit.

    >>> _value(1.9, "x"), _value(16384, "bytes"), _value([46, 52], "%"), _value(None, "us"), _value(0.233923, "s")
    ('1.90 ×', '16 KiB', '46, 52 %', '–', '0.234 s')
    """
    if value is None:
        return MISSING
    if isinstance(value, list | tuple):
        return " ".join(filter(None, [", ".join(_number(each) for each in value), _unit(unit)]))
    if unit == "bytes" and isinstance(value, int | float):
        whole = value % 1024 == 0 and value >= 1024
        return f"{int(value // 1024)} KiB" if whole else f"{value / 1024:.1f} KiB" if value >= 1024 else f"{value:g} B"
    return " ".join(filter(None, [_number(value), _unit(unit)]))


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value)}"
    return f"{value:g}" if abs(value) < 1e-3 else significant(value)


def _unit(unit: str) -> str:
    return {"x": "×", "us": "µs"}.get(unit, unit)
