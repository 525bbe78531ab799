"""simulate: `dovetail simulate`: predict a program's timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import files, output
from dovetail.cli.options import Contention, Extrapolate, Json
from dovetail.core import CostError, OperatorError, parse_bytes, save_json

if TYPE_CHECKING:
    from dovetail.ir import Program, Workload
    from dovetail.machine import Machine
    from dovetail.timeline import Timeline

SAME = 0.01  # relative difference below which times count as equal


def simulate(
    file: Annotated[str, typer.Argument(help="A plan, or a program (JSON or text); - for stdin.")],
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
    contention: Contention = None,
    extrapolate: Extrapolate = False,
    json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the timeline to this file, too.")] = None,
) -> None:
    """Predict by simulation when each op starts and ends on a machine; default: the machine that the plan was made for.

    That machine is found by name among presets and probed machines; sizes outside its measured range are extrapolated,
    as in the plan.
    """
    from dovetail.cost import price
    from dovetail.sim import simulate as run

    kind, program, content = files.program_of(file)
    workload = _workload(kind, program, content, slot or [])
    own = machine is None and kind in files.PLANNED
    chosen = _machine(machine, kind, content, file)
    try:
        prices = price(program, chosen, workload, contention, extrapolate=extrapolate or own)
    except CostError as error:
        raise _with_hint(error, content) if own else error from error
    timeline = run(program, prices, chosen.name)
    if own and contention is None:
        _note_changes(content, timeline)
    if out is not None:
        save_json(out, timeline.to_json())
    output.emit(timeline.to_json()) if json else print(render(timeline))


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
    head = f"{name}: {seconds(makespan)} {timeline.label}, {timeline.num_ranks} ranks, {timeline.num_spans} spans"
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
