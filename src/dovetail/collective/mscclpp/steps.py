"""steps: a threadblock's ops as rows of a Program, with threads in lockstep (Block) or unsynchronised (LooseBlock).

Every thread runs the ops in order, but waits for the other threads only at a sync (nop, barrier). Between two
syncs, ops that all threads share are therefore unordered: each has a separate lane in a LooseBlock, which shows
races. One thread does each signal, wait, semaphore op and request to a port channel, so these stay in order. A Block,
with all its ops on one lane, shows deadlocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dovetail.collective.mscclpp.parts import MOST_ROWS, UNJUDGED, Link
from dovetail.core import ProgramError
from dovetail.ir import Kind, Region

PORT_IDS, PACKET_IDS = 1 << 10, 1 << 20  # channel ids: memory channels from 0, ports and flags of packets from here


class End(NamedTuple):
    """A channel of the Program: from rank `src` to rank `dst`."""

    src: int
    dst: int
    id: int


def end_out(rank: int, link: Link) -> End:
    return End(rank, link.peer, link.number + PORT_IDS * (link.kind == "port"))


def end_in(rank: int, link: Link) -> End:
    return End(link.peer, rank, link.number + PORT_IDS * (link.kind == "port"))


@dataclass(eq=False, slots=True)
class Row:
    """One op before it has a number. `before`, `behind`: rows of the same lane right before and after it. `flags`: rows
    on the same gpu whose packets it waits for; packets do not order other writes.
    """

    kind: Kind
    rank: int
    lane: str
    line: str
    reads: Sequence[Region] = ()
    writes: Sequence[Region] = ()
    chan_in: End | None = None
    chan_out: End | None = None
    after: list[Row] = field(default_factory=list)
    flags: list[Row] = field(default_factory=list)
    before: Sequence[Row] = ()
    behind: Sequence[Row] = ()
    why: str | None = None  # the reason if nothing ever releases it


def stuck(row: Row, why: str) -> None:
    """Make a row wait for itself: it never ends."""
    row.after.append(row)
    row.why = why


class Strand:
    """A lane of a threadblock of gpu `rank`, from one sync to the next. It appends to `rows`."""

    def __init__(self, rows: list[Row], rank: int, lane: str, after: Sequence[Row]) -> None:
        self.rows, self.rank, self.lane, self._after = rows, rank, lane, list(after)
        self.last: Row | None = None

    def follow(self, rows: Sequence[Row]) -> None:
        """Make the next row wait for these rows, and for the last one of this lane only."""
        self._after = list(rows)

    def fork(self, number: int) -> Strand:
        """Return a parallel lane that continues after the rows so far."""
        return Strand(
            self.rows, self.rank, f"{self.lane}.{number}", [*self._after, *([self.last] if self.last else [])]
        )

    def add(self, kind: Kind, line: str, *, after: Sequence[Row] = (), **ends: Any) -> Row:
        row = Row(kind, self.rank, self.lane, line, after=[*self._after, *after], **ends)
        self._after, self.last = [], row
        self.rows.append(row)
        if len(self.rows) > MOST_ROWS:
            raise ProgramError(f"{UNJUDGED}: it has more than {MOST_ROWS} steps", where=line)
        return row


class Block:
    """One threadblock with threads in lockstep: all its ops are on one lane, after the rows `start`."""

    def __init__(self, rows: list[Row], rank: int, number: int, start: Sequence[Row]) -> None:
        self.rows, self.rank, self.number, self.lane = rows, rank, number, f"tb{number}"
        self._start, self._main = list(start), Strand(rows, rank, self.lane, start)
        self._ports: dict[int, Strand] = {}
        self._asked: dict[int, dict[Row, None]] = {}  # by port channel: rows before its requests
        self.lent: list[Row] = []  # reads of the caller's buffers by port channels

    def _new(self, lane: str, after: Sequence[Row]) -> Strand:
        return Strand(self.rows, self.rank, lane, after)

    def strand(self) -> Strand:
        """Return a lane for an op that all threads share."""
        return self._main

    def share(self, low: int, high: int) -> Strand:
        """Return the lane of the threads that handle slots `low` to `high` of an op on packets."""
        return self._main

    def thread(self, number: int) -> Strand:
        """Return the lane of what only thread `number` does."""
        return self._main

    def port(self, link: Link, thread: int) -> Strand:
        """Return the lane of a port channel, which serves requests later, in order. Thread `thread` makes one now."""
        strand = self._ports.setdefault(link.local, self._new(f"{self.lane}.port{link.local}", ()))
        passed = self._passed(thread)
        strand.follow(passed)
        self._asked.setdefault(link.local, {}).update(dict.fromkeys(passed))
        return strand

    def lend(self, link: Link, line: str, source: Region, held: Region) -> Row:
        """Add the read of a port channel's last request, separate from its write and unordered by earlier requests."""
        lane = f"{self.lane}.port{link.local}.read{len(self.lent)}"
        row = self._new(lane, [*self._asked[link.local]]).add(Kind.copy, line, reads=(source,), writes=(held,))
        self.lent.append(row)
        return row

    def sync(self, line: str) -> Row:
        """Add a sync: all threads meet."""
        return self._main.add(Kind.nop, line)

    def leave(self, line: str) -> Row:
        """Add the row, after a sync, at which a barrier releases the threadblock."""
        return self._main.add(Kind.nop, line)

    def ends(self) -> list[Row]:
        """Return the rows after which the threadblock has ended."""
        return [self._main.last] if self._main.last else self._start

    def signal(self, link: Link, thread: int, line: str, relaxed: bool = False) -> None:
        """Signal the other gpu."""
        strand = self.port(link, thread) if link.kind == "port" else self.thread(thread)
        strand.add(Kind.signal, line, chan_out=end_out(self.rank, link))

    def wait(self, link: Link, thread: int, line: str) -> None:
        self.waits(self.thread(thread).add(Kind.wait, line, chan_in=end_in(self.rank, link)))

    def waits(self, row: Row) -> None:
        """Note a row that waits for others."""

    def stores(self, row: Row) -> None:
        """Note the last row of an op of a switch channel."""

    def flush(self, link: Link, thread: int, line: str) -> None:
        """Wait until the port channel has served all requests."""
        last = self._ports[link.local].last if link.local in self._ports else None
        self.thread(thread).add(Kind.nop, line, after=[last] if last else [])

    def _passed(self, thread: int) -> list[Row]:
        """The rows after which thread `thread` continues."""
        return self.ends()


class LooseBlock(Block):
    """One threadblock with unsynchronised threads: between syncs only the ops of a single thread are in order.

    It has the same rows as a Block, with other lanes and dependencies.
    """

    def __init__(self, rows: list[Row], rank: int, number: int, start: Sequence[Row]) -> None:
        super().__init__(rows, rank, number, start)
        self._synced = list(start)  # predecessors of all rows until the next sync
        self._open: list[Strand] = []
        self._threads: dict[int, Strand] = {}
        self._shares: dict[tuple[int, int], Strand] = {}
        self._waited = list(start)  # waits before the last sync, and those since
        self._waiting: list[Row] = []
        self._strong: list[Row] = []  # the same for ops of switch channels without a later relaxed signal
        self._storing: list[Row] = []
        self._relaxed = self._new(f"{self.lane}.relaxed", ())
        self._last_relaxed: Row | None = None  # since the last sync
        self._signals: dict[End, Row] = {}

    def strand(self) -> Strand:
        lane = f"{self.lane}.{len(self._open)}" if self._open else self.lane
        self._open.append(self._new(lane, self._synced if self._open else self._outside()))
        return self._open[-1]

    def share(self, low: int, high: int) -> Strand:
        if (low, high) not in self._shares:
            self._shares[low, high] = self.strand()
        return self._shares[low, high]

    def thread(self, number: int) -> Strand:
        if number not in self._threads:
            self._threads[number] = self.strand()
        return self._threads[number]

    def sync(self, line: str) -> Row:
        is_first = not any(strand.lane == self.lane for strand in self._open)
        main = self._new(self.lane, self._outside() if is_first else ())
        ends = [strand.last for strand in self._open if strand.last and strand.lane != self.lane]
        row = main.add(Kind.nop, line, after=[*ends, *([self._last_relaxed] if self._last_relaxed else [])])
        self._waited, self._waiting = self._waiting or self._waited, []
        self._strong, self._storing = self._strong + self._storing, []
        self._synced, self._open, self._last_relaxed = [row], [], None
        self._threads, self._shares = {}, {}
        return row

    def leave(self, line: str) -> Row:
        row = self._new(self.lane, ()).add(Kind.nop, line)
        self._synced = [row]
        return row

    def ends(self) -> list[Row]:
        return [s.last for s in self._open if s.last] or list(self._synced)

    def signal(self, link: Link, thread: int, line: str, relaxed: bool = False) -> None:
        """Signal the other gpu. A relaxed signal follows earlier waits and stores by switch channels, no other writes:
        its receiver may not see those yet (executor: relaxedSignal).
        """
        if link.kind == "port":
            return super().signal(link, thread, line)
        end = end_out(self.rank, link)
        before, lane = self._signals.get(end), self._relaxed.lane
        after = [before] if before and (before.lane == lane) != relaxed else []
        strand = self._relaxed if relaxed else self.thread(thread)
        if relaxed:
            own = self._threads[thread].last if thread in self._threads else None
            after = [*self._waited, *self._strong, *([own] if own else []), *after]
            self._strong = []
        row = self._signals[end] = strand.add(Kind.signal, line, after=after, chan_out=end)
        self._last_relaxed = row if relaxed else self._last_relaxed
        return None

    def waits(self, row: Row) -> None:
        self._waiting.append(row)

    def stores(self, row: Row) -> None:
        self._storing.append(row)

    def _passed(self, thread: int) -> list[Row]:
        last = self._threads[thread].last if thread in self._threads else None
        return [*self._synced, *([last] if last else [])]

    def _outside(self) -> list[Row]:
        """The rows of the last sync that are on another lane: those of the kernel's start."""
        return [row for row in self._synced if row.lane != self.lane]
