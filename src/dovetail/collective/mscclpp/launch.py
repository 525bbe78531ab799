"""launch: turn a plan into rows with the starts and ends of its kernels."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.memory import Cut, Memory
from dovetail.collective.mscclpp.order import connect
from dovetail.collective.mscclpp.parts import MOST_SLOTS, UNJUDGED, Document
from dovetail.collective.mscclpp.pieces import Pieces, Span
from dovetail.collective.mscclpp.steps import Row
from dovetail.core import ProgramError
from dovetail.ir import Buffer, Kind, Region

KERNEL = "kernel"  # the lane of a gpu's starts and ends


def launch(document: Document, how: Cut, pieces: Pieces | None = None, *, is_lent: bool = False) -> Lowering:
    """Return the rows of one run of a plan, with threads in lockstep or, given `pieces`, unsynchronised.

    Gpus start and end their kernels at different times: accesses to a gpu's input and output by others must come after
    its kernel starts, and before it ends. The start and the end of a kernel are copies of both onto themselves.
    `is_lent`: the caller touches neither until port channels have read their sources.
    """
    memory = Memory(document, how)
    lowering = Lowering(document, memory, pieces, is_lent)
    hosts = [buffer for buffer in memory.buffers if buffer.role != "scratch"]
    for rank, gpu in enumerate(document.gpus):
        where = f"{document.place}, gpu {rank}"
        start = _touch(lowering.rows, hosts, rank, f"{where}: its kernel starts", [])
        blocks = [lowering.block(rank, number, start[-1:]) for number in range(len(gpu.blocks))]
        ends = [row for block in blocks for row in (*block.ends(), *block.lent)]
        _touch(lowering.rows, hosts, rank, f"{where}: its kernel ends", ends)
    if (total := sum(sum(buffer.slots) for buffer in memory.buffers) + sum(lowering.temp)) > MOST_SLOTS:
        what = f"{UNJUDGED}: it has more than {MOST_SLOTS} chunks, or parts of them"
        raise ProgramError(what, where=document.place, found=str(total))
    lowering.faults = connect(lowering)
    return lowering


def sweeps_of(document: Document, how: Cut) -> list[tuple[Span, ...]]:
    """Return the sweeps of ops on packets: regions of which they access element i together."""
    lowering = Lowering(document, Memory(document, how))
    for rank, gpu in enumerate(document.gpus):
        for number in range(len(gpu.blocks)):
            lowering.block(rank, number, ())
    return lowering.sweeps


def _touch(rows: list[Row], buffers: Sequence[Buffer], rank: int, line: str, after: list[Row]) -> list[Row]:
    """Append rows that read and write some buffers completely, and return them."""
    wholes = [Region(buffer.name, 0, buffer.slots[rank]) for buffer in buffers if buffer.slots[rank]]
    touches = [Row(Kind.copy, rank, KERNEL, line, [whole], [whole], after=list(after)) for whole in wholes]
    touches = touches or [Row(Kind.nop, rank, KERNEL, line, after=list(after))]
    rows += touches
    return touches
