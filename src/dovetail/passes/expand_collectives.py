"""expand_collectives: the library's all_reduce becomes sends and receives of our own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir import Channel, Collective, Kind, Lane, Op, Program
from dovetail.passes.algorithms import ALGORITHMS, Algorithm, Step, alone
from dovetail.passes.draft import Draft, OldOp
from dovetail.passes.regions import apart_or_equal, common_unit


def expand_collectives(program: Program, algorithm: Algorithm = "ring", depth: int = 8) -> Program:
    """Every all_reduce op as messages on two new lanes, `send` and `recv`, so that both directions are busy at once.

    `exchange` is all-pairs, `ring` is reduce-scatter and all-gather round a ring. Calls that touch the same slots
    keep their order; others may now overlap, which is the purpose. Source and destination may be the same region.
    Raises ProgramError where members disagree about slots or call one collective from several lanes.
    """
    calls = _Calls(program)
    if not calls.member:
        return program
    draft = Draft(program)
    queues: dict[tuple[int, int], _Queue] = {}
    base = max((channel.id for channel in program.channels), default=-1) + 1
    for op in program.ops():
        queue = queues.setdefault((op.rank, op.lane), _Queue())
        if op.index in calls.member:
            step_lanes = calls.lanes(op.lane)
            group = program.collectives[op.call].group
            steps = calls.steps(op, algorithm)
            writer = _Writer(draft, queue, op, group, step_lanes, (base + op.call, depth))
            writer.write(steps)
        else:
            after: list[int | OldOp] = [*(OldOp(row) for row in op.after), *queue.pending.values()]
            draft.replaced(op.index, [draft.keep(op, after=after)])
            queue.kept, queue.pending = op.index, {}
    return draft.build()


@dataclass
class _Queue:
    """What is known of one old queue so far: its last op that was kept, and what came of the calls since."""

    kept: int = -1
    pending: dict[Lane, int] = field(default_factory=dict)  # last new op on each lane since `kept`
    touched: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # buffer -> per slot, the last call's row

    def touch(self, op: Op, slots_of: Any) -> list[int]:
        """Rows of the earlier calls that used any slot that `op` uses; from now on `op` is the last."""
        earlier: set[int] = set()
        for region in (*op.reads, *op.writes):
            rows = self.touched.setdefault(region.buffer, np.full(slots_of(region.buffer, op.rank), -1))
            earlier.update(np.unique(rows[region.slots()]).tolist())
        for region in (*op.reads, *op.writes):
            self.touched[region.buffer][region.slots()] = op.index
        return sorted(earlier - {-1})


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
        entry = [OldOp(row) for row in (*op.after, *self.queue.touch(op, old.slots_of))]
        if self.queue.kept >= 0:
            entry.append(OldOp(self.queue.kept))
        numbers: list[int] = []
        entered: set[Lane] = set()
        for step in steps or [Step(Kind.nop, (), (), -1)]:
            lane = self._lane(step)
            after: list[int | OldOp] = [numbers[need] for need in step.needs]
            numbers.append(self._add(step, lane, after if lane in entered else [*entry, *after]))
            entered.add(lane)
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
    """The all_reduce calls of a program: who are the members of each, and where their slots may be cut."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.member: dict[int, tuple[int, int]] = {}  # row -> (collective, which call of it)
        self._unit: dict[tuple[int, int], int] = {}
        self._lanes: list[int] = []
        queues: dict[tuple[int, int], list[Op]] = {}
        for op in self._all_reduces():
            queues.setdefault((op.call, op.rank), []).append(op)
        for (call, _), ops in queues.items():
            if len({op.lane for op in ops}) > 1:
                self._refuse(ops[0], "is called from several lanes of one rank")
            self._lanes.extend(op.lane for op in ops[:1] if op.lane not in self._lanes)
            for count, op in enumerate(ops):
                self.member[op.index] = (call, count)
        self._check(queues)

    def steps(self, op: Op, algorithm: Algorithm) -> list[Step]:
        group = self.program.collectives[op.call].group
        write = ALGORITHMS[algorithm] if len(group) > 1 else alone
        return write(group.index(op.rank), len(group), op.reads[0], op.writes[0], self._unit[self.member[op.index]])

    def lanes(self, old: int) -> tuple[Lane, Lane]:
        """The lanes of what comes of calls on lane `old`: plain names for the first such lane."""
        first, taken = self._lanes[0] == old, {lane.name for lane in self.program.lanes}
        suffix = "" if first and not taken & {"send", "recv"} else f"_{self.program.lanes[old].name}"
        return Lane(f"send{suffix}", "net"), Lane(f"recv{suffix}", "net")

    def _all_reduces(self) -> Iterator[Op]:
        col = self.program.columns
        kinds = [collective.kind == "all_reduce" for collective in self.program.collectives]
        rows = np.flatnonzero(col["kind"] == Kind.collective)
        return (self.program.op(int(row)) for row in rows if kinds[col["call"][row]])

    def _check(self, queues: dict[tuple[int, int], list[Op]]) -> None:
        for row, collective in enumerate(self.program.collectives):
            if collective.kind == "all_reduce":
                members = [queues.get((row, rank), []) for rank in collective.group]
                for count in range(max(map(len, members), default=0)):
                    ops = [calls[count] for calls in members if count < len(calls)]
                    self._unit[row, count] = self._unit_of(ops, collective)

    def _unit_of(self, ops: list[Op], collective: Collective) -> int:
        regions = [region for op in ops for region in (*op.reads, *op.writes)]
        if len(ops) != len(collective.group):
            self._refuse(ops[0], f"is called by {len(ops)} of the {len(collective.group)} members")
        if len(regions) != 2 * len(ops) or len({region.num_slots for region in regions}) > 1:
            self._refuse(ops[0], "differs in slots between members, or between source and destination")
        if not all(apart_or_equal(op.reads[0], op.writes[0]) for op in ops):
            self._refuse(ops[0], "has a source and a destination that overlap in part")
        return common_unit(regions)

    def _refuse(self, op: Op, why: str) -> None:
        raise ProgramError(f"op {op.index} 'collective' on rank {op.rank}: this all_reduce {why}", where=op.line)
