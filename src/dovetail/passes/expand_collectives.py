"""expand_collectives: the library's all_reduce becomes sends and receives of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir import Channel, Kind, Lane, Op, Program
from dovetail.passes.algorithms import ALGORITHMS, Algorithm, Step, alone
from dovetail.passes.draft import Draft, OldOp
from dovetail.passes.regions import apart_or_equal, common_unit


def expand_collectives(program: Program, algorithm: Algorithm = "ring", depth: int = 8) -> Program:
    """Every all_reduce op as messages on two new lanes, `send` and `recv`, so that both directions are busy at once.

    `exchange` is all-pairs, `ring` is reduce-scatter and all-gather round a ring. Calls that touch the same slots
    keep their order; others may now overlap, which is the purpose. Source and destination may be the same region.
    Raises ProgramError where members disagree about slots, or a rank calls one collective from two lanes.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program sum ranks 2
    ... buffer x input 4
    ... buffer y output 4
    ... lane net net
    ... collective all_reduce 0 1
    ... post 0 1 y[0:4] = x@0[0:4] + x@1[0:4]
    ... rank 0 lane net
    ...   collective all_reduce x[0:4] -> y[0:4] group 0 1
    ... rank 1 lane net
    ...   collective all_reduce x[0:4] -> y[0:4] group 0 1
    ... ''')
    >>> print(to_text(expand_collectives(before, "exchange")), end="")
    program sum ranks 2
    buffer x input 4
    buffer y output 4
    lane send net
    lane recv net
    channel 0->1 0 depth 8
    channel 1->0 0 depth 8
    post 0 1 y[0:4] = x@0[0:4] + x@1[0:4]
    rank 0 lane send
      send x[0:4] to 1
    rank 0 lane recv
      recv_reduce from 1 x[0:4] -> y[0:4]
    rank 1 lane send
      send x[0:4] to 0
    rank 1 lane recv
      recv_reduce from 0 x[0:4] -> y[0:4]
    """
    calls = _Calls(program)
    if not calls.member:
        return program
    draft = Draft(program)
    queues: dict[tuple[int, int], _Queue] = {}
    free_id = max((channel.id for channel in program.channels), default=-1) + 1
    for op in program.ops():
        queue = queues.setdefault((op.rank, op.lane), _Queue())
        if op.index in calls.member:
            group, channel = program.collectives[op.call].group, (free_id + op.call, depth)
            writer = _Writer(draft, queue, op, group, calls.lanes(op.lane), channel)
            writer.write(calls.steps(op, algorithm))
        else:
            after: list[int | OldOp] = [*(OldOp(row) for row in op.after), *queue.pending.values()]
            draft.replaced(op.index, [draft.keep(op, after=after)])
            queue.waits.append(OldOp(op.index))
            queue.pending = {}
    return draft.build()


@dataclass
class _Queue:
    """What is known of one old queue so far, to keep its order among the lanes that take its place."""

    waits: list[OldOp] = field(default_factory=list)  # what the queue has waited for, its own kept ops among it
    served: dict[Lane, int] = field(default_factory=dict)  # how many of these each new lane has waited for
    pending: dict[Lane, int] = field(default_factory=dict)  # last new op on each lane since the last kept op
    touched: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # buffer -> per slot, the last call's row

    def touch(self, op: Op, slots_of: Callable[[str, int], int]) -> list[int]:
        """Rows of the earlier calls that used any slot that `op` uses; from now on `op` is their last user."""
        earlier: set[int] = set()
        for region in (*op.reads, *op.writes):
            rows = self.touched.setdefault(region.buffer, np.full(slots_of(region.buffer, op.rank), -1))
            earlier.update(np.unique(rows[region.slots()]).tolist())
        for region in (*op.reads, *op.writes):
            self.touched[region.buffer][region.slots()] = op.index
        return sorted(earlier - {-1})

    def unserved(self, lane: Lane) -> list[OldOp]:
        """What the next op on `lane` has to wait for, because no earlier op of that lane did."""
        start = self.served.get(lane, 0)
        self.served[lane] = len(self.waits)
        return self.waits[start:]


@dataclass
class _Writer:
    """Puts the steps of one call into the draft."""

    draft: Draft
    queue: _Queue
    op: Op
    group: tuple[int, ...]
    lanes: tuple[Lane, Lane]  # send, recv
    channel: tuple[int, int]  # id, depth

    def write(self, steps: list[Step]) -> None:
        op, old = self.op, self.draft.program
        self.queue.waits += [OldOp(row) for row in (*op.after, *self.queue.touch(op, old.slots_of))]
        numbers: list[int] = []
        for step in steps or [Step(Kind.nop, (), (), -1)]:
            lane = self._lane(step)
            after: list[int | OldOp] = [*self.queue.unserved(lane), *(numbers[need] for need in step.needs)]
            numbers.append(self._add(step, lane, after))
            self.queue.pending[lane] = numbers[-1]
        self.draft.replaced(op.index, numbers, list(self.queue.pending.values()))

    def _lane(self, step: Step) -> Lane:
        if step.kind in (Kind.copy, Kind.nop):
            return self.draft.program.lanes[self.op.lane]
        return self.lanes[0] if step.kind == Kind.send else self.lanes[1]

    def _add(self, step: Step, lane: Lane, after: list[int | OldOp]) -> int:
        rank, peer = self.op.rank, self.group[step.peer]
        sends, receives = step.kind == Kind.send, step.kind in (Kind.recv, Kind.recv_reduce)
        return self.draft.add(
            step.kind,
            rank,
            lane,
            reads=step.reads,
            writes=step.writes,
            chan_in=Channel(peer, rank, *self.channel) if receives else None,
            chan_out=Channel(rank, peer, *self.channel) if sends else None,
            after=after,
            line=self.op.line,
        )


class _Calls:
    """The all_reduce calls of a program: whose they are, and where their slots may be cut."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.member: dict[int, tuple[int, int]] = {}  # row -> (collective, which call of it)
        self._unit: dict[tuple[int, int], int] = {}
        self._lanes: list[int] = []
        queues: dict[tuple[int, int], list[Op]] = {}
        for op in self._all_reduces():
            calls = queues.setdefault((op.call, op.rank), [])
            self.member[op.index] = (op.call, len(calls))
            calls.append(op)
            if op.lane not in self._lanes:
                self._lanes.append(op.lane)
            if op.lane != calls[0].lane:
                self._refuse(op, f"is called from two lanes of rank {op.rank}")
        for row in {row for row, _ in queues}:
            members = [queues.get((row, rank), []) for rank in program.collectives[row].group]
            for count in range(max(map(len, members))):
                ops = [calls[count] for calls in members if count < len(calls)]
                self._unit[row, count] = self._checked_unit(ops, len(members))

    def steps(self, op: Op, algorithm: Algorithm) -> list[Step]:
        group = self.program.collectives[op.call].group
        write = ALGORITHMS[algorithm] if len(group) > 1 else alone
        return write(group.index(op.rank), len(group), op.reads[0], op.writes[0], self._unit[self.member[op.index]])

    def lanes(self, old: int) -> tuple[Lane, Lane]:
        """The lanes of what comes of calls on lane `old`: plain names for the first such lane, if they are free."""
        plain = self._lanes[0] == old and not {"send", "recv"} & {lane.name for lane in self.program.lanes}
        suffix = "" if plain else f"_{self.program.lanes[old].name}"
        return Lane(f"send{suffix}", "net"), Lane(f"recv{suffix}", "net")

    def _all_reduces(self) -> Iterator[Op]:
        col = self.program.columns
        kinds = [collective.kind == "all_reduce" for collective in self.program.collectives]
        rows = np.flatnonzero(col["kind"] == Kind.collective)
        return (self.program.op(int(row)) for row in rows if kinds[col["call"][row]])

    def _checked_unit(self, ops: list[Op], num_members: int) -> int:
        regions = [region for op in ops for region in (*op.reads, *op.writes)]
        if len(ops) != num_members:
            self._refuse(ops[0], f"is called by {len(ops)} of its {num_members} members")
        if any((len(op.reads), len(op.writes)) != (1, 1) for op in ops) or len({r.num_slots for r in regions}) > 1:
            self._refuse(ops[0], "differs in slots between members, or between source and destination")
        for op in ops:
            src, dst = op.reads[0], op.writes[0]
            if any(r.slots().max(initial=-1) >= self.program.slots_of(r.buffer, op.rank) for r in (src, dst)):
                self._refuse(op, "leaves its buffer")
            if not apart_or_equal(src, dst):
                self._refuse(op, "has a source and a destination that overlap in part")
        return common_unit(regions)

    def _refuse(self, op: Op, why: str) -> NoReturn:
        what = f"op {op.index} 'collective' on rank {op.rank}: this all_reduce {why}"
        raise ProgramError(what, where=op.line, hint="verify tells more")
