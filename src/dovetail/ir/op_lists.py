"""op_lists: the ops of a Program as Python lists, for the reference checks, and as text for errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dovetail.ir.program import Program
from dovetail.ir.types import Kind, Op, Region


class Access(NamedTuple):
    """A region of one rank's memory that an op touches."""

    rank: int
    region: Region


class OpLists:
    """A Program as lists: `ops`; `queues`, the rows of each (rank, lane); and each op's queue and position in it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops: list[Op] = list(program.ops())
        self.queues: list[list[int]] = [rows.tolist() for rows in program.queues().values()]
        self.queue_of, self.position = [0] * len(self.ops), [0] * len(self.ops)
        for queue, rows in enumerate(self.queues):
            for position, row in enumerate(rows):
                self.queue_of[row], self.position[row] = queue, position


def op_reads(program: Program, op: Op) -> list[Access]:
    """Return what the op reads. An op that adds to its destination reads that, too."""
    rank = rank_read(program, op)
    found = [Access(rank, region) for region in op.reads]
    if op.kind == Kind.reduce or (op.kind == Kind.compute and program.kernels[op.call].accumulate):
        found += op_writes(program, op)
    return found


def op_writes(program: Program, op: Op) -> list[Access]:
    """Return what the op writes."""
    rank = rank_written(program, op)
    return [Access(rank, region) for region in op.writes]


def rank_read(program: Program, op: Op) -> int:
    """Return the rank whose memory the op reads: its own; for a get, the peer."""
    return program.channels[op.chan_in].src if op.kind == Kind.get else op.rank


def rank_written(program: Program, op: Op) -> int:
    """Return the rank whose memory the op writes: its own; for a put, the peer."""
    return program.channels[op.chan_out].dst if op.kind == Kind.put else op.rank


def message_slots(op: Op) -> int:
    """Return the slots of the message that an op sends or receives; 0 if the op has no region (`verify` refuses it)."""
    regions = op.reads or op.writes
    return regions[0].num_slots if regions else 0


def total_slots(regions: Sequence[Region]) -> int:
    """Return the total number of slots of some regions."""
    return sum(region.num_slots for region in regions)


def part_slots(regions: Sequence[Region], num_members: int) -> list[int]:
    """Return the slots that an all_to_all moves to (or from) each member. A single region is cut into equal parts.

    >>> part_slots([Region("x", 0, 6)], 3), part_slots([Region("x", 0, 5), Region("x", 5, 0)], 2)
    ([2, 2, 2], [5, 0])
    """
    if len(regions) == num_members:
        return [region.num_slots for region in regions]
    return [total_slots(regions) // num_members] * num_members


def sent_slots(program: Program) -> list[int]:
    """Return the slots of each message that a program sends."""
    return [message_slots(program.op(row)) for row in np.flatnonzero(program.chan_out >= 0).tolist()]


def slots(region: Region) -> list[int]:
    """Return the slots of a region, in order."""
    if region.num_slots == 0:
        return []
    if region.blocks == 1:
        return list(range(region.offset, region.offset + region.count))
    starts = range(region.offset, region.offset + region.stride * region.blocks, region.stride or 1)
    if region.stride == 0:
        starts = [region.offset] * region.blocks  # type: ignore[assignment]
    return [start + j for start in starts for j in range(region.count)]


def name_op(program: Program, row: int) -> str:
    """Return `op 17 'wait' on rank 2 (lane net, index 3)`."""
    col = program.columns
    rank, lane = int(col["rank"][row]), int(col["lane"][row])
    position = int(np.count_nonzero((col["rank"][:row] == rank) & (col["lane"][:row] == lane)))
    kind = Kind(int(col["kind"][row])).name
    return f"op {row} '{kind}' on rank {rank} (lane {program.lanes[lane].name}, index {position})"


def places_text(program: Program, rows: Sequence[int]) -> str | None:
    """Return `op 5 at ring.py:12, op 3 at ring.py:9`; None if no op has a source line."""
    lines = [(row, program.op(row).line) for row in rows]
    return ", ".join(f"op {row} at {line}" for row, line in lines if line is not None) or None
