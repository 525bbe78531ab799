"""hints: suggest ops of MSCCL++ that remove a race."""

from __future__ import annotations

import re

from dovetail.collective.mscclpp.launch import KERNEL
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.parts import Step
from dovetail.collective.mscclpp.steps import PORT_IDS, Row
from dovetail.ir import Kind

_PLACE = re.compile(r"gpu (\d+), threadblock (\d+), op (\d+)")


def race_hint(lowering: Lowering, one: Row, other: Row, *, is_again: bool) -> str:
    """Return how to order two rows; `one` is the earlier one."""
    step = _step(lowering, one)
    if step and step.name != "pwsf" and _is_port(one):
        return f"a port channel reads its source later: {needs_flush(lowering, one)}"
    if _is_port(other) and _is_earlier_op(other, one):
        return f"a port channel reads its source later: {needs_flush(lowering, other)}"
    if is_again and "scratch" in _buffers(one, other):
        return "set use_double_scratch_buffer, or end with signals and waits after which no op touches that scratch"
    if KERNEL in (one.lane, other.lane):
        return _kernel_hint(one, other)
    if one.rank != other.rank:
        return f"let gpu {one.rank} signal gpu {other.rank} in between: nop, signal there; wait, nop here"
    if _block(one) == _block(other):
        return "add a nop between the two: only a nop synchronises threads"
    return "add a barrier of the two threadblocks, or a semaphore that one releases and the other acquires"


def _kernel_hint(one: Row, other: Row) -> str:
    op, kernel = (other, one) if one.lane == KERNEL else (one, other)
    if op.rank == kernel.rank:
        return "let its threadblock wait for it before it ends: by a nop, and on port channels by pwsf"
    if kernel is one:
        return f"let gpu {kernel.rank} signal gpu {op.rank} when it has started, and wait for that before: wait, nop"
    note = "; a rlxsignal does not order writes" if op.kind == Kind.put else ""
    return (
        f"let gpu {op.rank} signal gpu {kernel.rank} after it (nop, signal), and gpu {kernel.rank} wait for that{note}"
    )


def needs_flush(lowering: Lowering, row: Row) -> str:
    """Return how to wait until a port channel has read the source of the put `row`."""
    found, step = _PLACE.search(row.line), _step(lowering, row)
    block = lowering.document.gpus[int(found[1])].blocks[int(found[2])] if found else ()
    flushed = "; a separate flush op does nothing in executor 0.9" if any(s.name == "flush" for s in block) else ""
    if step and step.name == "pws":
        return f"replace pws by pwsf, with a nop after it{flushed}"
    return f"add a pwsf on the same channel, and a nop after it{flushed}"


def _is_earlier_op(one: Row, other: Row) -> bool:
    """Whether the op of `one` precedes that of `other` in the same threadblock."""
    first, second = (_PLACE.search(row.line) for row in (one, other))
    return bool(first and second and first.groups()[:2] == second.groups()[:2] and int(first[3]) < int(second[3]))


def _is_port(row: Row) -> bool:
    """Whether a row is a put by a port channel, or the read of its source."""
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
