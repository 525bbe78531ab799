"""seen: find accesses that packets do not order: to other data that was written before them.

A packet is a volatile store of data with its flag, and is read by a volatile load (mscclpp/packet_device.hpp); neither
has a fence. Its flag shows that the packet has arrived, and that its sender has read what it sent. Other earlier writes
may arrive later, unless signals, semaphores or barriers order them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from dovetail.collective.mscclpp.columns import Launched
from dovetail.collective.mscclpp.launch import KERNEL
from dovetail.collective.mscclpp.steps import PACKET_IDS, End
from dovetail.ir import Kind
from dovetail.ir.op_lists import OpLists, op_reads, op_writes
from dovetail.ir.proof.greedy import Greedy, Run

Pairs = dict[tuple[int, int], None]  # of ops, in order
_AT_ONCE = 4096  # ops whose successors are found in one pass


class Unseen(NamedTuple):
    """The first read, and the first overwrite, of data that another op wrote before, where only packets order
    the two ops: (writer, op).
    """

    read: tuple[int, int] | None = None
    overwritten: tuple[int, int] | None = None


def unseen(launched: Launched) -> Unseen:
    """Return accesses that packets do not order, in a program that would be free of races if they ordered all."""
    if not any(row.flags or _is_flag(row.chan_in) for row in launched.rows):
        return Unseen()
    lists = OpLists(launched.program)
    run = Greedy(lists)()
    reads, writes = _pairs(lists, run)
    writes = {pair: None for pair in writes if launched.row(pair[0]).lane != KERNEL}  # of ops only
    known = _known({**reads, **writes}, _causes(lists, run, launched), run.order)
    place = {row: at for at, row in enumerate(run.order)}
    lost = ([pair for pair in pairs if pair not in known] for pairs in (reads, writes))
    return Unseen(*(min(found, key=lambda pair: (place[pair[1]], place[pair[0]]), default=None) for found in lost))


def _is_flag(end: End | None) -> bool:
    return end is not None and end.id >= PACKET_IDS


def _pairs(lists: OpLists, run: Run) -> tuple[Pairs, Pairs]:
    """Pairs (writer, op): ops of other lanes that read a slot after it was written, and those that write it next.
    Packets are left out.
    """
    program, reads, writes = lists.program, Pairs(), Pairs()
    last = {
        (rank, buffer.name): np.full(slots, -1)
        for buffer in program.buffers
        for rank, slots in enumerate(buffer.slots)
        if not buffer.name.startswith(("packets", "temp"))
    }
    for row in run.order:
        op = lists.ops[row]
        for accesses, pairs in ((op_reads(program, op), reads), (op_writes(program, op), writes)):
            for rank, region in accesses:
                if (rank, region.buffer) in last:
                    found = last[rank, region.buffer][region.offset : region.offset + region.count]
                    others = (first for first in np.unique(found).tolist() if first >= 0)
                    pairs |= {(first, row): None for first in others if lists.queue_of[first] != lists.queue_of[row]}
                    if pairs is writes:
                        found[:] = row
    return reads, writes


def _causes(lists: OpLists, run: Run, launched: Launched) -> list[list[int]]:
    """The direct predecessors of each op, without flags."""
    number = {id(row): at for at, row in enumerate(launched.rows)}
    causes = []
    for index, op in enumerate(lists.ops):
        row, start = launched.row(index), launched.run(index) * len(launched.rows)
        found = [start + number[id(other)] for other in row.after]
        position, queue = lists.position[index], lists.queues[lists.queue_of[index]]
        found += queue[max(position - 1, 0) : position]
        if op.kind == Kind.wait and not _is_flag(row.chan_in):
            found.append(run.matched[index])
        causes.append(found)
    return causes


def _known(pairs: Pairs, causes: list[list[int]], order: list[int]) -> set[tuple[int, int]]:
    """The pairs whose second op comes after the first. The predecessors of an op are a bit set."""
    after, found = defaultdict[int, list[int]](list), set[tuple[int, int]]()
    for first, second in pairs:
        after[first].append(second)
    firsts = list(after)
    for start in range(0, len(firsts), _AT_ONCE):
        bits, known = {row: 1 << at for at, row in enumerate(firsts[start : start + _AT_ONCE])}, [0] * len(causes)
        for row in order:
            knows = bits.get(row, 0)
            for cause in causes[row]:
                knows |= known[cause]
            known[row] = knows
        found |= {(first, second) for first, bit in bits.items() for second in after[first] if known[second] & bit}
    return found
