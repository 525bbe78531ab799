"""folded: prove a Folded from the ops of rank 0, and thereby the whole Program (docs/how.md says why)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from dovetail.ir.collectives import traits_of
from dovetail.ir.folded import Folded
from dovetail.ir.op_lists import OpLists, name_op, op_reads, op_writes
from dovetail.ir.proof.bounds import message_fault, op_fault
from dovetail.ir.proof.certificate import Certificate, Check, Fault
from dovetail.ir.proof.contributions import Held, Memory, Unlike, renumbered, unlike, wanted
from dovetail.ir.proof.deadlock import deadlock_fault, too_shallow, unmatched_fault
from dovetail.ir.proof.greedy import Greedy, Run
from dovetail.ir.proof.overlap import self_conflict
from dovetail.ir.proof.races import self_fault, slots_fault, turns_fault
from dovetail.ir.proof.verify import Findings, certify
from dovetail.ir.types import RECVS, SENDS, Kind, Op, Region

_ADDS = (Kind.reduce, Kind.recv_reduce, Kind.recv_reduce_send, Kind.recv_reduce_copy_send)


def verify_folded(folded: Folded) -> Certificate:
    """Prove that the Program of all ranks is correct, from the ops of rank 0, or find a counterexample.

    The proof is exact, but incomplete: it refuses programs whose order depends on messages of other ranks, and sums
    over ranks that are no box (see `contributions`). `verify(folded.expand())` decides those.

    Parameters
    ----------
    folded : Folded
        The program. Op numbers and ranks in the certificate are those of rank 0.

    Returns
    -------
    Certificate
        The verdict, with the checks of `verify`.
    """
    lists = OpLists(folded.one)
    bounds = _bounds_fault(folded, lists)
    if bounds:
        return certify(folded.one, Findings({"bounds": bounds}), None)
    run = Greedy(lists)()
    bounds = _messages_fault(folded, lists, run)
    faults: dict[str, Fault | None] = {"bounds": bounds, "deadlock": _deadlock(folded, lists, run)}
    if not run.complete or bounds:
        return certify(folded.one, Findings(faults, run.depth if run.complete else None), None)
    faults |= {"races": _races_fault(lists, run), "result": _result_fault(folded, lists, run)}
    found = None if faults["result"] else folded.requirement.collective
    certificate = certify(folded.one, Findings(faults, run.depth, found), None)
    return certificate if faults["result"] else _with_result(certificate, folded)


def _with_result(certificate: Certificate, folded: Folded) -> Certificate:
    text = f"every output of all {folded.num_ranks} ranks holds what {folded.requirement.collective} requires"
    checks = {**certificate.checks, "result": Check(True, text)}
    return replace(certificate, checks=checks)


def _bounds_fault(folded: Folded, lists: OpLists) -> Fault | None:
    """Return the fault of the first invalid op, or of buffers that the collective does not have."""
    for op in lists.ops:
        fault = op_fault(folded.one, op, folded=True)
        if fault:
            return fault
    return _requirement_fault(folded)


def _requirement_fault(folded: Folded) -> Fault | None:
    """Return why the collective's requirement on rank 0 does not stand for that on all ranks; None if it does.

    The image of what rank 0 must hold has to be what the image of rank 0 must hold, for each generator of the group.
    """
    kind, count = folded.requirement
    traits, symmetry = traits_of(kind), folded.symmetry
    sizes = {buffer.role: buffer.slots[0] for buffer in folded.one.buffers if buffer.role != "scratch"}
    roles = [buffer.role for buffer in folded.one.buffers if buffer.role != "scratch"]
    if not traits.moves or traits.even or traits.rooted or traits.to_next:
        return Fault(f"a folded program cannot do {kind}, in which ranks have different parts")
    parts = traits.parts(folded.num_ranks)
    parts = (max(parts), max(parts)) if folded.one.in_place else parts
    needed = dict(zip(("input", "output"), (part * count for part in parts), strict=True))
    if sorted(roles) not in (["input"], ["input", "output"]) or any(needed[role] != n for role, n in sizes.items()):
        return Fault(f"its buffers do not fit {kind} with parts of {count} slots", found=f"{sizes}")
    source = next(buffer.name for buffer in folded.one.buffers if buffer.role == "input")
    target, here = wanted(folded, 0)
    for axis in range(len(symmetry.axes)):
        rank = prod(symmetry.axes[axis + 1 :]) % folded.num_ranks
        there = wanted(folded, rank)[1].take(symmetry.image(target, np.arange(len(here.slot)), rank))
        image = renumbered(symmetry, source, here, rank)
        if len(unlike(image, there)) or np.any((image.slot < 0) != (there.slot < 0)):
            return Fault(f"{kind} asks of rank {rank} something else than the image of what it asks of rank 0")
    return None


def _messages_fault(folded: Folded, lists: OpLists, run: Run) -> Fault | None:
    """Return the fault of the first message whose ends differ in size, or do not vary in the same digits."""
    for row in run.order:
        if row not in run.matched:
            continue
        sender, receiver = lists.ops[run.matched[row]], lists.ops[row]
        fault = message_fault(folded.one, sender, receiver)
        if fault:
            return fault
        if folded.shape(_payload(sender)).varying != folded.shape(_payload(receiver)).varying:
            name = name_op(folded.one, row)
            return Fault(f"{name}: the slots of its message have no image on other ranks", (sender.index, row))
    return None


def _payload(op: Op) -> Region:
    """Return the region whose slots an op's message is paired with; Folded has compared an op's own regions."""
    return (*op.writes, *op.reads)[0]


def _deadlock(folded: Folded, lists: OpLists, run: Run) -> Fault | None:
    """Return the fault, if rank 0 gets stuck while all ranks run in step: then every rank gets stuck, in any timing."""
    if not run.complete:
        return deadlock_fault(folded.one, run.done, None)
    declared = [channel.depth for channel in folded.one.channels]
    unmatched = run.unmatched[0] if run.unmatched else None
    if min(declared, default=run.depth) < run.depth:
        shallow = Greedy(lists, declared)()
        if not shallow.complete:
            return too_shallow(folded.one, shallow.done, run.depth, unmatched)
    return None if unmatched is None else unmatched_fault(folded.one, unmatched)


def _races_fault(lists: OpLists, run: Run) -> Fault | None:
    """Return the first fault: an op in isolation, or two ops of rank 0 that share a channel's end or a slot, one of
    them writing, and that neither the rank's lanes nor its dependencies order."""
    for op in lists.ops:
        if self_conflict(lists.program, op, []) is not None:
            return self_fault(lists.program, op.index)
    if len(lists.queues) < 2:
        return None
    order, ends = _LocalOrder(lists), dict[tuple[str, int], int]()
    for row in run.order:
        order.begin(row)
        op = lists.ops[row]
        for end in [("in", op.chan_in)] * (op.kind in RECVS) + [("out", op.chan_out)] * (op.kind in SENDS):
            if end in ends and not order.ended(ends[end], row):
                return turns_fault(lists.program, ends[end], row)
            ends[end] = row
        other = order.touch(op)
        if other is not None:
            return slots_fault(lists.program, other, row)
    return None


class _LocalOrder:
    """Which ops have ended when another begins, by lanes and dependencies alone; and the last accesses to each slot."""

    def __init__(self, lists: OpLists) -> None:
        self.lists, queues = lists, len(lists.queues)
        self.clock = np.zeros((len(lists.ops), queues), np.int64)  # [op, queue]: ops of the queue that have ended
        self.last = {b.name: np.full((2, queues, b.slots[0]), -1) for b in lists.program.buffers}  # reads, writes

    def begin(self, row: int) -> None:
        """Set the clock of an op, after those of all ops before it."""
        position, queue = self.lists.position[row], self.lists.queue_of[row]
        for cause in (*self.lists.ops[row].after, *self.lists.queues[queue][max(position - 1, 0) : position]):
            np.maximum(self.clock[row], self.clock[cause], out=self.clock[row])
            before = self.lists.queue_of[cause]
            self.clock[row, before] = max(self.clock[row, before], self.lists.position[cause] + 1)

    def ended(self, first: int, second: int) -> bool:
        return bool(self.clock[second, self.lists.queue_of[first]] > self.lists.position[first])

    def touch(self, op: Op) -> int | None:
        """Note the accesses of an op. Return an op that touched one of the slots in conflict and without order."""
        row, queue = op.index, self.lists.queue_of[op.index]
        program = self.lists.program
        for writes, accesses in ((False, op_reads(program, op)), (True, op_writes(program, op))):
            for _, region in accesses:
                last, slots = self.last[region.buffer], region.slots()
                for kind in (0, 1) if writes else (1,):
                    for other in np.unique(last[kind][:, slots]).tolist():
                        if other >= 0 and other != row and not self.ended(other, row):
                            return int(other)
        for kind, accesses in ((0, op_reads(program, op)), (1, op_writes(program, op))):
            for _, region in accesses:
                self.last[region.buffer][kind, queue, region.slots()] = row
        return None


def _result_fault(folded: Folded, lists: OpLists, run: Run) -> Fault | None:
    """Execute rank 0's ops on exact contributions; return the fault of the first slot that holds something else."""
    memory, sent = Memory.of(folded), dict[int, tuple[Region, Held]]()
    for row in run.order:
        op = lists.ops[row]
        if op.kind == Kind.nop:
            continue
        try:
            value = _execute(folded, memory, op, sent.pop(run.matched[row]) if row in run.matched else None)
        except Unlike as error:
            return _sum_fault(folded, op, error)
        for region in op.writes:
            memory.write(region, value)
        if op.kind in SENDS:
            sent[row] = _payload(op), value
    target, want = wanted(folded, 0)
    bad = unlike(memory.held[target], want)
    if not len(bad):
        return None
    slot = int(bad[0])
    found = f"{_text(folded, memory.held[target], slot)}, wanted {_text(folded, want, slot)}"
    return Fault(f"{target}[{slot}] of rank 0 holds the wrong value at the end", found=found)


def _execute(folded: Folded, memory: Memory, op: Op, message: tuple[Region, Held] | None) -> Held:
    """Return what an op sends or writes."""
    given = None if message is None else memory.received(*message, folded.offsets[op.chan_in])
    own = [memory.read(region) for region in op.reads]
    if op.kind == Kind.reduce:
        own.append(memory.read(op.writes[0]))
    values = [*own, *([] if given is None else [given])]
    return memory.total(*values) if op.kind in _ADDS else values[0]


def _sum_fault(folded: Folded, op: Op, error: Unlike) -> Fault:
    slot = int((*op.writes, *op.reads)[0].slots()[error.place])
    name = f"{name_op(folded.one, op.index)}, at slot {slot}"
    if error.twice:
        return Fault(f"{name}: it counts the contribution of some rank twice", (op.index,))
    what = f"{name}: it adds what has no common box of ranks, or different or undefined slots"
    return Fault(what, (op.index,), hint="prove it expanded: verify(folded.expand())")


def _text(folded: Folded, held: Held, place: int) -> str:
    """Return what a slot holds as text: the input slot, and per axis the ranks' digits."""
    if held.slot[place] < 0:
        return "nothing"
    arcs = zip(held.start[place].tolist(), held.length[place].tolist(), folded.symmetry.axes, strict=True)
    box = " x ".join("all" if length == n else f"{start}+{length}" for start, length, n in arcs)
    return f"input slot {held.slot[place]} of ranks {box}"
