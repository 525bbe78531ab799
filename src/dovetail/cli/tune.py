"""`dovetail tune`: the whole river for one wish, an operator or a collective, on this machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import files, output
from dovetail.cli import options as opt
from dovetail.core import EnvironmentFault, WishError

if TYPE_CHECKING:
    from dovetail.cli.collectives import Tuned
    from dovetail.cli.tuning import TuneResult


def tune(
    wish: opt.WishName,
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks to run on.", min=1)],
    m: opt.MaybeM = None,
    k: opt.MaybeK = None,
    n: opt.MaybeN = None,
    nodes: opt.Nodes = None,
    least: opt.Least = None,
    most: opt.Most = None,
    factor: opt.Factor = None,
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
    """Probe, plan, prove, measure serial and the best few in turn, keep the fastest, and explain it.

    An operator without sizes gets some whose compute and communication take about as long on this machine.

    Of a collective: at each size, measure the best predicted algorithms and the library's call in turn, and keep a
    table of what is fastest, which dovetail.collective then goes by.
    """
    runs = {"launch": launch, "rounds": rounds, "budget": budget, "seed": seed, "fresh": fresh, "json": json}
    limits = {"reading": reading, "contention": contention, "floor": floor, "align": align, "all_reduce": all_reduce}
    sizes, span = {"m": m, "k": k, "n": n}, {"nodes": nodes, "min": least, "max": most, "factor": factor}
    if wish in opt.COLLECTIVES:
        usual = {"schedule": "auto", "reading": "max", "all_reduce": "auto"}
        misplaced(wish, {**sizes, **limits, "schedule": schedule}, usual)
        return _collective(wish, ranks, span, dtype, machine, out, runs)
    misplaced(wish, span, {})
    return _operator(wish, ranks, sizes, dtype, machine, schedule, limits, out, runs)


def misplaced(wish: str, options: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Refuse options that have no meaning for the wish.

    >>> misplaced("all_reduce", {"m": 64, "k": None}, {})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.WishError: all_reduce has no --m
      try         dovetail tune all_reduce --ranks 2 --min 1K --max 64M
    """
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value not in (None, usual.get(name))]
    if given:
        sizes = "--min 1K --max 64M" if wish in opt.COLLECTIVES else "--m 4096 --k 3072 --n 8192"
        raise WishError(f"{wish} has no {', '.join(given)}", hint=f"dovetail tune {wish} --ranks 2 {sizes}")


def _operator(
    operator: str,
    ranks: int,
    sizes: dict[str, int | None],
    dtype: str | None,
    machine: str | None,
    schedule: str,
    limits: dict[str, Any],
    out: Path | None,
    runs: dict[str, Any],
) -> int:
    from dovetail.cli.machines import find
    from dovetail.cli.tuning import tune as follow
    from dovetail.run.mpi import MpiExecutor

    chosen, executor = find(machine) if machine else None, MpiExecutor(runs["launch"])
    missing = [f"--{name}" for name, value in sizes.items() if value is None]
    if len(missing) == len(sizes) and not machine:
        wish = _balanced(executor, ranks, dtype)
    elif missing:
        hint = f"dovetail tune {operator} --ranks {ranks} --m 4096 --k 3072 --n 8192"
        raise WishError(f"{operator} needs {', '.join(missing)}", hint=hint)
    else:
        wish = opt.wish_of(sizes["m"] or 0, sizes["k"] or 0, sizes["n"] or 0, dtype, chosen)
    folder = out or Path(f"dovetail-{operator}-m{wish.m}-k{wish.k}-n{wish.n}-{wish.dtype}-r{ranks}")
    with output.progress("tuning") as say:
        result = follow(
            wish,
            ranks,
            out=folder,
            executor=executor,
            machine=chosen,
            schedule=schedule,
            rounds=runs["rounds"],
            budget_s=runs["budget"],
            fresh=runs["fresh"],
            seed=runs["seed"],
            command=shlex.join(["dovetail", *sys.argv[1:]]),
            say=say,
            **limits,
        )
    files.drop_if_empty(folder / "runs")
    output.emit(result.to_json()) if runs["json"] else print_result(result)
    return verdict(result)


def _balanced(executor: Any, ranks: int, dtype: str | None) -> Any:
    """Where no sizes are named: an operator that has something to gain on this machine, told what it is."""
    from dovetail.probe.balance import balanced
    from dovetail.report import num_bytes, seconds

    wish, _, compute_s, comm_s = balanced(executor, ranks, dtype or "float32")
    speeds = f"compute {2e-9 * wish.m * wish.n * wish.k / ranks / compute_s:.0f} GFLOP/s on each of {ranks} ranks"
    sides = f"{seconds(compute_s)} of compute, {seconds(comm_s)} of the library's all_reduce"
    output.note(f"No sizes named: --m {wish.m} --k {wish.k} --n {wish.n} balances this machine: {sides}")
    size = wish.m * wish.workload(ranks).slot_bytes("C", 0)
    output.note(f"({speeds}, all_reduce {num_bytes(size / comm_s)}/s).\n")
    return wish


def _collective(
    collective: str,
    ranks: int,
    span: dict[str, Any],
    dtype: str | None,
    machine: str | None,
    out: Path | None,
    runs: dict[str, Any],
) -> int:
    from dovetail.cli.collectives import Wish, sizes_between, tune_collective
    from dovetail.cli.machines import find
    from dovetail.cli.tuning import fresh_seed
    from dovetail.run.mpi import MpiExecutor

    wish = Wish(collective, ranks, span["nodes"], dtype or "float32")
    factor = 4.0 if span["factor"] is None else span["factor"]
    sizes = sizes_between(span["min"] or "1K", span["max"] or "16M", factor)
    folder = out or Path(f"dovetail-{collective}-{wish.dtype}-r{ranks}")
    with output.progress("tuning") as say:
        result = tune_collective(
            wish,
            sizes,
            out=folder,
            executor=MpiExecutor(runs["launch"]),
            machine=find(machine) if machine else None,
            rounds=runs["rounds"],
            budget_s=runs["budget"],
            fresh=runs["fresh"],
            seed=fresh_seed(runs["seed"]),
            say=say,
        )
    files.drop_if_empty(folder / "runs")
    output.emit(result.to_json()) if runs["json"] else tell_collective(result)
    return int(any(each.wrong for each in result.contest.judged))


def tell_collective(result: Tuned) -> None:
    """The table by size, the notes, and last where the table for later runs is."""
    from dovetail.report import num_bytes, seconds

    rows = [
        [
            num_bytes(each.num_bytes),
            seconds(each.point.library_s),
            seconds(each.point.measured_s),
            str(each.choice),
            seconds(each.point.predicted_s),
            f"{each.speedup:.2f}",
        ]
        for each in result.contest.judged
    ]
    headers = ["size", "library", "best", "algorithm", "predicted", "speed-up"]
    output.table(headers, rows, ["right", "right", "right", "left", "right", "right"])
    for text in result.notes:
        output.note(text)
    print("\n" + "\n".join(str(path) for path in result.files[:3]))


def print_result(result: TuneResult) -> None:
    """The table, where the rest of the gain was lost, the check, and last the page's path."""
    from dovetail.cli.telling import summary, why_kept
    from dovetail.report import percent, seconds, summary_table

    m = result.measured
    print(summary_table(summary(result), terminal=output.is_terminal(), width=output.width()))
    disturbed = f"; {m.result.disturbed} disturbed" if m.result.disturbed else ""
    gain = None if result.ideal_gain is None else f"{percent(result.ideal_gain)} of the ideal gain"
    print(f"\nMedians of {m.result.rounds} rounds{disturbed}; {gain or f'serial kept: {why_kept(result)}'}.")
    for text in m.result.load.warnings:
        print(f"{text}.")
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
