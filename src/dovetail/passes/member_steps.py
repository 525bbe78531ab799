"""member_steps: split the ops of each rank of an algorithm into queues: one to send and one to receive per peer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dovetail.core import ProgramError
from dovetail.ir import Kind, Op, Program, Region
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy

_KINDS = (Kind.copy, Kind.reduce, Kind.send, Kind.recv, Kind.recv_reduce)
Slot = tuple[str, int]


class Step(NamedTuple):
    """One op of a member, in the order of its `queue`.

    Queues are "send" to its first peer, "send1" to the next, …, and "recv", "recv1", … from them. Local ops are in
    "recv" if that is the only receiving queue, else in "local". Regions are of the algorithm's buffers. `peer` and
    `channel` are -1 for local ops. `needs`: steps of other queues that must end before this one.
    """

    kind: Kind
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    peer: int = -1
    channel: int = -1
    queue: str = ""
    needs: tuple[int, ...] = ()


def member_steps(algorithm: Program) -> list[list[Step]]:
    """Return the steps of each rank, in an order in which they can complete.

    `needs` keeps the order of steps of two queues that touch the same slot, no matter how the algorithm orders them.
    Raises ProgramError for ops that are fused, strided or one-sided, for kernels and library
    calls, and if the algorithm deadlocks.

    >>> from dovetail.ir.shapes import ring_all_reduce
    >>> for step in member_steps(ring_all_reduce(2, 1))[0]:
    ...     print(step.queue, *step.reads, "->", *step.writes, *step.needs)
    send x[0:1] ->
    recv x[1:2] -> x[1:2]
    send x[1:2] -> 1
    recv -> x[0:1] 0
    """
    run = Greedy(OpLists(algorithm))()
    if not run.complete:
        raise ProgramError(f"algorithm '{algorithm.name}' does not complete", hint="see dovetail verify")
    found: list[list[Step]] = [[] for _ in range(algorithm.num_ranks)]
    for row in run.order:
        op = algorithm.op(row)
        if op.kind != Kind.nop:
            _check(algorithm, op)
            found[op.rank].append(_step(algorithm, op))
    return [_ordered(_queued(steps)) for steps in found]


def _check(algorithm: Program, op: Op) -> None:
    what = f"op {op.index} '{op.kind.name}' of algorithm '{algorithm.name}'"
    if op.kind not in _KINDS:
        found = f"only {', '.join(kind.name for kind in _KINDS)} can take the place of a collective"
        raise ProgramError(what, where=op.line, found=found, hint="programs of Algorithm.trace() have no other ops")
    for region in (*op.reads, *op.writes):
        if region.blocks > 1:
            raise ProgramError(f"{what} has a strided region", where=op.line, hint="use batched instances")


def _step(algorithm: Program, op: Op) -> Step:
    row = op.chan_out if op.kind == Kind.send else op.chan_in
    if row < 0:
        return Step(op.kind, op.reads, op.writes)
    channel = algorithm.channels[row]
    return Step(op.kind, op.reads, op.writes, channel.dst if op.kind == Kind.send else channel.src, channel.id)


def _queued(steps: list[Step]) -> list[Step]:
    """The steps, each with its queue."""
    numbers: dict[str, dict[int, int]] = {"send": {}, "recv": {}}  # by direction: peer -> its number
    sides = ["send" if step.kind == Kind.send else "recv" if step.peer >= 0 else "local" for step in steps]
    for side, step in zip(sides, steps, strict=True):
        if side != "local":
            numbers[side].setdefault(step.peer, len(numbers[side]))
    apart = len(numbers["recv"]) > 1
    queues = []
    for side, step in zip(sides, steps, strict=True):
        number = numbers[side][step.peer] if side != "local" else 0
        queues.append(f"{side if side != 'local' or apart else 'recv'}{number or ''}")
    return [step._replace(queue=queue) for step, queue in zip(steps, queues, strict=True)]


def _ordered(steps: list[Step]) -> list[Step]:
    """The steps, each with the steps that it needs."""
    touched, found = _Touched(), list[Step]()
    served: dict[tuple[str, str], int] = {}  # the last step of one queue that another has waited for
    for row, step in enumerate(steps):
        last: dict[str, int] = {}
        for before in touched.before(step):
            if found[before].queue != step.queue:
                last[found[before].queue] = max(before, last.get(found[before].queue, -1))
        needs = {queue: before for queue, before in last.items() if before > served.get((step.queue, queue), -1)}
        served |= {(step.queue, queue): before for queue, before in needs.items()}
        touched.note(row, step)
        found.append(step._replace(needs=tuple(sorted(needs.values()))))
    return found


class _Touched:
    """The last steps that wrote and read each slot."""

    def __init__(self) -> None:
        self._wrote: dict[Slot, int] = {}
        self._read: dict[Slot, list[int]] = {}  # since it was written

    def before(self, step: Step) -> Iterator[int]:
        """Yield the steps that must end before this one because of a common slot."""
        for slot in (*_slots(step.reads), *_slots(step.writes)):
            if slot in self._wrote:
                yield self._wrote[slot]
        for slot in _slots(step.writes):
            yield from self._read.get(slot, ())

    def note(self, row: int, step: Step) -> None:
        for slot in _slots(step.reads):
            self._read.setdefault(slot, []).append(row)
        for slot in _slots(step.writes):
            self._wrote[slot], self._read[slot] = row, []


def _slots(regions: tuple[Region, ...]) -> Iterator[Slot]:
    return ((region.buffer, slot) for region in regions for slot in range(region.offset, region.offset + region.count))
