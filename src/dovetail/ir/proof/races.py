"""races: find conflicting accesses to one slot, or messages of one channel, that are unordered in some timing.

Order comes from lanes, dependencies, messages and signals; a collective orders what its members did before their
calls before what follows them. A full channel orders nothing: with a deeper one that order would be gone.

An op takes its turn at a channel when it begins. What its message will show of other ranks does not count then, as
without other order the message may go to another op. It touches slots once the message begins to arrive, part by part
(see `message_paths`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.collectives import COLLECTIVES
from dovetail.ir.op_lists import OpLists, name_op, op_reads, op_writes, part_slots, places_text, slots
from dovetail.ir.program import Program
from dovetail.ir.proof.certificate import Fault
from dovetail.ir.proof.greedy import Run
from dovetail.ir.proof.message_paths import in_step, path_places
from dovetail.ir.proof.overlap import self_conflict
from dovetail.ir.types import RECVS, SENDS, Kind

Clock = NDArray[np.int32]


class Clocks(NamedTuple):
    """Entry [op, queue] of each: how many ops of `queue` have ended, in every timing, by a moment of `op`: when it
    begins, when it first touches a slot (its message, if it receives one, has begun to arrive), and when it ends.
    """

    begun: Clock
    touched: Clock
    ended: Clock


def races_fault(lists: OpLists, run: Run) -> Fault | None:
    """Return the first fault: of an op by itself, else between uses of a channel or collective, else at a slot."""
    for op in lists.ops:
        members = [lists.ops[row] for row in run.groups.get(op.index, ())]
        slot = self_conflict(lists.program, op, members)
        if slot is not None:
            return self_fault(lists.program, op.index)
    clocks = happens_before(lists, run)
    for first, second in turns(lists, run):
        if not _ordered(lists, clocks.begun, first, second):
            return turns_fault(lists.program, first, second)
    places = path_places(lists, run)
    for first, second in conflicts(lists, run):
        if not _ordered(lists, clocks.touched, first, second) and not in_step(lists, places, first, second):
            return slots_fault(lists.program, first, second)
    return None


def happens_before(lists: OpLists, run: Run) -> Clocks:
    """Return the vector clocks of every op."""
    clocks = Clocks(*(np.zeros((len(lists.ops), max(len(lists.queues), 1)), dtype=np.int32) for _ in Clocks._fields))
    for row in run.order:
        members = run.groups.get(row, (row,))
        if row != members[0]:
            continue  # all members of a collective are served with the first
        for member in members:
            _begin(lists, run, clocks, member)
        for j, member in enumerate(members):
            known = [
                clocks.touched[other] for i, other in enumerate(members) if i == j or _informs(lists, members, i, j)
            ]
            known += [clocks.ended[run.matched[member]]] if member in run.matched else []
            clocks.ended[member] = np.max(known, axis=0)
            clocks.ended[member, lists.queue_of[member]] = lists.position[member] + 1
    return clocks


def _begin(lists: OpLists, run: Run, clocks: Clocks, row: int) -> None:
    """Set the clocks of op `row`: when it begins, and when it touches slots (with its message sender's clock)."""
    position, queue = lists.position[row], lists.queues[lists.queue_of[row]]
    causes = [*lists.ops[row].after, *queue[max(position - 1, 0) : position]]
    if causes:
        clocks.begun[row] = np.max(clocks.ended[causes], axis=0)
    clocks.touched[row] = clocks.begun[row]
    if lists.ops[row].kind in RECVS:
        clocks.touched[row] = np.maximum(clocks.begun[row], clocks.touched[run.matched[row]])


def _informs(lists: OpLists, members: tuple[int, ...], i: int, j: int) -> bool:
    """Return whether data of member i reaches member j, so that j cannot end before i has begun."""
    op, other = lists.ops[members[i]], lists.ops[members[j]]
    traits = COLLECTIVES[lists.program.collectives[op.call].kind]
    if traits.from_root:
        return i == 0 and op.reads[0].num_slots > 0
    if traits.exchanges:
        return part_slots(op.reads, len(members))[j] > 0
    return (other.writes if traits.cut else op.reads)[0].num_slots > 0


def _ordered(lists: OpLists, clock: Clock, first: int, second: int) -> bool:
    """Return whether `first` has ended, in every timing, at the moment of `second` that `clock` describes."""
    return bool(clock[second, lists.queue_of[first]] > lists.position[first])


def turns(lists: OpLists, run: Run) -> Iterator[tuple[int, int]]:
    """Yield pairs of ops of different queues that consecutively use one end of a channel, or one rank's place in a
    collective.

    Unless they are ordered, which message meets which receive depends on timing.
    """
    last: dict[tuple[str, int, int], int] = {}
    for row in run.order:
        op = lists.ops[row]
        ends = []
        if op.kind in RECVS or op.kind == Kind.wait:
            ends.append(("take" if op.kind in RECVS else "wait", op.chan_in, 0))
        if op.kind in SENDS or op.kind == Kind.signal:
            ends.append(("give" if op.kind in SENDS else "signal", op.chan_out, 0))
        if op.kind == Kind.collective:
            ends.append(("call", op.call, op.rank))
        for end in ends:
            first = last.get(end, row)
            if lists.queue_of[first] != lists.queue_of[row]:
                yield first, row
            last[end] = row


def conflicts(lists: OpLists, run: Run) -> Iterator[tuple[int, int]]:
    """Yield pairs of ops of different queues that touch one slot, at least one writing, in the order of `run`.

    For each slot, only the last write and each queue's last read since then are compared: older ones precede these.
    """
    writer: dict[tuple[int, str, int], int] = {}
    readers: dict[tuple[int, str, int], dict[int, int]] = defaultdict(dict)
    for row in run.order:
        op, queue = lists.ops[row], lists.queue_of[row]
        for access in op_reads(lists.program, op):
            for slot in slots(access.region):
                key = (access.rank, access.region.buffer, slot)
                first = writer.get(key, row)
                if lists.queue_of[first] != queue:
                    yield first, row
                readers[key].pop(queue, None)
                readers[key][queue] = row
        for access in op_writes(lists.program, op):
            for slot in slots(access.region):
                key = (access.rank, access.region.buffer, slot)
                for first in (writer.get(key, row), *readers.pop(key, {}).values()):
                    if lists.queue_of[first] != queue:
                        yield first, row
                writer[key] = row


def self_fault(program: Program, row: int) -> Fault:
    what = f"{name_op(program, row)}: it writes a slot twice, or reads one at another place than it writes it"
    return Fault(what, (row,), hint="use regions that are apart, or the very same region in place")


def turns_fault(program: Program, first: int, second: int) -> Fault:
    """Return the fault of two lanes that use one end of a channel without order."""
    op = program.op(second)
    what = "calls of one collective" if op.kind == Kind.collective else "uses of one end of a channel"
    return Fault(
        f"{name_op(program, second)} and {name_op(program, first)}: {what} that nothing orders, so which meets which "
        "depends on timing",
        (first, second),
        places_text(program, (second, first)),
        "order them by a dependency, or give each lane a channel id of its own",
        blamed=(second, first),
    )


def slots_fault(program: Program, first: int, second: int) -> Fault:
    """Return the fault of two ops that touch one slot without order, at the first such slot of the second op."""
    earlier, later = program.op(first), program.op(second)
    reads = {(a.rank, a.region.buffer, slot) for a in op_reads(program, earlier) for slot in slots(a.region)}
    writes = {(a.rank, a.region.buffer, slot) for a in op_writes(program, earlier) for slot in slots(a.region)}
    for verb, accesses in (("reads", op_reads(program, later)), ("writes", op_writes(program, later))):
        for access in accesses:
            for slot in slots(access.region):
                key = (access.rank, access.region.buffer, slot)
                if key in writes or (verb == "writes" and key in reads):
                    return _race(program, first, second, verb, "writes" if key in writes else "reads", key)
    raise AssertionError(f"ops {first} and {second} touch no slot in common")


def _race(program: Program, first: int, second: int, verb: str, before: str, key: tuple[int, str, int]) -> Fault:
    rank, buffer, slot = key
    return Fault(
        f"{name_op(program, second)} {verb} {buffer}[{slot}] of rank {rank}, which {name_op(program, first)} {before}; "
        "nothing orders the two",
        (first, second),
        places_text(program, (second, first)),
        f"let op {second} wait for op {first}, by a dependency or a message, or use another buffer",
        blamed=(second, first),
    )
