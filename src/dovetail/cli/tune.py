"""`dovetail tune`: the whole river for one wish on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import files, output
from dovetail.cli import options as opt
from dovetail.core import EnvironmentFault

if TYPE_CHECKING:
    from dovetail.cli.tuning import TuneResult


def tune(
    operator: opt.Operator,
    m: opt.M,
    k: opt.K,
    n: opt.N,
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks to run on.", min=1)],
    dtype: opt.Dtype = None,
    machine: opt.MachineName = None,
    schedule: opt.Schedule = "auto",
    reading: opt.Reading = "max",
    contention: opt.Contention = None,
    floor: opt.Floor = None,
    align: opt.Align = None,
    all_reduce: opt.AllReduce = "auto",
    launch: opt.Launch = None,
    rounds: opt.Rounds = 9,
    budget: opt.Budget = 60.0,
    seed: opt.Seed = None,
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    out: opt.Out = None,
) -> int:
    """Probe, plan, prove, measure serial and the best few in turn, keep the fastest, and explain it."""
    from dovetail.cli.machines import find
    from dovetail.cli.tuning import tune as follow
    from dovetail.run.mpi import MpiExecutor

    chosen = find(machine) if machine else None
    wish = opt.wish_of(m, k, n, dtype, chosen)
    folder = out or Path(f"dovetail-{operator}-m{m}-k{k}-n{n}-{wish.dtype}-r{ranks}")
    limits = {"reading": reading, "contention": contention, "floor": floor, "align": align, "all_reduce": all_reduce}
    with output.progress("tuning") as say:
        result = follow(
            wish,
            ranks,
            out=folder,
            executor=MpiExecutor(launch),
            machine=chosen,
            schedule=schedule,
            rounds=rounds,
            budget_s=budget,
            fresh=fresh,
            seed=seed,
            command=shlex.join(["dovetail", *sys.argv[1:]]),
            say=say,
            **limits,
        )
    files.drop_if_empty(folder / "runs")
    output.emit(result.to_json()) if json else tell(result)
    return verdict(result)


def tell(result: TuneResult) -> None:
    """The table, where the rest of the gain was lost, the check, and last the page's path."""
    from dovetail.cli.telling import summary
    from dovetail.report import percent, seconds, summary_table

    m = result.measured
    print(summary_table(summary(result), terminal=output.is_terminal(), width=output.width()))
    kept = f"; {m.result.disturbed} disturbed rounds repeated" if m.result.disturbed else ""
    print(f"\nMedians of {m.result.rounds} rounds{kept}; {percent(m.ideal_gain)} of the ideal gain.")
    lost = sorted(((s, name) for name, s in result.losses.items() if abs(s) > 1e-3 * m.planned.median_s), reverse=True)
    if lost:
        print("The rest was lost to " + ", ".join(f"{name} {seconds(s)}" for s, name in lost) + ".")
    if m.planned.max_rel_error is not None and m.planned.tolerance is not None:
        print(f"Largest error {m.planned.max_rel_error:.2g} of the reference, {m.planned.tolerance:.2g} allowed.")
    if result.report is not None:
        print(f"\n{result.report}")


def verdict(result: TuneResult) -> int:
    """0; 1 where a product is wrong; EnvironmentFault where the page could not be written."""
    for outcome in (result.measured.serial, result.measured.planned):
        error, tolerance = outcome.max_rel_error, outcome.tolerance
        if error is not None and tolerance is not None and not error <= tolerance:
            output.warn(f"the product of '{outcome.name}' is wrong: error {error:.2g}, {tolerance:.2g} allowed")
            return 1
    if result.report is None:
        what: Any = result.notes[0] if result.notes else "the page could not be written"
        raise EnvironmentFault(str(what).splitlines()[0], hint="the plan stands; choose another place with --out")
    return 0
