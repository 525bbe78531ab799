"""A plan as a Program: alone, or between the starts and ends of its kernels, once or several times in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.memory import Cut, Memory
from dovetail.collective.mscclpp.order import connect
from dovetail.collective.mscclpp.parts import MOST_SLOTS, Document
from dovetail.collective.mscclpp.rows import Row
from dovetail.core import ProgramError
from dovetail.ir import Buffer, Builder, Kind, Program, Region, check_columns


def launch(document: Document, how: Cut, runs: int, loose: bool = False) -> Lowering:
    """The rows of a plan: alone (`runs` 0), or launched so many times; threads in step, or (`loose`) at their own pace.

    Gpus start and end their kernels at different times: what others do to a gpu's input and output must come after its
    kernel has started, and before it ends. Start and end are copies of them in place. Runs follow one another on each
    gpu; with double scratch they take one half of it in turn.
    """
    memory = Memory(document, how, halves=2 if document.double_scratch and runs > 1 else 1)
    lowering = Lowering(document, memory, loose)
    hosts = [buffer for buffer in memory.buffers if buffer.role != "scratch"] if runs else []
    for run in range(max(runs, 1)):
        lowering.run = run
        for rank, gpu in enumerate(document.gpus):
            where = f"{document.place}: gpu {rank}" + f", run {run}" * (runs > 1)
            start = _touch(lowering.rows, hosts, rank, f"{where}: its kernel starts", [])
            blocks = [lowering.block(rank, number, start[-1:]) for number in range(len(gpu.blocks))]
            ends = [row for block in blocks for row in block.ends()]
            _touch(lowering.rows, hosts, rank, f"{where}: its kernel ends", ends)
    connect(lowering.meetings, document)
    return lowering


def _touch(rows: list[Row], buffers: Sequence[Buffer], rank: int, line: str, after: list[Row]) -> list[Row]:
    """Rows that read and write all of some buffers."""
    wholes = [Region(buffer.name, 0, buffer.slots[rank]) for buffer in buffers if buffer.slots[rank]]
    touches = [Row(Kind.copy, rank, "kernel", line, [whole], [whole], after=list(after)) for whole in wholes]
    rows += touches
    return touches


def program_of(document: Document, lowering: Lowering) -> Program:
    """The Program of the rows; of several runs, and of loose threads, no result is asked."""
    total = sum(sum(buffer.slots) for buffer in lowering.memory.buffers) + sum(lowering.temp)
    if total > MOST_SLOTS:
        raise ProgramError(f"more than {MOST_SLOTS} chunks, or parts of them", where=document.place, found=str(total))
    builder = Builder(document.name, len(document.gpus))
    rows = [row for each in lowering.rows for row in (*each.before, each, *each.behind)]
    used = {region.buffer for row in rows for region in (*row.reads, *row.writes)}
    for buffer in (*lowering.memory.buffers, Buffer("temp", "scratch", tuple(lowering.temp))):
        if buffer.role != "scratch" or any(buffer.slots) or buffer.name in used:
            builder.buffer(*buffer)
    number = {id(row): at for at, row in enumerate(rows)}
    for row in rows:
        builder.add(
            row.kind,
            row.rank,
            builder.lane(row.lane, "net"),
            reads=row.reads,
            writes=row.writes,
            chan_in=builder.channel(*row.chan_in) if row.chan_in else -1,
            chan_out=builder.channel(*row.chan_out) if row.chan_out else -1,
            after=[number[id(other)] for other in row.after],
            line=row.line,
        )
    asked = lowering.memory.posts if lowering.run == 0 and not lowering.loose else ()
    program = replace(builder.build(), posts=asked)
    check_columns(program)
    return program
