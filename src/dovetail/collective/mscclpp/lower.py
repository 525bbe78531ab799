"""lower: translate each op of MSCCL++ into equivalent ops of a Program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dovetail.collective.mscclpp.memory import Memory
from dovetail.collective.mscclpp.parts import (
    PORT_ONLY,
    SIGNALS,
    UNJUDGED,
    Document,
    Link,
    Loop,
    Place,
    Remark,
    Step,
    is_raw,
)
from dovetail.collective.mscclpp.pieces import Pieces, Span
from dovetail.collective.mscclpp.steps import Block, End, LooseBlock, Row, Strand, end_in, end_out
from dovetail.core import ProgramError
from dovetail.ir import Kind, Region

Meeting = tuple[int, int]  # gpu, number of its semaphore or barrier


class Give(NamedTuple):
    """A row that writes packets. `source`: the packets that it copies unchanged, if it makes none."""

    row: Row
    source: Region | None = None


@dataclass
class Meetings:
    """Rows that order one another across threadblocks and gpus, by semaphore, barrier or gpu."""

    releases: dict[Meeting, list[Row]] = field(default_factory=lambda: defaultdict(list))
    acquires: dict[Meeting, list[Row]] = field(default_factory=lambda: defaultdict(list))
    barriers: dict[Meeting, list[tuple[int, int, Row, Row]]] = field(default_factory=lambda: defaultdict(list))
    gives: dict[int, list[Give]] = field(default_factory=lambda: defaultdict(list))  # that write packets of a gpu
    takes: dict[int, list[tuple[Row, Region]]] = field(default_factory=lambda: defaultdict(list))  # that wait for them


Turn = tuple[Loop, int] | None


class Move(NamedTuple):
    """A copy or a sum on one gpu, or a put to or a get from `peer`."""

    kind: Kind
    source: Region
    target: Region
    peer: int = -1

    def part(self, low: int, high: int) -> Move:
        if (low, high) == (0, self.source.count):
            return self
        source, target, count = self.source, self.target, high - low
        ends = Region(source.buffer, source.offset + low, count), Region(target.buffer, target.offset + low, count)
        return Move(self.kind, *ends, self.peer)


class Lowering:
    """Writes the rows of one threadblock after another: threads in lockstep or, given `pieces`,
    unsynchronised. `is_lent`: reads of the caller's buffers by port channels are separate rows (`Block.lent`).
    """

    def __init__(self, document: Document, memory: Memory, pieces: Pieces | None = None, is_lent: bool = False) -> None:
        self.document, self.memory, self.pieces, self.is_lent = document, memory, pieces, is_lent
        self.rows: list[Row] = []
        self.meetings = Meetings()
        self.sweeps: list[tuple[Span, ...]] = []  # regions that an op on packets accesses together
        self.faults: dict[str, Remark] = {}
        self.temp = [0] * len(document.gpus)  # slots of each gpu's buffer `temp`: values in registers

    def block(self, rank: int, number: int, start: Sequence[Row]) -> Block:
        """Return threadblock `number` of gpu `rank`, whose kernel starts with the rows `start`."""
        block = (LooseBlock if self.pieces else Block)(self.rows, rank, number, start)
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
            raise unjudged("packets in a pipeline: they have the same flag in all iterations", step)
        if step.links and not step.writes:
            self._threads(block, step, line)
        elif step.name == "nop":
            block.sync(line)
        elif step.name == "barrier":
            self.meetings.barriers[block.rank, step.barrier[0]].append(
                (block.number, step.barrier[1], block.sync(line), block.leave(line))
            )
        elif step.semaphores:
            self._semaphores(block, step, line)
        else:
            _Data(self, block, step, turn, line).lower()

    def _threads(self, block: Block, step: Step, line: str) -> None:
        """Add signals or waits: one thread for each channel. A separate flush does nothing: the
        executor takes its channels from places to write, and a flush has none.
        """
        for thread, link in enumerate(step.links if step.name != "flush" else ()):
            if step.name in SIGNALS:
                block.signal(link, thread, line, relaxed=step.name == "rlxsignal")
            else:
                block.wait(link, thread, line)

    def _semaphores(self, block: Block, step: Step, line: str) -> None:
        known = len(self.document.gpus[block.rank].semaphores)
        for thread, semaphore in enumerate(step.semaphores):
            if semaphore >= known:
                raise ProgramError(f"gpu {block.rank} has no semaphore {semaphore}", where=step.where)
            row = block.thread(thread).add(Kind.nop, line)
            if step.name == "sem_release":
                self.meetings.releases[block.rank, semaphore].append(row)
            else:
                self.meetings.acquires[block.rank, semaphore].append(row)
                block.waits(row)


def unjudged(what: str, step: Step) -> ProgramError:
    """Return the error that this verifier has no rules for a step."""
    return ProgramError(f"{UNJUDGED}: {what}", where=f"{step.where} ({step.name})")


class _Data:
    """One op that moves or adds data."""

    def __init__(self, to: Lowering, block: Block, step: Step, turn: Turn, line: str) -> None:
        self.to, self.block, self.step, self.turn, self.line = to, block, step, turn, line
        self.rank, self.is_packets = block.rank, step.name.endswith("pkt")
        self._strand: Strand | None = None
        self._done: list[Span] = []  # what this op's sweeps have accessed

    def lower(self) -> None:
        name = self.step.name
        kinds: dict[str, Callable[[], None]] = {"glres": self._reduce_switch, "gstore": self._store_switch}
        kinds |= {"gstorepkt": self._store_switch, "rppkt": self._forward}
        if name in kinds:
            kinds[name]()
        elif name in ("get", "put", "pws", "pwsf", "ppkt"):
            self._pairs()
        elif name in ("copy", "cpkt", "upkt"):
            self.sweep(Move(Kind.copy, self.at(self.step.reads[0]), self.at(self.step.writes[0])))
        else:
            self._reduce()

    def at(self, place: Place, rank: int | None = None) -> Region:
        return self.to.memory.region(self.step, place, place.ranks[0] if rank is None else rank, self.turn)

    def spans(self, move: Move) -> tuple[Span, Span]:
        """Return the spans that a move reads and writes."""
        peer = self.rank if move.peer < 0 else move.peer
        source, target = (peer if move.kind == end else self.rank for end in (Kind.get, Kind.put))
        return Span(source, move.source), Span(target, move.target)

    def sweep(self, *moves: Move, after: Callable[[Row, Move], None] | None = None) -> None:
        """Add moves that each thread makes for one element after another. Ops on packets give element i to the same
        thread, so they are added in pieces. Other ops, and sweeps of one op that overlap in part, are unordered.
        """
        spans = [span for move in moves for span in self.spans(move)]
        if self.is_packets:
            strands = [(low, high, self.block.share(low, high)) for low, high in self._pieces(spans)]
        else:
            if self._strand is None or any(_clash(a, b) for a in spans for b in self._done):
                self._strand = self.block.strand()
            strands, self._done = [(0, moves[0].source.count, self._strand)], self._done + spans
        for low, high, strand in strands:
            for move in moves:
                part = move.part(low, high)
                row = self.add(strand, part)
                if after:
                    after(row, part)

    def _pieces(self, spans: Sequence[Span]) -> Sequence[tuple[int, int]]:
        if self.to.pieces:
            return self.to.pieces.of(spans[0])
        self.to.sweeps.append(tuple(spans))
        return ((0, spans[0].region.count),)

    def add(self, strand: Strand, move: Move, link: Link | None = None) -> Row:
        """Add one row, on channel `link` if the plan names one. Rows that touch packets are noted."""
        kind, source, target, peer = move
        ends: dict[str, Any] = {}
        if kind == Kind.put:
            ends = {"chan_out": end_out(self.rank, link) if link else End(self.rank, peer, 0)}
        elif kind == Kind.get:
            ends = {"chan_in": end_in(self.rank, link) if link else End(peer, self.rank, 0)}
        row = strand.add(kind, self.line, reads=(source,), writes=(target,), **ends)
        if target.buffer == "packets":
            raw = source if is_raw(self.step) else None
            self.to.meetings.gives[self.rank if peer < 0 else peer].append(Give(row, raw))
        if source.buffer == "packets" and self.step.by != "port":  # a port channel does not check their flags
            self.take(row, source)
        return row

    def take(self, row: Row, packets: Region) -> None:
        self.to.meetings.takes[self.rank].append((row, packets))
        self.block.waits(row)

    def temp(self, like: Region) -> Region:
        """Return new slots that represent registers."""
        start = self.to.temp[self.rank]
        self.to.temp[self.rank] += like.count
        return Region("temp", start, like.count)

    def _pairs(self) -> None:
        """put and get: move place i to place i."""
        step, links = self.step, self.step.links
        for number, (read, write) in enumerate(zip(step.reads, step.writes, strict=True)):
            if step.by == "port":
                self._put_by_port(number, self.raw(read) if is_raw(step) else self.at(read), write)
            elif step.name == "get":
                move = Move(Kind.get, self.at(read), self.at(write), read.ranks[0])
                self.sweep(move, after=self._by(links[number]) if number < len(links) else None)
            else:
                self.sweep(Move(Kind.put, self.at(read), self.at(write), write.ranks[0]))

    def _by(self, link: Link) -> Callable[[Row, Move], None]:
        def name(row: Row, _: Move) -> None:
            row.chan_in = end_in(self.rank, link)

        return name

    def raw(self, place: Place) -> Region:
        """Return what a port channel copies as packets: those in scratch, or arbitrary bytes of input or output."""
        return self.at(place) if place.packets else self.temp(self.at(place))

    def _put_by_port(self, thread: int, source: Region, write: Place) -> None:
        """Add a put by a port channel, with its signal and flush, if any."""
        link, move = self.step.links[thread], Move(Kind.put, source, self.at(write), self.step.links[thread].peer)
        strand = self.block.port(link, thread)
        if self.to.is_lent and source.buffer in ("input", "output"):
            held = self.temp(source)
            strand.follow([self.block.lend(link, self.line, source, held)])
            move = move._replace(source=held)
        pieces = self._pieces(self.spans(move)) if self.is_packets else ((0, source.count),)
        if len(pieces) == 1:
            row = self.add(strand, move, link)
        else:  # packets arrive separately; the channel continues when all have
            lanes = [strand.fork(low) for low, _ in pieces]
            rows = [self.add(lane, move.part(*piece), link) for lane, piece in zip(lanes, pieces, strict=True)]
            row = strand.add(Kind.nop, self.line, after=rows)
        if self.step.name in PORT_ONLY:
            strand.add(Kind.signal, self.line, chan_out=row.chan_out)
        if self.step.name == "pwsf":
            self.block.flush(link, thread, self.line)

    def _forward(self) -> None:
        """rppkt: forward packets, as they arrive, into the packets of others."""
        step, source = self.step, self.at(self.step.reads[0])
        if step.by != "port":
            self.sweep(*(Move(Kind.put, source, self.at(place), place.ranks[0]) for place in step.writes))
            return
        for low, high in self._pieces((Span(self.rank, source),)):
            row = self.block.share(low, high).add(Kind.nop, self.line)
            self.take(row, Region(source.buffer, source.offset + low, high - low))
        self.block.sync(self.line)
        for number, place in enumerate(step.writes):
            self._put_by_port(number, source, place)

    def _reduce(self) -> None:
        """re, res, rre, rres and their forms for packets: store the sum of all places read, here and on other gpus. The
        executor reads packets first, then the other operands (handleReduceSendPackets).
        """
        step, total = self.step, self.at(self.step.writes[0])
        reads = (*step.reads[1:], step.reads[0]) if self.is_packets else step.reads
        moves, parts = self._gathered((place.ranks[0], self.at(place)) for place in reads)
        rest = [Move(Kind.copy, total, self.at(place)) for place in step.writes[1:] if place.ranks[0] == self.rank]
        rest += [
            Move(Kind.put, total, self.at(place), place.ranks[0])
            for place in step.writes[1:]
            if place.ranks[0] != self.rank
        ]
        self._sum(moves, parts, total, rest)

    def _gathered(self, found: Iterable[tuple[int, Region]]) -> tuple[list[Move], list[Region]]:
        """Gets of parts on other gpus, and the regions of all parts after them."""
        moves, parts = [], []
        for rank, part in found:
            held = part if rank == self.rank else self.temp(part)
            moves += [] if rank == self.rank else [Move(Kind.get, part, held, rank)]
            parts.append(held)
        return moves, parts

    def _sum(self, moves: list[Move], parts: list[Region], total: Region, rest: list[Move]) -> None:
        """Store `total`, the sum of `parts` on this gpu; it stays in registers until all packets have come. If it
        overlaps a part without being equal to it, threads race.
        """
        if total not in parts and any(_clash(Span(self.rank, total), Span(self.rank, part)) for part in parts):
            held = self.temp(total)
            self.sweep(*moves, *_added(parts, held))
            self.sweep(Move(Kind.copy, held, total), *rest)
        elif self.is_packets and total in parts[2:]:
            held = self.temp(total)
            self.sweep(*moves, *_added(parts, held), Move(Kind.copy, held, total), *rest)
        else:
            self.sweep(*moves, *_added(parts, total), *rest)

    def _reduce_switch(self) -> None:
        """glres: store the sum over the gpus of a switch channel on all of them."""
        (read,), (write,) = self.step.reads, self.step.writes
        moves, parts = self._gathered((rank, self.at(read, rank)) for rank in read.ranks)
        total = self.temp(self.at(write, self.rank))
        self._store(total, write, [*moves, *_added(parts, total)])

    def _store_switch(self) -> None:
        """gstore and gstorepkt: store this gpu's data on all gpus of a switch channel."""
        self._store(self.at(self.step.reads[0]), self.step.writes[0], [])

    def _beside(self, source: Region, target: Region) -> Region:
        """The target of a copy: unused slots if it copies packets onto themselves, which changes nothing."""
        return self.temp(source) if self.is_packets and source == target else target

    def _store(self, source: Region, write: Place, before: list[Move]) -> None:
        stores = [
            Move(Kind.copy, source, self._beside(source, self.at(write, rank)))
            if rank == self.rank
            else Move(Kind.put, source, self.at(write, rank), rank)
            for rank in write.ranks
        ]
        last = stores[-1].target
        self.sweep(*before, *stores, after=lambda row, move: self.block.stores(row) if move.target is last else None)


def _added(parts: Sequence[Region], total: Region) -> list[Move]:
    """Moves that compute total = the sum of parts, in place if total is one of them."""
    rest = list(parts)
    if total in rest:
        rest.remove(total)
        return [Move(Kind.reduce, part, total) for part in rest]
    return [Move(Kind.copy, rest[0], total), *(Move(Kind.reduce, part, total) for part in rest[1:])]


def _clash(a: Span, b: Span) -> bool:
    """Whether two regions overlap without being equal."""
    one, other = a.region, b.region
    overlap = one.offset < other.offset + other.count and other.offset < one.offset + one.count
    return a.rank == b.rank and one.buffer == other.buffer and one != other and overlap
