"""tables: format tables as strings: plain text for files and pipes, coloured (rich) for terminals."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TextIO

from dovetail.report.summary import Summary
from dovetail.report.units import ideal_share, seconds_column

Align = Literal["left", "right"]


def visible(text: str) -> str:
    r"""Return `text` with control characters escaped, so that a name cannot control a terminal.

    >>> visible("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], aligns: Sequence[Align] = ()) -> str:
    """Return a table in plain text, with two spaces between columns and a line under the headers.

    >>> print(plain_table(["schedule", "predicted"], [["serial", "4 ms"], ["mc2", "12 ms"]], ["left", "right"]))
    schedule  predicted
    --------  ---------
    serial         4 ms
    mc2           12 ms
    """
    sides = [*aligns, *["left"] * (len(headers) - len(aligns))]
    lines = [[visible(cell) for cell in line] for line in (headers, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    lines.insert(1, ["-" * width for width in widths])
    pads = [str.rjust if side == "right" else str.ljust for side in sides]
    return "\n".join(
        "  ".join(pad(cell, width) for pad, cell, width in zip(pads, line, widths, strict=True)).rstrip()
        for line in lines
    )


def rich_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    aligns: Sequence[Align] = (),
    *,
    bold_row: int | None = None,
    width: int = 100,
    colour: bool = True,
) -> str:
    """Return the same table drawn by rich, at most `width` characters wide; `bold_row` is emphasised."""
    from io import StringIO

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    sides = [*aligns, *["left"] * (len(headers) - len(aligns))]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header, side in zip(headers, sides, strict=True):
        table.add_column(Text(visible(header)), justify="right" if side == "right" else "left")
    for index, row in enumerate(rows):
        table.add_row(*(Text(visible(cell)) for cell in row), style="bold green" if index == bold_row else None)
    file = StringIO()
    Console(file=file, force_terminal=colour, no_color=not colour, width=width, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().strip("\n").splitlines())


def render_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    aligns: Sequence[Align] = (),
    *,
    terminal: bool = False,
    bold_row: int | None = None,
    width: int = 100,
) -> str:
    """Return `rich_table` for a `terminal` with colours, `plain_table` otherwise."""
    if terminal:
        return rich_table(headers, rows, aligns, bold_row=bold_row, width=width)
    return plain_table(headers, rows, aligns)


def is_colour_terminal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `stream` is a terminal that shows colours; NO_COLOR and TERM=dumb switch them off.

    >>> from io import StringIO
    >>> is_colour_terminal(StringIO(), {})
    False
    """
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def summary_table(summary: Summary, *, terminal: bool = False, width: int = 100) -> str:
    """Return the table of a plan or a tuning: a row for each schedule; empty columns are left out."""
    headers, rows, aligns = summary_cells(summary)
    chosen = next((i for i, row in enumerate(summary.rows) if row.chosen), None)
    return render_table(headers, rows, aligns, terminal=terminal, bold_row=chosen, width=width)


def summary_cells(summary: Summary) -> tuple[list[str], list[list[str]], list[Align]]:
    """Return headers, cells and alignments of `summary`; an asterisk marks the chosen row."""
    columns: list[tuple[str, list[str], Align]] = []
    columns.append(("schedule", [row.schedule + (" *" if row.chosen else "") for row in summary.rows], "left"))
    for label in summary.labels:
        cells = seconds_column([row.seconds(label) for row in summary.rows], distinct=label != "measured")
        columns.append((label, cells, "right"))
    if any(row.ideal_gain is not None for row in summary.rows):
        columns.append(("ideal gain", [ideal_share(row.ideal_gain) for row in summary.rows], "right"))
    if any(row.why for row in summary.rows):
        columns.append(("why", [row.why for row in summary.rows], "left"))
    rows = [list(cells) for cells in zip(*(cells for _, cells, _ in columns), strict=True)]
    return [header for header, _, _ in columns], rows, [align for _, _, align in columns]
