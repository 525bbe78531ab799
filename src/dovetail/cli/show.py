"""show: `dovetail show`: print any of Dovetail's files in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import files, output
from dovetail.cli.file_kinds import understood
from dovetail.cli.options import Json
from dovetail.core import DovetailError, FileError

if TYPE_CHECKING:
    from dovetail.ir import Program
    from dovetail.store.selection import Selection


def show(
    file: Annotated[
        str, typer.Argument(help="A program, MSCCL XML, plan, timeline, machine, certificate, …; - for stdin.")
    ],
    json: Json = False,
    page: Annotated[Path | None, typer.Option("--page", help="Write a plan or timeline to this HTML page.")] = None,
) -> None:
    """Show any of Dovetail's files: a plan explained, a program as text, a timeline's busy lanes, a machine's curves.

    A program's text ends with a line of summary: what the program computes, on how many ranks, in how many steps.
    """
    kind, content = files.read(file)
    if page is not None:
        _write_page(page, kind, content, file)
    if json:
        output.emit(files.program_of(file)[1].to_json() if kind in files.PROGRAMS else content)
    else:
        print(render(kind, content, file))
    if page is not None and not json:
        print(f"\n{page}")


def render(kind: str, content: Any, place: str) -> str:
    """Return the content of a file in words."""
    from dovetail.ir import to_text

    if kind in files.PROGRAMS:
        program = files.program_from(kind, content, place)
        return f"{to_text(program)}# {summary(program)}"
    with understood(FileError, place=place):
        return files.KINDS[content["schema"]].described(content)


def selection(found: Selection) -> str:
    """Return a selection as a table of tuned collectives."""
    from dovetail.report.selections import selection_table

    return selection_table(found, terminal=output.is_terminal(), width=output.width())


def summary(program: Program) -> str:
    """Return one line on what a program computes, its lanes, steps and messages, and its first fault."""
    from dovetail.ir import SENDS, Kind, verify
    from dovetail.ir.op_lists import message_slots

    certificate = verify(program)
    found = certificate.collective_found or "no standard collective"
    fault = next((f"; NOT valid: {check.message}" for check in certificate.checks.values() if not check.ok), "")
    lanes, steps, messages, slots = (dict.fromkeys(range(program.num_ranks), 0) for _ in range(4))
    for rank, _ in program.queues():
        lanes[rank] += 1
    for op in program.ops():
        steps[op.rank] += 1
        if op.kind in SENDS or op.kind in (Kind.put, Kind.get):
            messages[op.rank] += 1
            slots[op.rank] += message_slots(op)
    whole = max((max(b.slots) for b in program.buffers if b.role != "scratch"), default=0)
    most = [max(counts.values()) for counts in (lanes, steps, messages, slots)]
    factor = f", {most[3] / whole:.4g} × the buffer" if whole else ""
    return (
        f"{program.name}: {found}, {program.num_ranks} ranks; at most {most[0]} lanes and {most[1]} steps a rank; "
        f"it moves {most[2]} messages{factor}{fault}"
    )


def _write_page(page: Path, kind: str, content: Any, place: str) -> None:
    from dovetail.report import write_page
    from dovetail.timeline import Timeline

    if kind == "plan":
        from dovetail.report.explain import write_plan_page

        write_plan_page(files.plan_from(kind, content, place), page, f"dovetail show {place} --page {page}")
    elif kind == "timeline":
        with understood(DovetailError, place=place):
            timeline = Timeline.from_json(content)
        write_page(page, title=place, timelines=[timeline])
    else:
        hint = "`dovetail machines NAME --plot FILE` plots a machine"
        if kind == "tune":
            hint = "report.html beside it is its page; a plan and a timeline have pages, too"
        raise DovetailError(f"a {kind} has no page", hint=hint)
