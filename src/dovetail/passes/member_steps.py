"""member_steps: what each rank of an algorithm does, as one queue that sends and one that receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dovetail.core import ProgramError
from dovetail.ir import Kind, Op, Program, Region
from dovetail.ir.greedy import Greedy
from dovetail.ir.op_lists import OpLists

_KINDS = (Kind.copy, Kind.reduce, Kind.send, Kind.recv, Kind.recv_reduce)
Slot = tuple[str, int]


class Step(NamedTuple):
    """One op of a member: sends are one queue, all else another, each in the order of the steps.

    Regions are of the algorithm's buffers; `peer` and `channel` are -1 for what stays on the rank; `needs` is the last
    step of the other queue that must have ended before, or -1.
    """

    kind: Kind
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    peer: int = -1
    channel: int = -1
    needs: int = -1

    @property
    def sends(self) -> bool:
        return self.kind == Kind.send


def member_steps(algorithm: Program) -> list[list[Step]]:
    """The steps of each rank, in an order in which they complete.

    Steps of the two queues that touch one slot keep their order by `needs`; so does what the algorithm orders by lanes,
    or by way of another rank's messages. ProgramError for ops that are fused, strided or one-sided, for kernels and
    the library's calls, and where the algorithm deadlocks.

    >>> from dovetail.ir.shapes import ring_all_reduce
    >>> for step in member_steps(ring_all_reduce(2, 1))[0]:
    ...     print(step.kind.name, *step.reads, "->", *step.writes, step.needs)
    send x[0:1] -> -1
    recv_reduce x[1:2] -> x[1:2] -1
    send x[1:2] -> 1
    recv -> x[0:1] 0
    """
    run = Greedy(OpLists(algorithm))()
    if not run.complete:
        raise ProgramError(f"algorithm '{algorithm.name}' does not complete", hint="see dovetail verify")
    queues = [_Member() for _ in range(algorithm.num_ranks)]
    for row in run.order:
        op = algorithm.op(row)
        if op.kind != Kind.nop:
            _check(algorithm, op)
            queues[op.rank].add(_step(algorithm, op))
    return [member.steps for member in queues]


def _check(algorithm: Program, op: Op) -> None:
    what = f"op {op.index} '{op.kind.name}' of algorithm '{algorithm.name}'"
    if op.kind not in _KINDS:
        found = f"only {', '.join(kind.name for kind in _KINDS)} can take the place of a collective"
        raise ProgramError(what, where=op.line, found=found, hint="Algorithm.trace() has nothing else")
    for region in (*op.reads, *op.writes):
        if region.blocks > 1:
            raise ProgramError(f"{what} has a strided region", where=op.line, hint="batched instances have none")


def _step(algorithm: Program, op: Op) -> Step:
    row = op.chan_out if op.kind == Kind.send else op.chan_in
    if row < 0:
        return Step(op.kind, op.reads, op.writes)
    channel = algorithm.channels[row]
    return Step(op.kind, op.reads, op.writes, channel.dst if op.kind == Kind.send else channel.src, channel.id)


class _Member:
    """Steps so far, and who touched each slot last."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._wrote: dict[Slot, int] = {}
        self._read: dict[Slot, list[int]] = {}  # since it was written
        self._served = {True: -1, False: -1}  # the last step of the other queue that each queue has waited for

    def add(self, step: Step) -> None:
        own = step.sends
        earlier = [row for row in self._before(step) if self.steps[row].sends != own]
        needs = max(earlier, default=-1)
        if needs <= self._served[own]:
            needs = -1
        else:
            self._served[own] = needs
        self._note(step)
        self.steps.append(step._replace(needs=needs))

    def _before(self, step: Step) -> Iterator[int]:
        """Steps that must end before this one, because of a slot."""
        for slot in (*_slots(step.reads), *_slots(step.writes)):
            if slot in self._wrote:
                yield self._wrote[slot]
        for slot in _slots(step.writes):
            yield from self._read.get(slot, ())

    def _note(self, step: Step) -> None:
        row = len(self.steps)
        for slot in _slots(step.reads):
            self._read.setdefault(slot, []).append(row)
        for slot in _slots(step.writes):
            self._wrote[slot], self._read[slot] = row, []


def _slots(regions: tuple[Region, ...]) -> Iterator[Slot]:
    return ((region.buffer, slot) for region in regions for slot in range(region.offset, region.offset + region.count))
