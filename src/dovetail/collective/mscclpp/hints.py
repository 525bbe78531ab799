"""What may be tried against a race, in ops that MSCCL++ has."""

from __future__ import annotations

import re

from dovetail.collective.mscclpp.launch import KERNEL
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.parts import Step
from dovetail.collective.mscclpp.steps import PORT_IDS, Row
from dovetail.ir import Kind

_PLACE = re.compile(r"gpu (\d+), threadblock (\d+), op (\d+)")


def race_hint(lowering: Lowering, one: Row, other: Row, *, is_again: bool) -> str:
    """How to order two rows, the earlier one first."""
    step = _step(lowering, one)
    if step and step.name != "pwsf" and _is_port(one):
        return f"a port channel reads its source later: {needs_flush(lowering, one)}"
    if _is_port(other) and _is_earlier_op(other, one):
        return f"a port channel reads its source later: {needs_flush(lowering, other)}"
    if is_again and "scratch" in _buffers(one, other):
        return "set use_double_scratch_buffer, or end with signals and waits after which nobody touches that scratch"
    if KERNEL in (one.lane, other.lane):
        return _kernel_hint(one, other)
    if one.rank != other.rank:
        return f"let gpu {one.rank} signal gpu {other.rank} in between: nop, signal there; wait, nop here"
    if _block(one) == _block(other):
        return "add a nop between the two: until one, each thread goes at its own pace"
    return "add a barrier of the two threadblocks between, or a semaphore that one releases and the other acquires"


def _kernel_hint(one: Row, other: Row) -> str:
    op, kernel = (other, one) if one.lane == KERNEL else (one, other)
    if op.rank == kernel.rank:
        return "let its threadblock come past it before it ends: a nop, and on port channels pwsf"
    if kernel is one:
        return f"let gpu {kernel.rank} signal gpu {op.rank} when it has started, and wait for that before: wait, nop"
    note = "; a rlxsignal promises nothing of what was written" if op.kind == Kind.put else ""
    return (
        f"let gpu {op.rank} signal gpu {kernel.rank} after it (nop, signal), and gpu {kernel.rank} wait for that{note}"
    )


def needs_flush(lowering: Lowering, row: Row) -> str:
    """What waits until a port channel has read what the put `row` gave it."""
    found, step = _PLACE.search(row.line), _step(lowering, row)
    block = lowering.document.gpus[int(found[1])].blocks[int(found[2])] if found else ()
    flushed = "; a flush op of its own does nothing in executor 0.9" if any(s.name == "flush" for s in block) else ""
    if step and step.name == "pws":
        return f"write pwsf for pws, and a nop after it{flushed}"
    return f"let a pwsf follow on the same channel, and a nop after it{flushed}"


def _is_earlier_op(one: Row, other: Row) -> bool:
    """Whether its op stands before that of the other in the same threadblock."""
    first, second = (_PLACE.search(row.line) for row in (one, other))
    return bool(first and second and first.groups()[:2] == second.groups()[:2] and int(first[3]) < int(second[3]))


def _is_port(row: Row) -> bool:
    """Whether a row is a put, or the read of one, by a port channel."""
    is_put = row.kind == Kind.put and row.chan_out is not None and row.chan_out.id >= PORT_IDS
    return is_put or (row.kind == Kind.copy and ".port" in row.lane)


def _step(lowering: Lowering, row: Row) -> Step | None:
    found = _PLACE.search(row.line)
    if not found:
        return None
    rank, block, op = map(int, found.groups())
    return lowering.document.gpus[rank].blocks[block][op]


def _block(row: Row) -> str:
    return row.lane.split(".")[0]


def _buffers(*rows: Row) -> set[str]:
    names = {region.buffer for row in rows for region in (*row.reads, *row.writes)}
    return {"scratch" if name in ("scratch", "packets") else name for name in names}
