"""simulate: `dovetail simulate`: predict a program's timeline."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import algorithms, failures, files, output, replays, sources
from dovetail.cli.options import AlgorithmNodes, AlgorithmRanks, Contention, Extrapolate, Json
from dovetail.core import CostError, OperatorError, parse_bytes, save_json

if TYPE_CHECKING:
    from dovetail.ir import Program, Workload
    from dovetail.machine import Machine
    from dovetail.timeline import Timeline

SAME = 0.01  # relative difference below which times count as equal


def simulate(
    file: Annotated[
        str,
        typer.Argument(
            help="A plan, or a program (JSON or text); - for stdin; the name of a shipped algorithm, or FILE.py; a "
            "GOAL schedule (.goal), or one of the Chakra traces of all ranks (NAME.0.et)."
        ),
    ],
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine", help="A preset, a probed machine, or a machine's JSON file. Default: the plan's machine."
        ),
    ] = None,
    slot: Annotated[
        list[str] | None,
        typer.Option("--slot", help="For programs: bytes of a slot, 64K for all buffers or A=64K for buffer A."),
    ] = None,
    num_bytes: Annotated[
        str | None,
        typer.Option("--bytes", help="For algorithms: bytes of the larger of a rank's input and output, as in 256M."),
    ] = None,
    ranks: AlgorithmRanks = None,
    nodes: AlgorithmNodes = None,
    fail: Annotated[
        str | None,
        typer.Option("--fail", help="What fails, and when: rank:5@2ms, or link:3-4@2ms with the numbers of nodes."),
    ] = None,
    contention: Contention = None,
    extrapolate: Extrapolate = False,
    json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the timeline to this file, too.")] = None,
) -> int:
    """Predict by simulation when each op starts and ends on a machine; default: the machine that the plan was made for.

    That machine is found by name among presets and probed machines; sizes outside its measured range are extrapolated,
    as in the plan. An algorithm takes all ranks of the machine, if --ranks does not say otherwise; with more than 64 on
    equal servers, those of one server are simulated, and stand for all. With --fail, exit code 1 says that ops hang.
    """
    from dovetail.sim import simulate as run

    if replay := replays.read(file):
        sources.refuse_counts(file, ranks, nodes, num_bytes)
        if slot:
            raise OperatorError("--slot is for programs", found=f"{file} has its own sizes")
        case = replays.case(file, replay, machine, contention, extrapolate)
    elif sources.is_source(file):
        size = algorithms.Size(machine, slot, num_bytes, ranks, nodes)
        if fail is None and contention is None and (folded := algorithms.folded(file, size)):
            return _deliver(folded, out, json)
        case = algorithms.case(file, size, contention, extrapolate)
    else:
        sources.refuse_counts(file, ranks, nodes, num_bytes)
        case = _case(file, machine, slot or [], contention, extrapolate)
    if fail is not None:
        return failures.show(case, fail, _around(file, num_bytes), out, json)
    timeline = run(case.program, case.prices, case.machine.name)
    if case.plan is not None and contention is None:
        _note_changes(case.plan, timeline)
    return _deliver(timeline, out, json)


def _case(
    file: str, machine: str | None, slots: list[str], contention: float | None, extrapolate: bool
) -> algorithms.Case:
    """Return the program in a file, with its costs on a machine; default: the one that the plan was made for."""
    from dovetail.cost import price

    kind, program, content = files.program_of(file)
    workload = _workload(kind, program, content, slots)
    own = machine is None and kind in files.PLANNED
    chosen = _machine(machine, kind, content, file)
    try:
        prices = price(program, chosen, workload, contention, extrapolate=extrapolate or own)
    except CostError as error:
        raise _with_hint(error, content) if own else error from error
    return algorithms.Case(program, prices.as_run(program), chosen, content if own else None)


def _around(file: str, num_bytes: str | None) -> str:
    """Return the command, all but its machine, that finds what to do without what has failed."""
    from dovetail.collective.algorithms import algorithms_for
    from dovetail.ir.registry import OPERATORS

    planned = next((kind for kind in OPERATORS if file in algorithms_for(kind)), None)
    if planned is not None:
        return f"plan {planned} --min {num_bytes} --max {num_bytes}"
    return f"simulate {shlex.quote(file)}" + (f" --bytes {num_bytes}" if num_bytes else "")


def _deliver(timeline: Timeline, out: Path | None, json: bool) -> int:
    if out is not None:
        save_json(out, timeline.to_json())
    output.emit(timeline.to_json()) if json else print(render(timeline))
    return 0


def _machine(name: str | None, kind: str, content: Any, place: str) -> Machine:
    """Return the named machine; without a name, the one that the plan was made for."""
    from dovetail.cli.machines import find
    from dovetail.cli.probed import planned_for

    if name is not None:
        return find(name)
    if kind not in files.PLANNED:
        raise OperatorError(f"{place} names no machine", hint="--machine (`dovetail machines` lists them)")
    return planned_for(content)


def _with_hint(error: CostError, document: dict[str, Any]) -> CostError:
    """Return the error with the command of the missing probe as its hint."""
    from dovetail.cli.plan import probe_command
    from dovetail.planner.plan import asked_of

    operator, _, ranks = asked_of(document)
    return CostError(error.what, found=error.found, hint=f"`{probe_command(operator, ranks)}`")


def _note_changes(document: dict[str, Any], timeline: Timeline) -> None:
    """Print a note if the plan's own prediction differs, for example because its machine was probed again."""
    from dovetail.report import seconds

    before_s = document.get("predicted_s")
    if isinstance(before_s, float) and abs(timeline.makespan_s - before_s) > SAME * before_s:
        output.note(f"The plan predicted {seconds(before_s)}: it was made with other costs or options.")


def render(timeline: Timeline) -> str:
    """Return the makespan and a table of the busy time of each lane, as text."""
    from dovetail.report import percent, render_table, seconds, seconds_column

    makespan = timeline.makespan_s
    busy = [
        (r, lane, timeline.busy_s(r, i)) for r in range(timeline.num_ranks) for i, lane in enumerate(timeline.lanes)
    ]
    busy = [row for row in busy if row[2] > 0]
    cells = seconds_column([s for _, _, s in busy])
    rows = [[str(r), lane, c, percent(s / makespan)] for (r, lane, s), c in zip(busy, cells, strict=True)]
    name = timeline.meta.get("program") or timeline.meta.get("variant") or "timeline"
    all_ranks = timeline.meta.get("stands_for_ranks")
    ranks = f"{timeline.num_ranks} ranks" + (f" that stand for {all_ranks}" if all_ranks else "")
    head = f"{name}: {seconds(makespan)} {timeline.label}, {ranks}, {timeline.num_spans} spans"
    aligns: list[Any] = ["right", "left", "right", "right"]
    table = render_table(["rank", "lane", "busy", "share"], rows, aligns, terminal=output.is_terminal())
    return f"{head}\n\n{table}" if rows else head


def _workload(kind: str, program: Program, content: Any, slots: list[str]) -> Workload:
    from dovetail.cli import provenance

    made = provenance.found(kind, content)
    return slot_workload(program, slots) if made is None else made.workload(program)


def slot_workload(program: Program, slots: list[str]) -> Workload:
    """Return the workload with the given bytes per slot of each buffer.

    Raises OperatorError if a buffer has no size, or if the program has kernels, whose sizes are unknown.
    """
    from dovetail.ir import Slot, Workload

    if program.kernels:
        names = ", ".join(kernel.name for kernel in program.kernels)
        hint = "give a plan, or a program that `dovetail compile PLAN` wrote"
        raise OperatorError("the sizes of kernels are not in this program's file", found=f"kernels {names}", hint=hint)
    sizes = {name: size for name, _, size in (text.rpartition("=") for text in slots)}
    buffers = [buffer.name for buffer in program.buffers]
    unknown = set(sizes) - {"", *buffers}
    if unknown:
        raise OperatorError(f"no buffer '{min(unknown)}'", found=f"buffers {', '.join(buffers)}")
    missing = [name for name in buffers if name not in sizes and "" not in sizes]
    if missing:
        raise OperatorError(
            f"buffer '{missing[0]}' has no slot size", hint="--slot 64K, or --slot NAME=64K for each buffer"
        )
    num_bytes = {name: parse_bytes(sizes.get(name, sizes.get("", "0"))) for name in buffers}
    return Workload({name: (Slot((num_bytes[name],), "uint8"),) * program.num_ranks for name in buffers})
