"""Each op of MSCCL++ as the ops of a Program that do the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.collective.mscclpp.memory import Memory
from dovetail.collective.mscclpp.parts import PORT_ONLY, SIGNALS, Document, Link, Loop, Place, Step
from dovetail.collective.mscclpp.rows import Block, End, LooseBlock, Row, Strand, end_in, end_out
from dovetail.core import ProgramError
from dovetail.ir import Kind, Region

Flag = tuple[int, int]  # gpu, run: the flag of packets is another one in each run
Meeting = tuple[int, int, int]  # gpu, number of its semaphore or barrier, run


@dataclass
class Meetings:
    """Rows that order one another across threadblocks and gpus, by what they meet at."""

    releases: dict[Meeting, list[Row]] = field(default_factory=lambda: defaultdict(list))
    acquires: dict[Meeting, list[Row]] = field(default_factory=lambda: defaultdict(list))
    barriers: dict[Meeting, list[tuple[int, int, Row, Row]]] = field(default_factory=lambda: defaultdict(list))
    gives: dict[Flag, list[Row]] = field(default_factory=lambda: defaultdict(list))  # rows that write packets
    takes: dict[Flag, list[tuple[Row, Region]]] = field(default_factory=lambda: defaultdict(list))  # that wait for them


Turn = tuple[Loop, int] | None


class Lowering:
    """Writes the rows of one threadblock after another."""

    def __init__(self, document: Document, memory: Memory, loose: bool) -> None:
        self.document, self.memory, self.loose, self.run = document, memory, loose, 0
        self.rows: list[Row] = []
        self.meetings = Meetings()
        self.temp = [0] * len(document.gpus)  # slots of each gpu's buffer `temp`, for what its threads hold meanwhile

    def block(self, rank: int, number: int, start: Sequence[Row]) -> Block:
        """Threadblock `number` of gpu `rank`, whose kernel starts with the rows `start`."""
        block = (LooseBlock if self.loose else Block)(self.rows, rank, number, start)
        for step in self.document.gpus[rank].blocks[number]:
            if step.loop is None:
                self._step(block, step, None)
            else:
                for turn in range(self.memory.how.turns_of(step.loop)):
                    for inner in step.loop.steps:
                        self._step(block, inner, (step.loop, turn))
        return block

    def _step(self, block: Block, step: Step, turn: Turn) -> None:
        line = step.where + (f", turn {turn[1]}" if turn else "") + f" ({step.name})"
        if turn and any(place.packets for place in (*step.reads, *step.writes)):
            raise ProgramError("packets in a pipeline: they bear one flag in all its turns", where=step.where)
        if step.links and not step.writes:
            self._threads(block, step, line)
        elif step.name == "nop":
            block.sync(line)
        elif step.name == "barrier":
            self.meetings.barriers[block.rank, step.barrier[0], self.run].append(
                (block.number, step.barrier[1], block.sync(line), block.leave(line))
            )
        elif step.semaphores:
            self._semaphores(block, step, line)
        else:
            _Data(self, block, step, turn, line).lower()

    def _threads(self, block: Block, step: Step, line: str) -> None:
        """Signals, waits and flushes: each of its channels is the business of one thread."""
        for thread, link in enumerate(step.links):
            if step.name in SIGNALS:
                block.signal(link, thread, line, relaxed=step.name == "rlxsignal")
            elif step.name == "flush":
                block.flush(link, thread, line)
            else:
                block.wait(link, thread, line)

    def _semaphores(self, block: Block, step: Step, line: str) -> None:
        known = len(self.document.gpus[block.rank].semaphores)
        for thread, semaphore in enumerate(step.semaphores):
            if semaphore >= known:
                raise ProgramError(f"gpu {block.rank} has no semaphore {semaphore}", where=step.where)
            row = block.thread(thread).add(Kind.nop, line)
            if step.name == "sem_release":
                self.meetings.releases[block.rank, semaphore, self.run].append(row)
            else:
                self.meetings.acquires[block.rank, semaphore, self.run].append(row)
                block.waits(row)


class _Data:
    """One op that moves or adds data."""

    def __init__(self, to: Lowering, block: Block, step: Step, turn: Turn, line: str) -> None:
        self.to, self.block, self.step, self.turn, self.line = to, block, step, turn, line
        self.rank = block.rank

    def lower(self) -> None:
        name = self.step.name
        kinds: dict[str, Callable[[], None]] = {"glres": self._reduce_switch, "gstore": self._store_switch}
        kinds |= {"gstorepkt": self._store_switch, "rppkt": self._forward}
        if name in kinds:
            kinds[name]()
        elif name in ("get", "put", "pws", "pwsf", "ppkt"):
            self._pairs()
        elif name in ("copy", "cpkt", "upkt"):
            self.copy(self.block.strand(), self.at(self.step.reads[0]), self.at(self.step.writes[0]))
        else:
            self._reduce()

    def at(self, place: Place, rank: int | None = None) -> Region:
        return self.to.memory.region(self.step, place, place.ranks[0] if rank is None else rank, self.turn, self.to.run)

    def add(self, strand: Strand, kind: Kind, source: Region, target: Region, peer: int | None = None) -> Row:
        """One row; a put to or a get from `peer`. Rows that touch packets are noted."""
        ends: dict[str, Any] = {}
        if kind == Kind.put:
            ends = {"chan_out": End(self.rank, peer if peer is not None else -1, 0)}
        elif kind == Kind.get:
            ends = {"chan_in": End(peer if peer is not None else -1, self.rank, 0)}
        row = strand.add(kind, self.line, reads=[source], writes=[target], **ends)
        if target.buffer.startswith("packets"):
            self.to.meetings.gives[self.rank if peer is None else peer, self.to.run].append(row)
        if (
            source.buffer.startswith("packets") and self.step.by != "port"
        ):  # a port channel does not look at their flags
            self.take(row, source)
        return row

    def take(self, row: Row, packets: Region) -> None:
        self.to.meetings.takes[self.rank, self.to.run].append((row, packets))
        self.block.waits(row)

    def copy(self, strand: Strand, source: Region, target: Region) -> Row:
        return self.add(strand, Kind.copy, source, target)

    def temp(self, like: Region) -> Region:
        """Slots that nobody else uses: what threads hold in registers."""
        start = self.to.temp[self.rank]
        self.to.temp[self.rank] += like.count
        return Region("temp", start, like.count)

    def _pairs(self) -> None:
        """put and get: place i to place i. Pairs that overlap but are not the same race with one another."""
        step, done, strand = self.step, list[tuple[int, Region]](), None
        for number, (read, write) in enumerate(zip(step.reads, step.writes, strict=True)):
            source, target = self.at(read), self.at(write)
            if step.by == "port":
                self._told(step.links[number], number, source, target)
                continue
            touched = [(read.ranks[0], source), (write.ranks[0], target)]
            if strand is None or any(a == b and _clash(one, other) for a, one in touched for b, other in done):
                strand = self.block.strand()
            done += touched
            if step.name == "get":
                row = self.add(strand, Kind.get, source, target, read.ranks[0])
                row.chan_in = end_in(self.rank, step.links[number]) if number < len(step.links) else row.chan_in
            else:
                self.add(strand, Kind.put, source, target, write.ranks[0])

    def _told(self, link: Link, thread: int, source: Region, target: Region) -> None:
        """A put by a port channel, and the signal and flush that may come with it."""
        strand = self.block.port(link, thread)
        row = self.add(strand, Kind.put, source, target, link.peer)
        row.chan_out = end_out(self.rank, link)
        if self.step.name in PORT_ONLY:
            strand.add(Kind.signal, self.line, chan_out=row.chan_out)
        if self.step.name == "pwsf":
            self.block.flush(link, thread, self.line)

    def _forward(self) -> None:
        """rppkt: packets, as they come, into the packets of others."""
        source = self.at(self.step.reads[0])
        if self.step.by == "port":
            self.take(self.block.strand().add(Kind.nop, self.line), source)
            self.block.sync(self.line)
        strand = None
        for number, place in enumerate(self.step.writes):
            if self.step.by == "port":
                self._told(self.step.links[number], number, source, self.at(place))
            else:
                strand = strand or self.block.strand()
                self.add(strand, Kind.put, source, self.at(place), place.ranks[0])

    def _reduce(self) -> None:
        """re, res, rre, rres and their forms for packets: the sum of all that is read, here and on other gpus."""
        step, strand = self.step, self.block.strand()
        total = self.at(step.writes[0])
        parts = []
        for place in step.reads:
            part = self.at(place)
            if place.ranks[0] != self.rank:
                held = self.temp(part)
                self.add(strand, Kind.get, part, held, place.ranks[0])
                part = held
            parts.append(part)
        self.sum(strand, parts, total)
        for place in step.writes[1:]:
            if place.ranks[0] == self.rank:
                self.copy(strand, total, self.at(place))
            else:
                self.add(strand, Kind.put, total, self.at(place), place.ranks[0])

    def sum(self, strand: Strand, parts: list[Region], total: Region) -> None:
        """total = the sum of `parts`, all on this gpu. Where it overlaps one but is not the same, threads race."""
        if total in parts:
            rest = list(parts)
            rest.remove(total)
        elif any(_clash(total, part) for part in parts):
            held = self.temp(total)
            self.sum(strand, parts, held)
            self.copy(self.block.strand(), held, total)
            return
        else:
            self.copy(strand, parts[0], total)
            rest = parts[1:]
        for part in rest:
            self.add(strand, Kind.reduce, part, total)

    def _reduce_switch(self) -> None:
        """glres: the sum over the gpus of a switch channel, stored on all of them."""
        (read,), (write,) = self.step.reads, self.step.writes
        strand, parts = self.block.strand(), []
        for rank in read.ranks:
            part = self.at(read, rank)
            if rank != self.rank:
                held = self.temp(part)
                self.add(strand, Kind.get, part, held, rank)
                part = held
            parts.append(part)
        total = self.temp(self.at(write, self.rank))
        self.sum(strand, parts, total)
        self._store(strand, total, write)

    def _store_switch(self) -> None:
        """gstore and gstorepkt: what this gpu holds, stored on all gpus of a switch channel."""
        self._store(self.block.strand(), self.at(self.step.reads[0]), self.step.writes[0])

    def _store(self, strand: Strand, source: Region, write: Place) -> None:
        for rank in write.ranks:
            target = self.at(write, rank)
            if rank == self.rank:
                row = self.copy(strand, source, target)
            else:
                row = self.add(strand, Kind.put, source, target, rank)
        self.block.stores(row)


def _clash(a: Region, b: Region) -> bool:
    """Whether two regions overlap without being the same."""
    return a.buffer == b.buffer and a != b and a.offset < b.offset + b.count and b.offset < a.offset + a.count
