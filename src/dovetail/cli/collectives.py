"""collectives: `dovetail tune` of a collective, and tables of tuned and timed collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli import files, output

if TYPE_CHECKING:
    from dovetail.ir import Operator
    from dovetail.tuner.collectives import TunedCollective
    from dovetail.tuner.timing import Timed

BENCH_SCHEMA = "dovetail.bench/1"


def tune(
    kind: type[Operator],
    ranks: int,
    asked: dict[str, Any],
    executor: Any,
    machine: Any,
    out: Path | None,
    measuring: dict[str, Any],
    *,
    json: bool,
) -> int:
    """Tune a collective at each size and print the table. Return exit code 1 if some schedule computed wrong elements.

    `asked`: options of the operator.
    """
    from dovetail.report.selections import write_for_others
    from dovetail.tuner.collectives import collectives_of, tune_collective

    points = collectives_of(kind, **asked)
    folder = out or Path(f"dovetail-{kind.name}-{points[0].dtype}-r{ranks}")
    with output.progress("tuning") as say:
        result = tune_collective(points, ranks, out=folder, executor=executor, machine=machine, say=say, **measuring)
    more, refused = write_for_others(result.selection, folder)
    result = replace(result, files=(*result.files, *more), notes=(*result.notes, *refused))
    files.drop_if_empty(folder / "runs")
    output.emit(result.to_json()) if json else print_tuned(result)
    return int(result.is_wrong)


def print_tuned(result: TunedCollective) -> None:
    """Print the table by size, the notes, and last the path of the selection table."""
    from dovetail.report import num_bytes, seconds
    from dovetail.store.selection import Choice
    from dovetail.tuner.collectives import point_of

    rows = []
    for each in result.contest.judged:
        point, choice = point_of(each), Choice.of(each.schedule)
        times = seconds(point.library_s), seconds(point.measured_s), str(choice), seconds(point.predicted_s)
        rows.append([num_bytes(point.num_bytes), *times, f"{each.speedup:.2f}"])
    headers = ["size", "library", "best", "algorithm", "predicted", "speed-up"]
    output.table(headers, rows, ["right", "right", "right", "left", "right", "right"])
    for text in result.notes:
        output.note(text)
    print("\n" + "\n".join(str(path) for path in result.files[:3]))


def print_timed(timed: Sequence[Timed]) -> None:
    """Print timings in the columns of nccl-tests."""
    output.table(
        ["bytes", "count", "type", "algorithm", "time (µs)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"],
        [
            [
                str(each.operator.num_bytes),
                str(each.count),
                each.operator.dtype,
                str(each.choice),
                f"{each.seconds * 1e6:.2f}",
                *(f"{rate:.3f}" for rate in each.bandwidths),
                str(each.num_wrong),
            ]
            for each in timed
        ],
        ["right", "right", "left", "left", "right", "right", "right", "right"],
    )
