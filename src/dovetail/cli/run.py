"""run: `dovetail run`: run a plan on real ranks, interleaved with the serial schedule; or run a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import files, output
from dovetail.cli.options import Budget, Json, Launch, On, Out, Rounds, Seed, known_dtype
from dovetail.cli.trace import note_trace_in, refuse_another
from dovetail.core import DovetailError, EnvironmentFault, save_json

if TYPE_CHECKING:
    from dovetail.planner import Plan
    from dovetail.run.job import JobResult, Outcome

SCHEMA = "dovetail.run/1"


def run(
    file: Annotated[
        str,
        typer.Argument(help="A plan or its folder; a program (JSON or text), MSCCL XML, an MSCCL++ plan; - for stdin."),
    ],
    size: Annotated[
        str | None,
        typer.Option("--size", help="For programs: bytes of the larger of a rank's input and output. Default: 1M."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="For programs: element type. Default: float32.", callback=known_dtype),
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option(
            "--operator",
            help="For programs with kernels whose file lacks the sizes: the plan that the program was made from, "
            'or the operator, as in "matmul_all_reduce --m 64 --k 32 --n 48".',
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            help="For programs with products, instead of --operator: the shape of a slot of each buffer, B=32x48.",
        ),
    ] = None,
    on: On = "mpi",
    launch: Launch = None,
    rounds: Rounds = 5,
    budget: Budget = 120.0,
    seed: Seed = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Folder for a trace of every op of every run.", file_okay=False)
    ] = None,
    json: Json = False,
    out: Out = None,
) -> int:
    """Run a plan interleaved with the serial schedule on real ranks, or a program. Exit code 1 if a result is wrong.

    A program is proved first; its result is compared with float64 by its post-conditions. A program that only moves and
    reduces runs with equal slots; if it is a known collective, bandwidths are reported as in nccl-tests. A program
    that computes products needs their sizes, which files written by `dovetail compile PLAN` contain.

    Timelines are written beside the plan, or into `run` in the folder of a tune.

    Without MPI: --on threads (threads of this process), or --on numpy (one rank after the other).
    """
    from dovetail.cli.run_program import Asked, run_program
    from dovetail.run.executor import executor_on
    from dovetail.tuner.tune import beside_serial, fresh_seed

    content, executor = files.read(file), executor_on(on, launch=launch, trace=trace)
    if trace is not None:
        refuse_another(trace)
    if content[0] in files.PROGRAMS:
        how: dict[str, Any] = {"executor": executor, "rounds": rounds, "budget": budget, "seed": fresh_seed(seed)}
        return run_program(file, content, Asked(size, dtype, operator, shape or ()), **how, json=json, out=out)
    for name, value in (("--size", size), ("--dtype", dtype), ("--operator", operator), ("--shape", shape)):
        if value is not None:
            output.warn(f"{name} is ignored: it is for programs, and {file} is a plan")
    plan = files.plan_from(*content, file)
    folder = out or _folder(file)
    save_json(folder / "plan.json", plan.to_json()) if out else None
    with output.progress(f"running {rounds} rounds"):
        job = beside_serial(plan, rounds=rounds, budget_s=budget, seed=fresh_seed(seed))
        result = executor.in_folder(folder / "runs").execute(job)
    files.drop_if_empty(folder / "runs")
    note_trace_in(trace)
    fault = _save(plan, result, folder)
    place = None if fault or not result["planned"].timelines else folder / "measured.json"
    output.emit(summary(plan, result, place)) if json else print(render(plan, result, place))
    _note_library(plan, result)
    wrong = _wrong(result)
    for line in wrong:
        output.warn(line)
    if fault:
        raise fault
    return 1 if wrong else 0


def summary(plan: Plan, result: JobResult, timeline: Path | None) -> dict[str, Any]:
    """Return the JSON document of a run of a plan."""
    serial, planned = _both(plan, result)
    times = {"predicted_s": plan.predicted_s, "measured_s": planned.median_s, "serial_s": serial.median_s}
    spread = {"measured_spread": planned.spread, "serial_spread": serial.spread}
    checks = {"max_rel_error": planned.max_rel_error, "tolerance": planned.tolerance}
    runs = {"rounds": result.rounds, "disturbed": result.disturbed, **result.load.to_json(), "facts": result.facts}
    head = {"schema": SCHEMA, "schedule": plan.family, "tiles": list(plan.tiles), "ranks": plan.ranks}
    return {**head, **times, **spread, **checks, **runs, "timeline": timeline and str(timeline)}


def render(plan: Plan, result: JobResult, timeline: Path | None) -> str:
    """Return a table of serial and the plan (one row if the plan is serial), rounds, check and the timeline's path."""
    from dovetail.report import percent, render_table, seconds_column

    serial, planned = _both(plan, result)
    rows = [("serial", plan.serial_s, serial)]
    named = plan.family if not plan.schedule.is_serial else f"serial, {plan.schedule.get('by', '')}".removesuffix(", ")
    rows += [] if plan.keeps_serial else [(named, plan.predicted_s, planned)]
    columns = [seconds_column([row[1] for row in rows]), seconds_column([row[2].median_s for row in rows])]
    cells = [[r[0], p, m, percent(r[2].spread)] for r, p, m in zip(rows, *columns, strict=True)]
    aligns: list[Any] = ["left", "right", "right", "right"]
    table = render_table(["schedule", "predicted", "measured", "spread"], cells, aligns, terminal=output.is_terminal())
    disturbed = f"; {result.disturbed} disturbed" if result.disturbed else ""
    library = " ".join(str(result.facts.get("mpi", "MPI")).split())
    line = f"{_gain(plan, serial, planned)}{result.rounds} rounds{disturbed}; on {library}."
    lines = [table, "", line, *(f"{text}." for text in result.load.warnings)]
    if planned.max_rel_error is not None and planned.tolerance is not None:
        lines.append(f"Largest error {planned.max_rel_error:.2g} of the reference, {planned.tolerance:.2g} allowed.")
    return "\n".join([*lines, *([str(timeline)] if timeline else [])])


def _both(plan: Plan, result: JobResult) -> tuple[Outcome, Outcome]:
    """Return the outcomes of serial and of the plan; the same outcome if the plan is serial."""
    planned = result["planned"]
    return (planned if plan.keeps_serial else result["serial"]), planned


def _note_library(plan: Plan, result: JobResult) -> None:
    """Print a note if the plan was made for messages by another library than those of this run."""
    from dovetail.cli.probed import planned_for
    from dovetail.machine import presets

    document = plan.to_json()
    if document["machine"] in presets():
        return
    try:
        names = [planned_for(document).facts.get("mpi"), result.facts.get("mpi")]
    except DovetailError:  # its machine is not known here
        return
    made, ran = (" ".join(str(name or "").split()) for name in names)
    if made and ran and made != ran:
        output.note(f"The plan was made for messages by {made}; here they went by {ran} (--on).")


def _gain(plan: Plan, serial: Outcome, planned: Outcome) -> str:
    """Return how the plan compares with serial, as the beginning of a sentence about rounds."""
    if plan.keeps_serial:
        named = "" if plan.schedule.is_serial else f", though its family is {plan.family}"
        return f"The plan is serial{named}: there is nothing to compare it with; median of "
    gain = f"{serial.median_s / planned.median_s:.2f} times as fast as serial; " if planned.median_s else ""
    return f"{gain}medians of "


def _save(plan: Plan, result: JobResult, folder: Path) -> EnvironmentFault | None:
    """Write the timelines of both schedules. Return a fault of the disk, to be raised after results are printed."""
    try:
        for name, outcome in zip(("serial", "measured"), _both(plan, result), strict=True):
            if outcome.timelines:
                save_json(folder / f"{name}.json", outcome.timelines[0].to_json())
    except EnvironmentFault as fault:
        return fault
    return None


def _wrong(result: JobResult) -> list[str]:
    """Return a sentence for each outcome whose result is wrong."""
    from dovetail.report.tuning import wrong_text

    return [wrong_text(each.name, each.max_rel_error, each.tolerance) for each in result.outcomes if each.is_wrong]


def _folder(place: str) -> Path:
    """Return the folder of a plan; beside the results of a tune, whose timelines stay, a folder of its own in it."""
    path = Path(place)
    folder = Path(".") if place == "-" else path if path.is_dir() else path.parent
    return folder / "run" if (folder / "tune.json").exists() else folder
