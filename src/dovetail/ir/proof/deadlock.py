"""deadlock: describe who waits for whom when a program cannot continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from dovetail.ir.op_lists import name_op
from dovetail.ir.program import Program
from dovetail.ir.proof.certificate import Fault
from dovetail.ir.types import RECVS, SENDS, Kind, Op

_SHORT = 12  # waits in a cycle that is short enough to be shown whole
_SHOWN = 6  # waits shown in one line


class Wait(NamedTuple):
    """An op that a queue is stuck at, what it waits for, and the op that would end the wait (None: none)."""

    row: int
    why: str
    next: int | None


class Standstill:
    """A program in which no op can run. `done`: ops run, by queue; `depths`: of the channels (None: unlimited)."""

    def __init__(self, program: Program, done: Sequence[int], depths: Sequence[int] | None) -> None:
        self.program, self.depths = program, depths
        queues = list(program.queues().values())
        self.has_run = np.zeros(program.num_ops, dtype=bool)
        self.queue_of = np.zeros(program.num_ops, dtype=np.int64)
        for number, (rows, count) in enumerate(zip(queues, done, strict=True)):
            self.has_run[rows[:count]] = True
            self.queue_of[rows] = number
        self.heads = {i: int(rows[n]) for i, (rows, n) in enumerate(zip(queues, done, strict=True)) if n < len(rows)}
        self.sent, self.takes = _Uses(self, SENDS, "chan_out"), _Uses(self, RECVS, "chan_in")
        self.signals, self.waits = _Uses(self, {Kind.signal}, "chan_out"), _Uses(self, {Kind.wait}, "chan_in")
        self.arrived: Counter[tuple[int, int]] = Counter()  # (call, rank) -> calls that this rank has reached
        self.coming: dict[tuple[int, int], int] = {}  # (call, rank) -> its first op that has not run
        self._note_calls()

    def circle(self) -> list[Wait]:
        """Return waits of which each waits for the next and the last for the first; or one wait that nothing would end.

        Returns the first cycle found of at most _SHORT waits, else the shortest one.
        """
        chain: dict[int, Wait] = {}
        found: list[list[Wait]] = []
        for head in sorted(self.heads):
            queue, path = head, dict[int, None]()
            while queue not in chain:
                path[queue] = None
                chain[queue] = wait = self._wait(self.program.op(self.heads[queue]))
                if wait.next is None:
                    return [wait]
                queue = int(self.queue_of[wait.next])
            if queue in path:
                queues = list(path)
                found.append([chain[q] for q in queues[queues.index(queue) :]])
                if len(found[-1]) <= _SHORT:
                    return found[-1]
        return min(found, key=len)

    def _note_calls(self) -> None:
        col = self.program.columns
        rows = np.flatnonzero(col["kind"] == Kind.collective)
        for row, call, rank in zip(rows.tolist(), col["call"][rows].tolist(), col["rank"][rows].tolist(), strict=True):
            if self.has_run[row]:
                self.arrived[call, rank] += 1
            else:
                self.coming.setdefault((call, rank), row)
        for row in self.heads.values():
            op = self.program.op(row)
            if op.kind == Kind.collective and all(self.has_run[dep] for dep in op.after):
                self.arrived[op.call, op.rank] += 1

    def _wait(self, op: Op) -> Wait:
        for row in op.after:
            if not self.has_run[row]:
                return Wait(op.index, f"waits for op {row}", row)
        if op.kind in RECVS and self.sent.count[op.chan_in] == self.takes.count[op.chan_in]:
            return self._for_giver(op, self.sent, "message", "never sends its message")
        if op.kind == Kind.wait and self.signals.count[op.chan_in] == self.waits.count[op.chan_in]:
            return self._for_giver(op, self.signals, "signal", "never signals it")
        if op.kind == Kind.collective:
            return self._for_member(op)
        assert self.depths is not None, f"op {op.index} could run"
        text = f"finds channel {channel_text(self.program, op.chan_out)} full, of depth {self.depths[op.chan_out]}"
        return Wait(op.index, text, self.takes.next(op.chan_out))

    def _for_giver(self, op: Op, givers: _Uses, what: str, never: str) -> Wait:
        row = givers.next(op.chan_in)
        source = self.program.channels[op.chan_in].src
        text = f"waits for a {what}" if row is not None else f"rank {source} {never}"
        return Wait(op.index, f"{text} on channel {channel_text(self.program, op.chan_in)}", row)

    def _for_member(self, op: Op) -> Wait:
        kind, group = self.program.collectives[op.call]
        late = next(rank for rank in group if self.arrived[op.call, rank] < self.arrived[op.call, op.rank])
        row = self.coming.get((op.call, late))
        text = f"waits for rank {late} to call {kind}" if row is not None else f"rank {late} never calls this {kind}"
        return Wait(op.index, text, row)


class _Uses:
    """For each channel, of the ops of some kinds: how many have run, and the first that has not."""

    def __init__(self, still: Standstill, kinds: Collection[Kind], end: str) -> None:
        col = still.program.columns
        which = np.isin(col["kind"], [int(kind) for kind in kinds])
        self.count = np.bincount(col[end][which & still.has_run], minlength=len(still.program.channels))
        rows = np.flatnonzero(which & ~still.has_run)[::-1]
        self._next = np.full(len(still.program.channels), -1, dtype=np.int64)
        self._next[col[end][rows]] = rows  # in reverse, so that the first row of each channel is written last

    def next(self, channel: int) -> int | None:
        row = int(self._next[channel])
        return row if row >= 0 else None


def deadlock_fault(program: Program, done: Sequence[int], depths: Sequence[int] | None) -> Fault:
    """Describe a cycle of ops that wait for one another, or an op that would wait forever."""
    waits = Standstill(program, done, depths).circle()
    first = waits[0]
    full = depths is not None and any(" full" in wait.why for wait in waits)
    hint = "declare deeper channels, or receive earlier" if full else "reorder the ops, or add a missing op"
    hint += ": no depth of the channels helps" if depths is None and program.channels else ""
    if first.next is None:
        traffic = traffic_text(program, program.op(first.row))
        return Fault(f"{name_op(program, first.row)}: {first.why}", (first.row,), traffic, hint)
    blamed = _odd_ones(program, waits)
    shown = [wait for wait in waits if len(waits) <= _SHOWN or wait.row in blamed[:_SHOWN]]
    found = [f"op {wait.row} {wait.why}" for wait in shown] + ["..."] * (len(waits) > len(shown))
    circle = f"and so on in a circle of {len(waits)}" if len(waits) > 1 else "which is itself"
    what = f"{name_op(program, first.row)} {first.why}, {circle}"
    return Fault(what, tuple(wait.row for wait in waits), "; ".join(found), hint, blamed)


def _odd_ones(program: Program, waits: Sequence[Wait]) -> tuple[int, ...]:
    """Return the rows of a cycle: its first, then the others, those whose way of waiting is rarest first."""
    ways = [(int(program.columns["kind"][wait.row]), wait.why.split(" ")[0], " full" in wait.why) for wait in waits]
    number = Counter(ways)
    rest = sorted(range(1, len(waits)), key=lambda at: number[ways[at]])
    return tuple(waits[at].row for at in (0, *rest))


def too_shallow(program: Program, done: Sequence[int], least: int, unmatched: int | None) -> Fault:
    """Describe the deadlock at the declared depths, with the depth that suffices, and what is wrong even then."""
    fault = deadlock_fault(program, done, [channel.depth for channel in program.channels])
    hint = f"declare depth {least}, the least that completes on every channel"
    if unmatched is not None:
        hint += f"; and nobody takes what op {unmatched} sends{_at_line(program, unmatched)}"
    return fault._replace(hint=hint)


def _at_line(program: Program, row: int) -> str:
    line = program.op(row).line
    return f" ({line})" if line else ""


def unmatched_fault(program: Program, row: int) -> Fault:
    """Describe a message or signal that no op receives."""
    op = program.op(row)
    return Fault(
        f"{name_op(program, row)}: no op receives what it sends, so that the next run would receive it",
        (row,),
        traffic_text(program, op),
        f"let rank {program.channels[op.chan_out].dst} receive it, or remove this op",
    )


def traffic_text(program: Program, op: Op) -> str | None:
    """Return `3 signals, 4 waits on channel 1->2`; None for ops without a channel."""
    col = program.columns
    signals = op.kind in (Kind.signal, Kind.wait)
    channel = op.chan_in if op.kind in (Kind.wait, *RECVS) else op.chan_out
    if channel < 0:
        return None
    gives, takes = ({Kind.signal}, {Kind.wait}) if signals else (SENDS, RECVS)
    given = np.count_nonzero(np.isin(col["kind"], [int(k) for k in gives]) & (col["chan_out"] == channel))
    taken = np.count_nonzero(np.isin(col["kind"], [int(k) for k in takes]) & (col["chan_in"] == channel))
    words = ("signals", "waits") if signals else ("sends", "receives")
    return f"{given} {words[0]}, {taken} {words[1]} on channel {channel_text(program, channel)}"


def channel_text(program: Program, row: int) -> str:
    channel = program.channels[row]
    return f"{channel.src}->{channel.dst}" + (f":{channel.id}" if channel.id else "")
