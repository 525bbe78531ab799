"""greedy: run a program once, each op as early as possible. Lanes are deterministic and channels FIFO, so this one run
decides for every timing whether the program deadlocks.

An op runs when the op before it in its lane and all that it waits for have run. A fused op receives and sends in one
step, both or neither, as the runtimes' interpreters do: a ring of `recv_copy_send` needs channels of depth 2.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.ir.op_lists import OpLists
from dovetail.ir.types import RECVS, SENDS, Kind, Op


@dataclass
class Run:
    """The record of a greedy run."""

    order: list[int] = field(default_factory=list)
    matched: dict[int, int] = field(default_factory=dict)  # op that receives or waits -> op that sent or signalled
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)  # op of a collective -> all members' ops
    calls: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))  # (call, rank) -> ops
    done: list[int] = field(default_factory=list)  # for each queue, the number of ops run
    depth: int = 1  # channel depth reached so far; if complete, the least that suffices
    complete: bool = False
    unmatched: list[int] = field(default_factory=list)  # ops whose message or signal was never received


class Greedy:
    """Run a program once: with channels of these depths, or (without `depths`) to find the least uniform depth."""

    def __init__(self, lists: OpLists, depths: Sequence[int] | None = None) -> None:
        self.lists, self.depths = lists, depths
        self.run = Run(done=[0] * len(lists.queues))
        self.has_run = [False] * len(lists.ops)
        channels = len(lists.program.channels)
        self.messages: list[deque[int]] = [deque() for _ in range(channels)]
        self.signals: list[deque[int]] = [deque() for _ in range(channels)]
        self.sleepers: dict[tuple[str, int], list[int]] = defaultdict(list)  # event -> queues that wait for it
        self.full: set[int] = set()  # queues asleep on a full channel
        self.ready: deque[int] = deque(range(len(lists.queues)))
        self.is_ready = [True] * len(lists.queues)

    def __call__(self) -> Run:
        """Run the program as far as possible; return the record."""
        while True:
            while self.ready:
                queue = self.ready.popleft()
                self.is_ready[queue] = False
                self._advance(queue)
            if not self.full or self.depths is not None:
                break
            self.run.depth += 1
            for queue in sorted(self.full):
                self._wake(queue)
            self.sleepers = defaultdict(list, {key: who for key, who in self.sleepers.items() if key[0] != "place"})
        self.run.complete = len(self.run.order) == len(self.lists.ops)
        for waiting in (self.messages, self.signals):
            self.run.unmatched += [op for channel in waiting for op in channel]
        return self.run

    def _advance(self, queue: int) -> None:
        rows = self.lists.queues[queue]
        while self.run.done[queue] < len(rows):
            op = self.lists.ops[rows[self.run.done[queue]]]
            event = self._missing(op)
            if event is not None:
                self.sleepers[event].append(queue)
                if event[0] == "place":
                    self.full.add(queue)
                return
            if op.kind != Kind.collective:
                self._finish(op)
            elif not self._join(op):
                return

    def _missing(self, op: Op) -> tuple[str, int] | None:
        """Return the event that an op still waits for, or None."""
        for row in op.after:
            if not self.has_run[row]:
                return ("op", row)
        if op.kind in RECVS and not self.messages[op.chan_in]:
            return ("message", op.chan_in)
        if op.kind == Kind.wait and not self.signals[op.chan_in]:
            return ("signal", op.chan_in)
        if op.kind in SENDS:
            depth = self.run.depth if self.depths is None else self.depths[op.chan_out]
            if len(self.messages[op.chan_out]) >= depth:
                return ("place", op.chan_out)
        return None

    def _finish(self, op: Op) -> None:
        if op.kind in RECVS:
            self.run.matched[op.index] = self.messages[op.chan_in].popleft()
            self._happened("place", op.chan_in)
        elif op.kind == Kind.wait:
            self.run.matched[op.index] = self.signals[op.chan_in].popleft()
        if op.kind in SENDS:
            self.messages[op.chan_out].append(op.index)
            self._happened("message", op.chan_out)
        elif op.kind == Kind.signal:
            self.signals[op.chan_out].append(op.index)
            self._happened("signal", op.chan_out)
        self._ran(op.index)

    def _ran(self, row: int) -> None:
        self.has_run[row] = True
        self.run.order.append(row)
        self.run.done[self.lists.queue_of[row]] += 1
        self._happened("op", row)

    def _join(self, op: Op) -> bool:
        """Record that a member has reached its call. If it is the last one, run the ops of all members."""
        calls = self.run.calls
        calls[op.call, op.rank].append(op.index)
        number = len(calls[op.call, op.rank])
        group = self.lists.program.collectives[op.call].group
        if any(len(calls[op.call, rank]) < number for rank in group):
            return False
        members = tuple(calls[op.call, rank][number - 1] for rank in group)
        for row in members:
            self.run.groups[row] = members
            self._ran(row)
            if row != op.index:
                self._wake(self.lists.queue_of[row])
        return True

    def _happened(self, event: str, row: int) -> None:
        for queue in self.sleepers.pop((event, row), ()):
            self._wake(queue)

    def _wake(self, queue: int) -> None:
        self.full.discard(queue)
        if not self.is_ready[queue]:
            self.is_ready[queue] = True
            self.ready.append(queue)
