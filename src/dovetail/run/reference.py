"""reference: the NumPy executor in one process, for any legal interleaving. It defines the meaning of a Program."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dovetail.core import RunError
from dovetail.ir import RECVS, SENDS, KernelCall, Kind, Op, Program, Workload, kernel_calls
from dovetail.ir.collectives import COLLECTIVES, OP_COLLECTIVES
from dovetail.run.arrays import Array, Arrays, poison
from dovetail.run.collectives import received
from dovetail.run.memory import Memory, describe
from dovetail.run.reduce import average, check_average, combine

_FUSED = SENDS & RECVS
_ADDS = frozenset({Kind.recv_reduce, Kind.recv_reduce_send, Kind.recv_reduce_copy_send})
# What a lane may wait for: ("op", row), ("members", row), or ("message" | "place" | "signal", channel).
_Event = tuple[str, int]


@dataclass(frozen=True)
class Execution:
    """Result of one interleaving: output buffers and others that post-conditions name (in place: inputs), and the
    rows of ops in the order in which they ran.

    A fused receive and send appears twice, once for each part; a collective where each member joined it.
    """

    outputs: dict[str, list[Array]] = field(repr=False)
    interleaving: NDArray[np.int64] = field(repr=False)


def execute(
    program: Program,
    arrays: Arrays,
    kernels: Mapping[str, KernelCall] | None = None,
    seed: int | None = None,
    *,
    workload: Workload | None = None,
    reduce_op: str = "sum",
    interleaving: Sequence[int] | NDArray[np.int64] | None = None,
) -> Execution:
    """Run `program` on copies of `arrays` (buffer -> array of each rank, axis 0 is slots) and return its outputs.

    Scratch and output buffers that `arrays` lacks take their shape and dtype from `workload`; both start poisoned.
    Arrays are flat if `workload` gives each slot its own size. Lanes alternate; with `seed`, in random order,
    equal for equal seeds; with `interleaving`, in the order that an Execution recorded. `reduce_op`: see
    `run.reduce`. `kernels` adds to those of `workload`.

    Raises RunError, naming the op, for a stall, an access outside a buffer, a message of another size than its receive,
    or a missing kernel.
    """
    memory = Memory(program, arrays, workload)
    for buffer in program.buffers:
        check_average(reduce_op, memory.buffers[buffer.name][0].dtype)
    state = _State(program, memory, kernel_calls(workload, kernels), reduce_op)
    with np.errstate(all="ignore"):
        if interleaving is None:
            _take_turns(state, seed)
        else:
            _replay(state, interleaving)
    state.require_done()
    if reduce_op == "avg":
        for buffer in program.buffers:
            for rank, array in enumerate(memory.buffers[buffer.name]):
                average(program, workload, buffer.name, rank, array)
    asked = {post.region.buffer for post in program.posts}
    outputs = {b.name: memory.buffers[b.name] for b in program.buffers if b.role == "output" or b.name in asked}
    return Execution(outputs, np.array(state.ran, dtype=np.int64))


def _take_turns(state: _State, seed: int | None) -> None:
    """Step lanes until none can continue: round robin, or in random order by `seed`. Blocked lanes are skipped."""
    rng = None if seed is None else np.random.default_rng(seed)
    ready, turn = list(range(len(state.queues))), 0
    parked: dict[_Event, list[int]] = {}
    while ready:
        at = turn % len(ready) if rng is None else int(rng.integers(len(ready)))
        queue = ready[at]
        if state.head(queue) is None:
            ready.pop(at)
        elif (block := state.blocked(queue)) is not None:
            parked.setdefault(block, []).append(ready.pop(at))
        else:
            for event in state.step(queue):
                ready.extend(parked.pop(event, ()))
            at += 1
        turn = at


def _replay(state: _State, rows: Sequence[int] | NDArray[np.int64]) -> None:
    """Run ops in a recorded order. Raises RunError at the first op that cannot run there."""
    queue_of = {int(row): queue for queue, members in enumerate(state.queues) for row in members}
    for row in map(int, rows):
        queue = queue_of.get(row)
        op = None if queue is None else state.head(queue)
        if queue is None or op is None or op.index != row or state.blocked(queue) is not None:
            raise RunError(f"op {row} cannot run at this place of the interleaving")
        state.step(queue)


class _State:
    """The state of a run: each lane's position, memory, and messages in flight."""

    def __init__(self, program: Program, memory: Memory, kernels: Mapping[str, KernelCall], op: str) -> None:
        self.program, self.memory, self.kernels, self.reduce_op = program, memory, kernels, op
        self.queues = list(program.queues().values())
        self.ran: list[int] = []
        self._ops = list(program.ops())
        self._queue_of = {(op.rank, op.lane): -1 for op in self._ops}
        self._queue_of.update({key: queue for queue, key in enumerate(program.queues())})
        self._place = [0] * len(self.queues)
        self._done = bytearray(program.num_ops)
        self._fifos: list[deque[Array]] = [deque() for _ in program.channels]
        self._signals = [0] * len(program.channels)
        self._to_send: dict[int, Array] = {}  # queue -> what a fused op received and must send on
        self._joined: dict[tuple[int, int], dict[int, Op]] = {}  # (collective, k-th call) -> rank -> op
        self._num_calls: dict[tuple[int, int], int] = {}  # (collective, rank) -> calls so far
        self._waiting: set[int] = set()  # collective ops that joined and have not ended

    def head(self, queue: int) -> Op | None:
        """Return the next op of lane `queue`, or None at its end."""
        rows, place = self.queues[queue], self._place[queue]
        return self._ops[rows[place]] if place < len(rows) else None

    def blocked(self, queue: int) -> _Event | None:
        """Return what lane `queue`, which is not at its end, waits for; None if its next step may run now."""
        op = self.head(queue)
        assert op is not None
        sending = op.kind == Kind.send or queue in self._to_send
        if queue not in self._to_send:
            for row in op.after:
                if not self._done[row]:
                    return ("op", row)
        if op.index in self._waiting:
            return ("members", op.index)
        if sending:
            depth = self.program.channels[op.chan_out].depth
            return ("place", op.chan_out) if len(self._fifos[op.chan_out]) >= depth else None
        if op.kind in RECVS and not self._fifos[op.chan_in]:
            return ("message", op.chan_in)
        if op.kind == Kind.wait and not self._signals[op.chan_in]:
            return ("signal", op.chan_in)
        return None

    def step(self, queue: int) -> list[_Event]:
        """Run the next step of lane `queue`; return the events that others may wait for."""
        op = self.head(queue)
        assert op is not None
        self.ran.append(op.index)
        if op.kind == Kind.collective:
            return self._join(op)
        if op.kind == Kind.send or queue in self._to_send:
            message = self._to_send.pop(queue, None)
            self._fifos[op.chan_out].append(self._source(op).copy() if message is None else message)
            return [("message", op.chan_out), *self._end(op)]
        if op.kind in RECVS:
            message = self._receive(op)
            if op.kind not in _FUSED:
                return [("place", op.chan_in), *self._end(op)]
            self._to_send[queue] = message
            return [("place", op.chan_in)]
        return [*self._local(op), *self._end(op)]

    def require_done(self) -> None:
        """Raise RunError, with what each lane waits for, if a lane is not at its end."""
        stuck = [queue for queue in range(len(self.queues)) if self.head(queue) is not None]
        if stuck:
            waits = [self._wait_text(queue) for queue in stuck[:16]]
            waits += [f"and {len(stuck) - 16} more lanes"] if len(stuck) > 16 else []
            op = self.head(stuck[0])
            raise RunError(
                "the run stalls: no lane can continue",
                where=op.line if op else None,
                found="\n              ".join(waits),
                hint="verify shows the shortest schedule that stalls",
            )

    def _wait_text(self, queue: int) -> str:
        op = self.head(queue)
        assert op is not None
        name = f"{describe(op)} (lane {self.program.lanes[op.lane].name})"
        what, number = self.blocked(queue) or ("nothing", -1)
        if what == "op":
            return f"{name} waits for {describe(self._ops[number])}"
        if what == "members":
            group = self.program.collectives[op.call].group
            here = next(ops for ops in self._joined.values() if ops.get(op.rank) is op)
            return f"{name} waits for ranks {', '.join(str(rank) for rank in group if rank not in here)}"
        if what == "nothing":
            return f"{name} could run"
        channel = self.program.channels[number]
        return f"{name} waits for a {what} on channel {channel.src}->{channel.dst} {channel.id}"

    def _end(self, op: Op) -> list[_Event]:
        self._done[op.index] = 1
        self._place[self._queue_of[op.rank, op.lane]] += 1
        return [("op", op.index)]

    def _source(self, op: Op) -> Array:
        return self.memory.read(op, op.reads[0])

    def _receive(self, op: Op) -> Array:
        """Receive the next message; reduce and store it by the op's kind. Return what a fused op forwards."""
        message = self._fifos[op.chan_in].popleft()
        if op.kind in _ADDS:
            source = self._source(op)
            if source.shape != message.shape:
                found = f"{list(message.shape)} arrives, {list(source.shape)} to add it to"
                raise RunError(f"{describe(op)}: the message has another size", where=op.line, found=found)
            message = combine(self.reduce_op, source, message)
        for region in op.writes:
            self.memory.write(op, region, message)
        return message

    def _local(self, op: Op) -> list[_Event]:
        """Run an op without messages: a copy, reduction, put, get, signal, wait or computation."""
        if op.kind == Kind.copy:
            self.memory.write(op, op.writes[0], self._source(op).copy())
        elif op.kind == Kind.reduce:
            held = self.memory.read(op, op.writes[0])
            self.memory.write(op, op.writes[0], combine(self.reduce_op, held, self._source(op)))
        elif op.kind == Kind.put:
            self.memory.write(op, op.writes[0], self._source(op).copy(), self.program.channels[op.chan_out].dst)
        elif op.kind == Kind.get:
            source = self.memory.read(op, op.reads[0], self.program.channels[op.chan_in].src)
            self.memory.write(op, op.writes[0], source.copy())
        elif op.kind == Kind.signal:
            self._signals[op.chan_out] += 1
            return [("signal", op.chan_out)]
        elif op.kind == Kind.wait:
            self._signals[op.chan_in] -= 1
        elif op.kind == Kind.compute:
            self._compute(op)
        return []

    def _compute(self, op: Op) -> None:
        name, _, accumulate = self.program.kernels[op.call]
        if name not in self.kernels:
            found = f"kernels {', '.join(sorted(self.kernels)) or 'none'}"
            hint = "give the Workload its form, or name it in `kernels`"
            raise RunError(f"{describe(op)}: no kernel '{name}'", where=op.line, found=found, hint=hint)
        before = [self.memory.read(op, region) for region in op.writes]
        results = [np.empty_like(array) for array in before]
        for result in results:
            poison(result)
        self.kernels[name]([self.memory.read(op, region) for region in op.reads], results)
        for region, old, new in zip(op.writes, before, results, strict=True):
            self.memory.write(op, region, old + new if accumulate else new)

    def _join(self, op: Op) -> list[_Event]:
        """Let a member join a collective; the last one executes it for all."""
        count = self._num_calls[op.call, op.rank] = self._num_calls.get((op.call, op.rank), -1) + 1
        members = self._joined.setdefault((op.call, count), {})
        members[op.rank] = op
        self._waiting.add(op.index)
        kind, group = self.program.collectives[op.call]
        if len(members) < len(group):
            return []
        if kind not in OP_COLLECTIVES:
            raise RunError(f"{describe(op)}: no collective '{kind}'", where=op.line)
        ops = [members[rank] for rank in group]
        wanted = [sum(len(self.memory.read(member, region)) for region in member.writes) for member in ops]
        is_cut = COLLECTIVES[kind].exchanges
        sources = [self.memory.parts(member, len(ops)) if is_cut else self._brought(member) for member in ops]
        for member, result in zip(ops, received(kind, sources, wanted, self.reduce_op), strict=True):
            start = 0
            for region in member.writes:
                end = start + len(self.memory.read(member, region))
                self.memory.write(member, region, result[start:end] if len(member.writes) > 1 else result)
                start = end
        self._waiting.difference_update(member.index for member in ops)
        return [event for member in ops for event in (("members", member.index), *self._end(member))]

    def _brought(self, op: Op) -> Array:
        """A member's input to a collective."""
        return self._source(op).copy() if op.reads else np.empty(0)
