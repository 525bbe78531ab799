"""explain: describe a plan's fault in terms of its own ops, chunks and channels instead of rows and slots."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from dovetail.collective.mscclpp.columns import Launched
from dovetail.collective.mscclpp.hints import race_hint
from dovetail.collective.mscclpp.launch import KERNEL
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.names import Names
from dovetail.collective.mscclpp.steps import PACKET_IDS, Row
from dovetail.ir import Certificate, Check, Kind

ONLY_PACKETS = "only packets order the two, and packets order no other writes"  # a race's message
_SHOWN = 12
_REORDER = "reorder the ops: let one of these signal, or write its packets, before it waits"
_WRONG = re.compile(r"(\w+)\[(\d+)\] of rank (\d+)")


def explain(verdict: Certificate, lowering: Lowering, launched: Launched) -> Certificate:
    """Return the verdict on a launched plan, with failed checks described in terms of the plan."""
    words = _Explainer(lowering, launched)
    ways: dict[str, Callable[[Check], Check]] = {
        "bounds": words.bounds,
        "deadlock": words.deadlock,
        "races": words.races,
        "result": words.result,
    }
    checks = {
        name: ways[name](check)
        if name in ways and not check.ok and not check.message.startswith("not reached")
        else check
        for name, check in verdict.checks.items()
    }
    return replace(verdict, checks=checks)


def clash(lowering: Lowering, launched: Launched, first: int, second: int) -> str:
    """Return what two ops do to a chunk, in terms of the plan."""
    return _Explainer(lowering, launched).clash(first, second) or ""


class _Explainer:
    def __init__(self, lowering: Lowering, launched: Launched) -> None:
        self.lowering, self.launched, self.names = lowering, launched, Names(lowering, launched)

    def row(self, index: int) -> Row:
        return self.launched.row(index)

    def _check(self, check: Check, blamed: int | None, message: str, found: str | None, hint: str | None) -> Check:
        schedule = tuple(self.names.line(index) for index in check.ops[:_SHOWN])
        if len(check.ops) > _SHOWN:
            schedule = (*schedule, f"... and {len(check.ops) - _SHOWN} more")
        where = self.row(blamed).line if blamed is not None else self.lowering.document.place
        return Check(False, message, check.ops, where, found, hint, schedule)

    def bounds(self, check: Check) -> Check:
        if not check.ops:
            return replace(check, message=self.names.chunks(check.message), where=self.lowering.document.place)
        index = check.ops[0]
        for touch in self.names.touches(index):
            size = self.launched.program.slots_of(touch.region.buffer, touch.rank)
            if touch.region.offset + touch.region.count > size:
                verb = "writes" if touch.writes else "reads"
                last = max(touch.region.offset + touch.region.count - 1, touch.region.offset)
                chunk = self.names.chunk(touch.region.buffer, last, touch.rank)
                message = (
                    f"{self.names.op(self.row(index))} {verb} up to {chunk}, {self._room(touch.region.buffer, size)}"
                )
                return self._check(
                    check, index, message, None, "give the buffer more chunks, or correct the index or size"
                )
        return replace(check, message=self.names.chunks(check.message), where=self.row(index).line)

    def _room(self, buffer: str, size: int) -> str:
        how = self.lowering.memory.how
        if buffer == "packets" and self.lowering.document.protocol != "LL":
            return f"and there is room for {size // how.grain}: with protocol Simple each packet takes two chunks"
        return f"and the buffer has {size // (how.kept if buffer == 'scratch' else how.grain)} chunks"

    def deadlock(self, check: Check) -> Check:
        rows = [self.row(index) for index in check.ops]
        if not rows:
            return check
        first, name = rows[0], self.names.op
        if first.why:
            why = first.why.replace(f"{self.lowering.document.place}, ", "")
            return self._check(check, check.ops[0], f"{name(first)} waits for ever: {why}", None, _way_out(why))
        if len(rows) > 1:
            circle = "; ".join(f"{name(row)} waits for {self._awaited(row)}" for row in rows[:6])
            message = f"{name(first)} waits for {self._awaited(first)}, and so on in a circle of {len(rows)}"
            return self._check(check, check.ops[0], message, circle + "; ..." * (len(rows) > 6), _REORDER)
        end = first.chan_in or first.chan_out
        if end is None or first.kind not in (Kind.signal, Kind.wait):
            message = f"{name(first)} waits for {self._awaited(first)}, which waits for it"
            return self._check(check, check.ops[0], message, None, _REORDER)
        signals, waits = self._traffic(end)
        found = f"{signals} signals, {waits} waits on {self.names.channel(end)}"
        if first.kind == Kind.signal:
            message = f"{name(first)}: nobody takes this signal, and it would meet the next run"
            hint = f"let gpu {end.dst} wait for it, or drop this op"
        else:
            message = f"{name(first)} waits for ever: gpu {end.src} never signals it on {self.names.channel(end)}"
            hint = f"let gpu {end.src} signal it, or drop this op"
        return self._check(check, check.ops[0], message, found, hint)

    def _awaited(self, row: Row) -> str:
        if row.kind == Kind.wait and row.chan_in:
            packets = row.chan_in.id >= PACKET_IDS
            return self.names.channel(row.chan_in) if packets else f"a signal on {self.names.channel(row.chan_in)}"
        others = dict.fromkeys(self.names.op(other) for other in (*row.after, *row.flags) if other is not row)
        return " and ".join([*others][:3]) or "something that never happens"

    def _traffic(self, end: object) -> tuple[int, int]:
        signals = sum(row.kind == Kind.signal and row.chan_out == end for row in self.launched.rows)
        return signals, sum(row.kind == Kind.wait and row.chan_in == end for row in self.launched.rows)

    def races(self, check: Check) -> Check:
        if len(check.ops) < 2:
            index = check.ops[0]
            message = f"{self.names.op(self.row(index))} reads chunks at other places than it writes them, with overlap"
            hint = "threads are not synchronised: use disjoint chunks, or the same chunks in place"
            return self._check(check, index, message, None, hint)
        first, second = check.ops[:2]
        one, other = self.row(first), self.row(second)
        blamed = first if other.lane == KERNEL else second
        again = "when it is called again: " if self.launched.run(second) else ""
        clash = self.clash(first, second)
        if clash is None:
            message = (
                f"{self.names.op(one)} and {self.names.op(other)} use one end of a channel, and nothing orders the two"
            )
            hint = "give each threadblock its own channel, or order them by a barrier or semaphore"
            return self._check(check, blamed, again + message, None, hint)
        order = ONLY_PACKETS if check.message == ONLY_PACKETS else "nothing orders the two"
        hint = race_hint(self.lowering, one, other, is_again=bool(again))
        return self._check(check, blamed, f"{again}{clash}; {order}", None, hint)

    def clash(self, first: int, second: int) -> str | None:
        """Return what two ops do to a common chunk; None if there is none."""
        one, other = (self.names.actor(self.row(index)) for index in (first, second))
        for late in self.names.touches(second):
            for early in self.names.touches(first):
                a, b = late.region, early.region
                start, end = max(a.offset, b.offset), min(a.offset + a.count, b.offset + b.count)
                if (late.rank, a.buffer) == (early.rank, b.buffer) and start < end and (late.writes or early.writes):
                    verbs = ["writes" if touch.writes else "reads" for touch in (late, early)]
                    chunk = self.names.chunk(a.buffer, start, late.rank)
                    return f"{other} {verbs[0]} {chunk}, which {one} {verbs[1]}"
        return None

    def result(self, check: Check) -> Check:
        ops = [index for index in check.ops if self.row(index).lane != KERNEL]
        message = self.names.chunks(check.message)
        if slot := _WRONG.match(check.message):
            chunk = self.names.chunk(slot[1], int(slot[2]), int(slot[3]))
            message = f"{chunk} does not hold what {self.lowering.document.collective} asks"
        found = self.names.chunks(check.found) if check.found else None
        return self._check(check, ops[-1] if ops else None, message, found, None)


def _way_out(why: str) -> str:
    if "copies its source as it is" in why:
        return "make packets first: cpkt into scratch, nop, then ppkt from there"
    return "add what it waits for, or drop this op"
