"""compare: `dovetail compare`: a predicted timeline against a measured one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import files, output
from dovetail.cli.options import Json

if TYPE_CHECKING:
    from dovetail.timeline import Comparison


def compare(
    predicted: Annotated[str, typer.Argument(help="A timeline, or a plan (its predicted one).")],
    measured: Annotated[str, typer.Argument(help="A timeline, as `dovetail run` writes it.")],
    json: Json = False,
    page: Annotated[Path | None, typer.Option("--page", help="Write both timelines to this HTML page.")] = None,
) -> None:
    """Compare a predicted timeline with a measured one: makespans, busy lanes, and errors of op durations."""
    from dovetail.timeline import compare as lay

    before, after = files.timeline_of(predicted), files.timeline_of(measured)
    comparison = lay(before, after)
    if page is not None:
        _write_page(page, predicted, before, after)
    output.emit(comparison.to_json()) if json else print(render(comparison))
    if page is not None and not json:
        print(f"\n{page}")


def render(comparison: Comparison) -> str:
    """Return a comparison as text: makespans, busy seconds by rank and lane, errors of op durations by name."""
    from dovetail.report import percent, render_table, seconds, seconds_column

    labels = (comparison.predicted_label, comparison.measured_label)
    head = f"{labels[0]} {seconds(comparison.predicted_s)}, {labels[1]} {seconds(comparison.measured_s)}"
    head += f": {comparison.ratio:.3g} times as long"
    if comparison.num_missing:
        head += f"; {comparison.num_missing} ops left no span"
    columns = [seconds_column([getattr(b, name) for b in comparison.busy]) for name in ("predicted_s", "measured_s")]
    busy = [[str(b.rank), b.lane, *cells] for b, *cells in zip(comparison.busy, *columns, strict=True)]
    errors = [
        [e.name, str(e.count), percent(e.median), percent(e.p90_abs), percent(e.max_abs)] for e in comparison.errors
    ]
    aligns: list[Any] = ["right", "left", "right", "right"]
    terminal = output.is_terminal()
    parts = [head, render_table(["rank", "lane", *labels], busy, aligns, terminal=terminal)]
    if errors:
        wide: list[Any] = ["left", *["right"] * 4]
        names = ["op", "count", "median error", "p90", "largest"]
        parts.append(render_table(names, errors, wide, terminal=terminal))
    return "\n\n".join(parts)


def _write_page(page: Path, predicted: str, *timelines: Any) -> None:
    from dovetail.report import write_page

    kind, content = files.read(predicted)
    program = files.planned_program(content) if kind == "plan" else None
    write_page(page, title="predicted and measured", timelines=timelines, program=program)
