"""inline_collectives: replace the library's collectives by the sends and receives of an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Buffer, Channel, Kind, Lane, Op, Program, Region
from dovetail.passes.collective_calls import Call, Make, Place, find_calls
from dovetail.passes.draft import Draft, OldOp
from dovetail.passes.member_steps import Step


def inline_collectives(program: Program, make: Make, depth: int = 8, ranks: range | None = None) -> Program:
    """Replace every collective for which `make` has an algorithm by that algorithm's messages.

    New lanes are `send` and `recv`; if a rank has several peers, also `send1`, `recv1`, … for the others. Copies and
    reduces are on `recv`, or on `local` if there are several receiving lanes. Calls that touch the same slots keep
    their order; other calls may now overlap, as intended. The algorithm's chunks are mapped to the call's regions;
    if these do not divide evenly, chunks differ by one slot, or one block. Scratch of the algorithm is a buffer of the
    same name, with separate slots for each call.

    `make(kind, group size, in place)` returns the algorithm: a Program of copies, reduces and messages, with one buffer
    `input` and one `output` (in place: only the input); None keeps the library's call. New channels hold `depth`
    messages. `ranks`: the ranks whose ops are wanted; default: all. Raises ProgramError if members disagree about
    slots, if a rank makes one collective's calls from two lanes, or if the algorithm does not fit.

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
    >>> exchange = parse('''
    ... program exchange ranks 2
    ... buffer input input 1
    ... buffer output output 1
    ... lane net net
    ... channel 0->1 0 depth 1
    ... channel 1->0 0 depth 1
    ... rank 0 lane net
    ...   send input[0:1] to 1
    ...   recv_reduce from 1 input[0:1] -> output[0:1]
    ... rank 1 lane net
    ...   send input[0:1] to 0
    ...   recv_reduce from 0 input[0:1] -> output[0:1]
    ... ''')
    >>> print(to_text(inline_collectives(before, lambda kind, size, in_place: exchange)), end="")
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
    calls = find_calls(program, make)
    if not calls:
        return program
    draft, scratch = Draft(program), _Scratch(program)
    lanes, channels = _new_lanes(program, calls), _first_channels(program, calls)
    draft.lanes += [lane for named in lanes.values() for lane in named.values()]
    queues: dict[tuple[int, int], _Queue] = {}
    for op in (op for op in program.ops() if ranks is None or op.rank in ranks):
        queue = queues.setdefault((op.rank, op.lane), _Queue())
        if op.index in calls:
            call, member = calls[op.index]
            places = {**call.places(member), **scratch.places(call, member)}
            writer = _Writer(draft, queue, op, program.collectives[op.call].group, places, lanes[op.lane])
            writer.write(call, member, (channels[op.call], depth))
        else:
            after: list[int | OldOp] = [*(OldOp(row) for row in op.after), *queue.pending.values()]
            draft.replaced(op.index, [draft.keep(op, after=after)])
            queue.waits.append(OldOp(op.index))
            queue.pending = {}
    draft.buffers += scratch.buffers()
    return draft.build()


@dataclass
class _Queue:
    """The state of one old queue, to keep its order among the lanes that replace it."""

    waits: list[OldOp] = field(default_factory=list)  # what the queue waits for, including its own kept ops
    served: dict[Lane, int] = field(default_factory=dict)  # how many of `waits` each new lane has waited for
    pending: dict[Lane, int] = field(default_factory=dict)  # last new op on each lane since the last kept op
    touched: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # buffer -> per slot, the last call's row

    def touch(self, op: Op, slots_of: Callable[[str, int], int]) -> list[int]:
        """Return rows of the last calls that used the slots of `op`, and make `op` their last user."""
        earlier: set[int] = set()
        for region in (*op.reads, *op.writes):
            rows = self.touched.setdefault(region.buffer, np.full(slots_of(region.buffer, op.rank), -1))
            found = rows[region.slots()]
            alike = len(found) > 0 and bool((found == found[0]).all())  # the usual case
            earlier.update([int(found[0])] if alike else np.unique(found).tolist())
        for region in (*op.reads, *op.writes):
            self.touched[region.buffer][region.slots()] = op.index
        return sorted(earlier - {-1})

    def unserved(self, lane: Lane) -> list[OldOp]:
        """Return what the next op on `lane` must wait for because no earlier op of that lane did."""
        start = self.served.get(lane, 0)
        self.served[lane] = len(self.waits)
        return self.waits[start:]


class _Writer:
    """Adds the steps of one member of a call to the draft."""

    def __init__(
        self,
        draft: Draft,
        queue: _Queue,
        op: Op,
        group: tuple[int, ...],
        places: Mapping[str, Place],
        lanes: Mapping[str, Lane],
    ) -> None:
        self.draft, self.queue, self.op, self.group, self.places = draft, queue, op, group, places
        self.own, self.lanes = draft.program.lanes[op.lane], lanes if len(group) > 1 else {}
        self._numbers: list[int] = []  # of all added ops
        self._last: list[dict[Lane, int]] = []  # after each step, the last op on each lane
        self._owed: dict[Lane, list[int]] = {}  # what the next op must wait for in place of steps without slots

    def write(self, call: Call, member: int, channel: tuple[int, int]) -> None:
        """Add all steps of a member. `channel`: the id that replaces the algorithm's 0, and the depth."""
        op, old = self.op, self.draft.program
        self.queue.waits += [OldOp(row) for row in (*op.after, *self.queue.touch(op, old.slots_of))]
        copied, steps = call.first_copy(member), call.algorithm.steps[member]
        if copied is not None:
            lane = self._lane("recv")
            first = self._add(Kind.copy, lane, [copied[0]], [copied[1]])
            self._owed = {other: [first] for other in {self._lane(step.queue) for step in steps} - {lane}}
        for step in steps:
            self._step(step, steps, *channel)
        if not self._numbers:
            self._add(Kind.nop, old.lanes[op.lane], [], [])
        self.draft.replaced(op.index, self._numbers, list(self.queue.pending.values()))

    def _lane(self, queue: str) -> Lane:
        return self.lanes.get(queue, self.own)

    def _step(self, step: Step, steps: Sequence[Step], first_id: int, depth: int) -> None:
        lane = self._lane(step.queue)
        for needed in step.needs:
            number = self._last[needed].get(self._lane(steps[needed].queue))
            self._owed.setdefault(lane, []).extend([] if number is None else [number])
        reads, writes = ([self.places[part.buffer].of(part) for part in side] for side in (step.reads, step.writes))
        if (reads or writes)[0].num_slots:
            ends = None
            if step.peer >= 0:
                ranks = self.op.rank, self.group[step.peer]
                ends = Channel(*(ranks if step.kind == Kind.send else ranks[::-1]), first_id + step.channel, depth)
            self._add(step.kind, lane, reads, writes, ends)
        self._last.append(dict(self.queue.pending))

    def _add(
        self, kind: Kind, lane: Lane, reads: list[Region], writes: list[Region], channel: Channel | None = None
    ) -> int:
        after: list[int | OldOp] = [*self.queue.unserved(lane), *self._owed.pop(lane, ())]
        number = self.draft.add(
            kind,
            self.op.rank,
            lane,
            reads=reads,
            writes=writes,
            chan_in=None if kind == Kind.send else channel,
            chan_out=channel if kind == Kind.send else None,
            after=after,
            line=self.op.line,
        )
        self._numbers.append(number)
        self.queue.pending[lane] = number
        return number


def _new_lanes(program: Program, calls: Mapping[int, tuple[Call, int]]) -> dict[int, dict[str, Lane]]:
    """New lanes by lane that makes calls and by queue of its algorithms. The first lane's have no suffix, if free."""
    names, queues = [lane.name for lane in program.lanes], dict[int, set[str]]()
    for row, (call, member) in sorted(calls.items()):
        used = queues.setdefault(int(program.columns["lane"][row]), {"send", "recv"})
        used.update(step.queue for step in call.algorithm.steps[member])
    found: dict[int, dict[str, Lane]] = {}
    for old, used in queues.items():
        suffix = f"_{names[old]}" if found or used & {*names} else ""
        order = sorted(used, key=lambda queue: (queue == "local", not queue.startswith("send"), len(queue), queue))
        found[old] = {queue: Lane(f"{queue}{suffix}", "net") for queue in order}
    return found


def _first_channels(program: Program, calls: Mapping[int, tuple[Call, int]]) -> list[int]:
    """For each row of `collectives`, the channel id that replaces the algorithm's 0, so that no id is used twice."""
    ids = [1] * len(program.collectives)
    for call, _ in calls.values():
        row = call.ops[0].call
        ids[row] = max([ids[row], *(channel.id + 1 for channel in call.algorithm.program.channels)])
    free = max((channel.id for channel in program.channels), default=-1) + 1
    return list(accumulate(ids, initial=free))[:-1]


class _Scratch:
    """Scratch buffers of algorithms, with separate slots for each call."""

    def __init__(self, program: Program) -> None:
        self._num_ranks, self._taken = program.num_ranks, {buffer.name for buffer in program.buffers}
        self._slots: dict[str, list[int]] = {}  # by rank
        self._sizes: dict[int, Mapping[str, tuple[NDArray[np.int64], ...]]] = {}  # by the call's first row

    def places(self, call: Call, member: int) -> Mapping[str, Place]:
        first, rank = call.ops[0].index, call.ops[member].rank
        if first not in self._sizes:
            self._sizes[first] = call.scratch_sizes()
        found = {}
        for name, sizes in self._sizes[first].items():
            cuts = (0, *np.cumsum(sizes[member]).tolist())
            slots = self._slots.setdefault(name, [0] * self._num_ranks)
            found[name] = Place(Region(self._name(name), slots[rank], cuts[-1]), cuts)
            slots[rank] += cuts[-1]
        return found

    def buffers(self) -> list[Buffer]:
        return [Buffer(self._name(name), "scratch", tuple(slots)) for name, slots in self._slots.items()]

    def _name(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        return name
