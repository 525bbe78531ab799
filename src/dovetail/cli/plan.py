"""`dovetail plan`: choose a schedule by what each is predicted to cost, prove it, and say why."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli import options as opt
from dovetail.cli import output
from dovetail.core import CostError, EnvironmentFault, save_json

if TYPE_CHECKING:
    from dovetail.machine import Machine
    from dovetail.matmul import MatmulAllReduce
    from dovetail.plan import Plan
    from dovetail.report import Summary


def plan(
    operator: opt.Operator,
    m: opt.M,
    k: opt.K,
    n: opt.N,
    ranks: opt.Ranks = None,
    dtype: opt.Dtype = None,
    machine: opt.MachineName = None,
    schedule: opt.Schedule = "auto",
    reading: opt.Reading = "max",
    contention: opt.Contention = None,
    floor: opt.Floor = None,
    align: opt.Align = None,
    all_reduce: opt.AllReduce = "auto",
    extrapolate: opt.Extrapolate = False,
    launch: opt.Launch = None,
    json: opt.Json = False,
    out: opt.Out = None,
) -> None:
    """Predict every schedule on a machine, prove the best, and say what it beats and why. Nothing is run."""
    from dovetail.machine import load
    from dovetail.plan import plan as search

    if machine is None:
        wish = opt.wish_of(m, k, n, dtype, None)
        chosen = probed(operator, wish, ranks, launch)
    else:
        chosen = load(machine)
        wish = opt.wish_of(m, k, n, dtype, chosen)
    asked = {"schedule": schedule, "reading": reading, "contention": contention, "floor": floor, "align": align}
    try:
        made = search(wish, chosen, ranks=ranks, all_reduce=all_reduce, extrapolate=extrapolate, **asked)  # type: ignore[arg-type]
    except CostError as error:
        raise _with_hint(error, machine, operator, wish, ranks) from error
    if out is not None:
        write(made, out)
    output.emit(made.to_json()) if json else print_plan(made, out)


def probed(operator: str, wish: MatmulAllReduce, ranks: int | None, launch: str | None) -> Machine:
    """The machine that a probe measured for this launch command, with the costs of the wish where they were probed."""
    from dovetail.cli.probed import known

    if ranks is None:
        raise EnvironmentFault("no machine and no number of ranks", hint="give --ranks, or --machine")
    found = known(wish, ranks, launch)
    if found is None:
        raise EnvironmentFault(
            f"this machine has not been probed with {ranks} ranks",
            hint=f"`{probe_command(operator, wish, ranks)}`, or give --machine (`dovetail machines` lists them)",
        )
    return found


def probe_command(operator: str, wish: MatmulAllReduce, ranks: int) -> str:
    """The command that measures what a plan of this wish needs."""
    sizes = f"--m {wish.m} --k {wish.k} --n {wish.n} --dtype {wish.dtype}"
    return f"dovetail probe {operator} {sizes} --ranks {ranks}"


def write(made: Plan, out: Path) -> Path:
    """Write the plan to `out`, then its timeline and its page; returns the page's path."""
    save_json(out / "plan.json", made.to_json())
    save_json(out / "predicted.json", made.predicted.to_json())
    return write_plan_page(made, out / "report.html", shlex.join(["dovetail", *sys.argv[1:]]))


def write_plan_page(made: Plan, path: Path, command: str) -> Path:
    """Write the page of a plan: its table, its reasons and its predicted timeline."""
    from dovetail.report import write_page

    wish = made.wish
    title = f"matmul_all_reduce {wish.m} x {wish.k} x {wish.n} {wish.dtype}, {made.ranks} ranks"
    summary = summary_of(made, command)
    return write_page(path, title=title, timelines=[made.predicted], program=made.program, summary=summary)


def summary_of(made: Plan, command: str = "") -> Summary:
    """Table, losses and reasons of a plan."""
    from dovetail.report import Losses, Provenance, Row, Summary

    room = made.serial_s - made.ideal_s
    rows = [Row(made.schedule, made.predicted_s, None, max(made.ideal_gain, 0.0), "taken", True)]
    for rival in made.rivals:
        gain = (made.serial_s - rival.predicted_s) / room if room > 0 else None
        rows.append(Row(rival.label, rival.predicted_s, rival.measured_s, gain, rival.why_not))
    rows.append(Row("ideal", made.ideal_s, None, 1.0, "the longer side alone, all else hidden"))
    losses = (Losses("predicted", made.ideal_s, dict(made.losses)),)
    return Summary(tuple(rows), losses, tuple(made.explain().split("\n\n")), Provenance(command, made.machine, ""))


def print_plan(made: Plan, out: Path | None) -> None:
    """The plan's own words; where its files are, last."""
    print(made.explain())
    if out is not None:
        print(f"\n{out / 'report.html'}")


def _with_hint(
    error: CostError, machine: str | None, operator: str, wish: MatmulAllReduce, ranks: int | None
) -> CostError:
    """The same error with what to type: the probe that is missing, or --extrapolate beyond what was measured."""
    if "extrapolat" in (error.hint or ""):
        hint = f"{error.hint} (--extrapolate)"
    elif machine is None and ranks is not None:
        hint = f"`{probe_command(operator, wish, ranks)}`"
    else:
        return error
    return CostError(error.what, found=error.found, hint=hint)
