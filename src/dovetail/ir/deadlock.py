"""Deadlock in words: who waits for whom when a program can go no further."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.certificate import Fault
from dovetail.ir.parts import RECVS, SENDS, Kind, Op
from dovetail.ir.plain import name_op
from dovetail.ir.program import Program


class Wait(NamedTuple):
    """The head of a queue, what it waits for in words, and the op that would end the wait (None: there is none)."""

    row: int
    why: str
    next: int | None


class Standstill:
    """Where every queue stands when nothing moves. `done`: ops run, by queue; `depths`: None where boundless."""

    def __init__(self, program: Program, done: Sequence[int], depths: Sequence[int] | None) -> None:
        self.program, self.depths = program, depths
        queues = list(program.queues().values())
        self.has_run = np.zeros(program.num_ops, dtype=bool)
        self.queue_of = np.zeros(program.num_ops, dtype=np.int64)
        for number, (rows, count) in enumerate(zip(queues, done, strict=True)):
            self.has_run[rows[:count]] = True
            self.queue_of[rows] = number
        self.heads = {i: int(rows[n]) for i, (rows, n) in enumerate(zip(queues, done, strict=True)) if n < len(rows)}
        kind = program.columns["kind"]
        self.sends = np.isin(kind, [int(k) for k in SENDS])
        self.takes = np.isin(kind, [int(k) for k in RECVS])

    def circle(self) -> list[Wait]:
        """Waits that follow one another to a circle, or to one that nothing ends (then only that one)."""
        chain: dict[int, Wait] = {}
        queue = min(self.heads)
        while queue not in chain:
            wait = self._wait(self.program.op(self.heads[queue]))
            chain[queue] = wait
            if wait.next is None:
                return [wait]
            queue = int(self.queue_of[wait.next])
        queues = list(chain)
        return [chain[q] for q in queues[queues.index(queue) :]]

    def _wait(self, op: Op) -> Wait:
        for row in op.after:
            if not self.has_run[row]:
                return Wait(op.index, f"waits for op {row}", row)
        for wait in (self._for_message(op), self._for_signal(op), self._for_place(op)):
            if wait:
                return wait
        return self._for_member(op)

    def _for_message(self, op: Op) -> Wait | None:
        if op.kind not in RECVS or self._on(op.chan_in, self.sends, "out") > self._on(op.chan_in, self.takes, "in"):
            return None
        row = self._next(self.sends & (self.program.columns["chan_out"] == op.chan_in))
        source = self.program.channels[op.chan_in].src
        text = "waits for a message on" if row is not None else f"rank {source} never sends its message on"
        return Wait(op.index, f"{text} channel {channel_text(self.program, op.chan_in)}", row)

    def _for_signal(self, op: Op) -> Wait | None:
        kind = self.program.columns["kind"]
        if op.kind != Kind.wait:
            return None
        if self._on(op.chan_in, kind == Kind.signal, "out") > self._on(op.chan_in, kind == Kind.wait, "in"):
            return None
        row = self._next((kind == Kind.signal) & (self.program.columns["chan_out"] == op.chan_in))
        source = self.program.channels[op.chan_in].src
        text = "waits for a signal on" if row is not None else f"rank {source} never signals it on"
        return Wait(op.index, f"{text} channel {channel_text(self.program, op.chan_in)}", row)

    def _for_place(self, op: Op) -> Wait | None:
        if op.kind not in SENDS or self.depths is None:
            return None
        if (
            self._on(op.chan_out, self.sends, "out") - self._on(op.chan_out, self.takes, "in")
            < self.depths[op.chan_out]
        ):
            return None
        row = self._next(self.takes & (self.program.columns["chan_in"] == op.chan_out))
        text = f"finds channel {channel_text(self.program, op.chan_out)} full, of depth {self.depths[op.chan_out]}"
        return Wait(op.index, text, row)

    def _for_member(self, op: Op) -> Wait:
        kind, group = self.program.collectives[op.call]
        col = self.program.columns
        calls = (col["kind"] == Kind.collective) & (col["call"] == op.call)
        arrived = Counter(col["rank"][calls & self.has_run].tolist())
        for first in self.heads.values():
            head = self.program.op(first)
            arrived[head.rank] += bool(calls[first] and all(self.has_run[r] for r in head.after))
        late = next(rank for rank in group if arrived[rank] < arrived[op.rank])
        row = self._next(calls & (col["rank"] == late))
        text = f"waits for rank {late} to call {kind}" if row is not None else f"rank {late} never calls this {kind}"
        return Wait(op.index, text, row)

    def _on(self, channel: int, which: NDArray[np.bool_], end: str) -> int:
        return int(np.count_nonzero(which & self.has_run & (self.program.columns[f"chan_{end}"] == channel)))

    def _next(self, which: NDArray[np.bool_]) -> int | None:
        rows = np.flatnonzero(which & ~self.has_run)
        return int(rows[0]) if len(rows) else None


def deadlock_fault(program: Program, done: Sequence[int], depths: Sequence[int] | None) -> Fault:
    """A circle of ops that wait for one another, or one op whose wait nothing ends."""
    waits = Standstill(program, done, depths).circle()
    first = waits[0]
    full = depths is not None and any(" full" in wait.why for wait in waits)
    hint = "declare deeper channels, or receive earlier" if full else "reorder the ops, or add what is waited for"
    if first.next is None:
        traffic = traffic_text(program, program.op(first.row))
        return Fault(f"{name_op(program, first.row)}: {first.why}", (first.row,), traffic, hint)
    found = [f"op {wait.row} {wait.why}" for wait in waits[:6]] + ["..."] * (len(waits) > 6)
    what = f"{name_op(program, first.row)} {first.why}, and so on in a circle of {len(waits)}"
    return Fault(what, tuple(wait.row for wait in waits), "; ".join(found), hint)


def too_shallow(program: Program, done: Sequence[int], least: int) -> Fault:
    """The deadlock at the declared depths, with the depth that would do."""
    fault = deadlock_fault(program, done, [channel.depth for channel in program.channels])
    return fault._replace(hint=f"declare depth {least}, the least that completes on every channel")


def unmatched_fault(program: Program, row: int) -> Fault:
    """A message or signal that nobody takes."""
    op = program.op(row)
    return Fault(
        f"{name_op(program, row)}: nobody takes what it sends, and it would meet the next run",
        (row,),
        traffic_text(program, op),
        f"let rank {program.channels[op.chan_out].dst} take it, or drop this op",
    )


def traffic_text(program: Program, op: Op) -> str | None:
    """`3 signals, 4 waits on channel 1->2`; None for ops without a channel."""
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
