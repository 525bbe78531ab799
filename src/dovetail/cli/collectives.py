"""collectives: `dovetail tune` of a collective, and tables of tuned and timed collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dovetail.cli import files, output

if TYPE_CHECKING:
    from dovetail.ir import Operator
    from dovetail.tuner.baselines import Compared
    from dovetail.tuner.collectives import TunedCollective
    from dovetail.tuner.contest import Contest
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
    more, refused = write_for_others(result.selection.at("serialized"), folder)
    result = replace(result, files=(*result.files, *more), notes=(*result.notes, *refused))
    files.drop_if_empty(folder / "runs")
    output.emit(result.to_json()) if json else print_tuned(result)
    return int(result.is_wrong)


def print_tuned(result: TunedCollective) -> None:
    """Print the table by size, the notes, and last the path of the selection table."""
    _print_level(result.contest, result.compared)
    if result.at_multiple:
        print("\nIn programs at MPI_THREAD_MULTIPLE, which mpi4py asks for by default:\n")
        _print_level(result.at_multiple, {})
    for text in result.notes:
        output.note(text)
    print("\n" + "\n".join(str(path) for path in result.files[:3]))


def _print_level(found: Contest, compared: Mapping[int, Compared]) -> None:
    """Print the table by size. Where the library's own program was `compared`, the speed-up is over its best."""
    from dovetail.report import num_bytes, seconds
    from dovetail.store.selection import Choice
    from dovetail.tuner.collectives import point_of

    rows = []
    for each in found.judged:
        point, beside = point_of(each), compared.get(point_of(each).num_bytes)
        library = [seconds(point.library_s)]
        if compared:
            both = (beside.installed, beside.best) if beside else ()
            library = [seconds(timing.median_s) for timing in both] or ["–", "–"]
        ours, speedup = (beside.ours.median_s, beside.speedup) if beside else (point.measured_s, each.speedup)
        times = *library, seconds(ours), str(Choice.of(each.schedule)), seconds(point.predicted_s)
        rows.append([num_bytes(point.num_bytes), *times, f"{speedup:.2f}"])
    names = ["installed", "best knobs"] if compared else ["library"]
    headers = ["size", *names, "ours", "algorithm", "predicted", "speed-up"]
    aligns: list[Literal["left", "right"]] = ["left" if name == "algorithm" else "right" for name in headers]
    output.table(headers, rows, aligns)


def print_timed(timed: Sequence[Timed]) -> None:
    """Print timings in the columns of nccl-tests, and the times of the library's own program if it was measured."""
    has_more = any(each.beside for each in timed)
    names = ["bytes", "count", "type", "algorithm", "time (µs)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"]
    names += ["installed (µs)", "best knobs (µs)", "speed-up"] if has_more else []
    aligns: list[Literal["left", "right"]] = ["left" if name in ("type", "algorithm") else "right" for name in names]
    output.table(names, [_timed_row(each, has_more) for each in timed], aligns)


def _timed_row(each: Timed, has_more: bool) -> list[str]:
    rates, found = [f"{rate:.3f}" for rate in each.bandwidths], each.beside
    row = [str(each.operator.num_bytes), str(each.count), each.operator.dtype, str(each.choice)]
    row += [f"{each.seconds * 1e6:.2f}", *rates, str(each.num_wrong)]
    if not has_more:
        return row
    if found is None:
        return [*row, "–", "–", "–"]
    times = (f"{timing.median_s * 1e6:.2f}" for timing in (found.installed, found.best))
    return [*row, *times, f"{found.speedup:.2f}"]
