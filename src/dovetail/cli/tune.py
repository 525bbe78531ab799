"""tune: `dovetail tune`: probe, plan, prove and measure an operator or collective, and choose its fastest schedule."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import collectives, files, output
from dovetail.cli import options as opt
from dovetail.cli.operators import OperatorRequest, flag, listed, of
from dovetail.cli.trace import note_trace_in, refuse_another
from dovetail.core import EnvironmentFault, OperatorError

if TYPE_CHECKING:
    from dovetail.ir import Operator
    from dovetail.run.executor import Executor
    from dovetail.tuner import TuneResult


def tune(
    request: OperatorRequest,
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks to run on.", min=1)],
    machine: opt.MachineName = None,
    contention: opt.Contention = None,
    on: opt.On = "mpi",
    launch: opt.Launch = None,
    rounds: opt.Rounds = 9,
    budget: Annotated[
        float, typer.Option("--budget", help="Approximate seconds of measurement, without the probe.", min=0.0)
    ] = 120.0,
    seed: opt.Seed = None,
    fresh: opt.Fresh = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="Folder for a trace of serial and the chosen schedule, run once more.", file_okay=False
        ),
    ] = None,
    json: opt.Json = False,
    out: opt.Out = None,
) -> int:
    """Probe, plan, prove, measure the best schedules interleaved with serial, save the fastest, and explain the choice.

    If no sizes are given, the operator gets sizes whose computation and communication take equally long here.

    For a collective: at each size, measure the best predicted algorithms interleaved with the MPI library's call, and
    save a table of the fastest, which later calls such as dovetail.all_reduce use.
    """
    from dovetail.cli.machines import find
    from dovetail.report.tuning import write_tuning
    from dovetail.run.executor import executor_on
    from dovetail.tuner import tune as follow

    chosen, executor = find(machine) if machine else None, executor_on(on, launch=launch)
    traced = executor_on(on, launch=launch, trace=trace)
    measuring: dict[str, Any] = {"rounds": rounds, "budget_s": budget, "fresh": fresh, "seed": seed}
    if trace is not None:
        refuse_another(trace)
    if request.kind.by_size:
        if contention is not None:
            raise OperatorError(
                f"{request.kind.name} has no --contention", hint="leave it out: a collective only communicates"
            )
        if trace is not None:
            hint = "dovetail run ALGORITHM.json --size BYTES --trace FOLDER"
            raise OperatorError(f"{request.kind.name} has no --trace: it tunes many sizes, not one", hint=hint)
        asked = dict(request.given)
        folder = out or _collectives_folder(request.kind, ranks, asked)
        with _no_empty_jobs(folder):
            return collectives.tune(request.kind, ranks, asked, executor, chosen, folder, measuring, json=json)
    operator = _balanced(request, executor, ranks) if request.is_bare and chosen is None else request.operator(chosen)
    folder = out or Path(_folder(operator, ranks))
    measuring |= {"machine": chosen, "contention": contention, **request.limits}
    with _no_empty_jobs(folder):
        with output.progress("tuning") as say:
            result = follow(operator, ranks, out=folder, executor=executor, say=say, **measuring)
            result = write_tuning(result, folder, shlex.join(["dovetail", *sys.argv[1:]]))
        if trace is not None:
            _trace(result, traced.in_folder(folder / "runs"), trace)
    output.emit(result.to_json()) if json else print_tuned(result)
    return verdict(result)


@contextmanager
def _no_empty_jobs(folder: Path) -> Iterator[None]:
    """Remove the empty folders of jobs under `folder` in any case, even if the user interrupts the tuning."""
    try:
        yield
    finally:
        for job in (folder / "runs").glob("job-*"):
            files.drop_if_empty(job)
        files.drop_if_empty(folder / "runs")


def _trace(result: TuneResult, executor: Executor, trace: Path) -> None:
    """Run serial and the chosen schedule once more, traced; the measurement itself is not traced."""
    from dovetail.tuner.tune import beside_serial, fresh_seed

    with output.progress("running once more, traced"):
        executor.execute(beside_serial(result.plan, rounds=1, seed=fresh_seed(None)))
    note_trace_in(trace)


def print_tuned(result: TuneResult) -> None:
    """Print the table, the losses, the check, and last the page's path."""
    from dovetail.report import seconds, summary_table
    from dovetail.report.tuning import error_text, summary, why_kept
    from dovetail.report.units import ideal_share

    judged, planned = result.judged, result.planned
    print(summary_table(summary(result), terminal=output.is_terminal(), width=output.width()))
    disturbed = f"; {judged.disturbed} disturbed" if judged.disturbed else ""
    gain = "" if result.ideal_gain is None else f"; {ideal_share(result.ideal_gain)} of the ideal gain"
    outcome = f"; serial kept: {why_kept(result)}" if result.keeps_serial else gain
    print(f"\nMedians of {judged.rounds} rounds{disturbed}{outcome}.")
    for text in (*result.plan.schedule.notes, *result.notes):
        print(text)
    lost = sorted(((s, name) for name, s in result.losses.items() if abs(s) > 1e-3 * planned.median_s), reverse=True)
    if lost:
        print("The rest was lost to " + ", ".join(f"{name} {seconds(s)}" for s, name in lost) + ".")
    for text in error_text(result):
        print(text)
    if result.report is not None:
        print(f"\n{result.report}")


def verdict(result: TuneResult) -> int:
    """Return exit code 1 if a result is wrong, else 0. Raise EnvironmentFault if the page could not be written."""
    from dovetail.report.tuning import wrong

    if bad := list(wrong(result)):
        output.warn(bad[0])
        return 1
    if result.report is None:
        what = str(result.notes[0]) if result.notes else "the page could not be written"
        raise EnvironmentFault(what.splitlines()[0], hint="the plan is saved; choose another place with --out")
    return 0


def _folder(operator: Operator, ranks: int) -> str:
    """Return the default name of a tuning's folder: operator, sizes, other options that are not the default, ranks."""
    document, options = operator.to_json(), of(type(operator), "operator")
    chosen = [(o.name, document[o.name]) for o in options if document.get(o.name) not in (None, o.default)]
    words = [f"{name}{value}" if isinstance(value, int | float) else str(value) for name, value in chosen]
    return "-".join(["dovetail", operator.name, *words, f"r{ranks}"])


def _collectives_folder(kind: type[Operator], ranks: int, asked: dict[str, Any]) -> Path:
    """Return the default folder of a collective's tuning: the collective, dtype, ranks."""
    from dovetail.tuner.collectives import collectives_of

    return Path(f"dovetail-{kind.name}-{collectives_of(kind, **asked)[0].dtype}-r{ranks}")


def _balanced(request: OperatorRequest, executor: Any, ranks: int) -> Operator:
    """Choose sizes whose computation and communication take equally long on this machine, and print them."""
    from dovetail.ir.abilities import BalancedSizes
    from dovetail.prober import balance
    from dovetail.report import num_bytes, seconds

    if ranks < 2:
        hint = f"give {listed(request.missing)}, or more --ranks"
        raise OperatorError("one rank has no communication to balance with", hint=hint)
    others = {name: value for name, value in request.given.items() if value is not None}
    dtype = {"dtype": others["dtype"]} if "dtype" in others else {}
    assert issubclass(request.kind, BalancedSizes)
    found = balance.balanced(executor, request.kind, ranks, **dtype)
    called = found.operator.library_calls(ranks)[0].kind
    known, needed = found.operator.to_json(), [o.name for o in of(request.kind, "operator") if o.needed]
    sizes = " ".join(f"{flag(name)} {known[name]}" for name in needed)
    sides = f"{seconds(found.compute_s)} of compute, {seconds(found.comm_s)} of the library's {called}"
    output.note(f"No sizes given: {sizes} balances this machine: {sides}")
    speed = f"compute {1e-9 * found.flops / found.compute_s:.0f} GFLOP/s on each of {ranks} ranks"
    output.note(f"({speed}, {called} {num_bytes(found.num_bytes / found.comm_s)}/s).\n")
    return replace(found.operator, **others)  # type: ignore[type-var]
