"""express: turn a Program of copies, sums, messages, puts, gets, signals and waits into MSCCL++ threadblocks.

A lane becomes a threadblock. A message becomes a put into separate scratch at the receiver, and a signal; before its
first put a sender waits for a signal that the receiver's kernel has started. A dependency between lanes becomes a
semaphore. A sync precedes each op that needs results of earlier ops of its threadblock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dovetail.collective.mscclpp.limits import MOST_OPS
from dovetail.collective.mscclpp.parts import Link, Place, Step
from dovetail.core import ProgramError
from dovetail.ir import RECVS, SENDS, Kind, Op, Program, Region
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy


class _Message(NamedTuple):
    """A message: its place in scratch between send and receive, and the link at each end."""

    place: Place
    out: Link
    into: Link


class Express:
    """The steps of each lane of each rank, and the chunks of scratch that they need. The Program must complete."""

    def __init__(self, program: Program, letters: dict[str, str]) -> None:
        self.program, self.lists = program, OpLists(program)
        for op in self.lists.ops:
            if op.kind in (Kind.compute, Kind.collective):
                raise ProgramError(f"MSCCL++ has no op for a {op.kind.name}", where=op.line, found=f"op {op.index}")
        self.scratch = [0] * program.num_ranks
        self.letters = self._buffers(letters)
        self.links = self._links()
        self.sent: dict[int, _Message] = {}  # by the row that sends
        self.taken: dict[int, _Message] = {}  # by the row that receives
        self.greets: dict[int, list[tuple[str, Link]]] = defaultdict(list)  # queue -> its first signals and waits
        self.semaphores: list[dict[tuple[int, int], int]] = [{} for _ in range(program.num_ranks)]
        self.releases: dict[int, list[int]] = defaultdict(list)  # row -> semaphores released after it
        self.acquires: dict[int, list[int]] = defaultdict(list)  # row -> semaphores acquired before it
        self._exchange()
        self._depend()

    def blocks(self, rank: int) -> tuple[tuple[Step, ...], ...]:
        """Return the threadblocks of a rank. A lane that is too long for one continues in another one after it."""
        queues = [q for q, rows in enumerate(self.lists.queues) if self.lists.ops[rows[0]].rank == rank]
        blocks: list[tuple[Step, ...]] = []
        for steps in (_Lane(self, queue).steps() for queue in queues):
            blocks += self._parts(rank, steps)
        return tuple(blocks)

    def _parts(self, rank: int, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
        known, sync = self.semaphores[rank], Step("nop", "")
        while len(steps) > MOST_OPS:
            number = known.setdefault((-1, len(known)), len(known))
            yield (*steps[: MOST_OPS - 2], sync, Step("sem_release", "", semaphores=(number,)))
            steps = (Step("sem_acquire", "", semaphores=(number,)), sync, *steps[MOST_OPS - 2 :])
        yield steps

    def place(self, region: Region, rank: int) -> Place:
        if region.blocks != 1:
            raise ProgramError("MSCCL++ has no strided places", found=str(region), hint="cut the op into several")
        letter, start = self.letters[region.buffer]
        return Place((rank,), letter, start[rank] + region.offset, region.count)

    def _buffers(self, letters: dict[str, str]) -> dict[str, tuple[str, list[int]]]:
        """The letter of each buffer, and its first chunk under that letter on each rank."""
        found: dict[str, tuple[str, list[int]]] = {}
        for name, role, slots in self.program.buffers:
            letter = letters.get(name, "s")
            if role != "scratch" and (letter == "s" or any(letter == other for other, _ in found.values())):
                raise ProgramError(f"MSCCL++ has one {role} buffer, and '{name}' is another")
            found[name] = (letter, list(self.scratch) if letter == "s" else [0] * len(slots))
            if letter == "s":
                self.scratch = [a + b for a, b in zip(self.scratch, slots, strict=True)]
        return found

    def _links(self) -> list[tuple[Link, Link]]:
        """For each channel, a separate link at its source and at its destination."""
        seen: Counter[frozenset[int]] = Counter()
        links = []
        for src, dst, *_ in self.program.channels:
            number = seen[frozenset((src, dst))]
            seen[frozenset((src, dst))] += 1
            links.append((Link("memory", dst, number), Link("memory", src, number)))
        return links

    def _exchange(self) -> None:
        """Reserve scratch for each message, and note which lanes signal and wait before the first one of a channel."""
        run, greeted = Greedy(self.lists)(), set[int]()
        for taker, giver in sorted(run.matched.items()):
            send, receive = self.lists.ops[giver], self.lists.ops[taker]
            if send.kind in SENDS:
                count = (receive.reads or receive.writes)[0].num_slots
                place = Place((receive.rank,), "s", self.scratch[receive.rank], count)
                self.scratch[receive.rank] += count
                self.sent[giver] = self.taken[taker] = _Message(place, *self.links[send.chan_out])
        for row in run.order:
            op = self.lists.ops[row]
            if op.kind in SENDS and op.chan_out not in greeted:
                greeted.add(op.chan_out)
                self.greets[self.lists.queue_of[row]].append(("wait", self.links[op.chan_out][0]))
        for row in run.order:
            op = self.lists.ops[row]
            if op.kind in RECVS and op.chan_in in greeted:
                greeted.remove(op.chan_in)
                self.greets[self.lists.queue_of[row]].insert(0, ("signal", self.links[op.chan_in][1]))

    def _depend(self) -> None:
        """Add semaphores for dependencies between lanes: one for each pair of lanes, used in the order of both."""
        lists, reached = self.lists, dict[tuple[int, int], int]()
        for queue, rows in enumerate(lists.queues):
            for row in rows:
                for before in lists.ops[row].after:
                    pair = (lists.queue_of[before], queue)
                    if pair[0] == queue or reached.get(pair, -1) >= lists.position[before]:
                        continue
                    reached[pair] = lists.position[before]
                    known = self.semaphores[lists.ops[row].rank]
                    number = known.setdefault(pair, len(known))
                    self.releases[before].append(number)
                    self.acquires[row].append(number)


class _Lane:
    """One lane as a threadblock."""

    def __init__(self, to: Express, queue: int) -> None:
        self.to, self.ops = to, [to.lists.ops[row] for row in to.lists.queues[queue]]
        self.rank, self.greets = self.ops[0].rank, to.greets[queue]
        self.out: list[Step] = []
        self._touched: list[tuple[Place, bool]] = []  # since the last sync: (place, whether it was written)
        self._waited = False

    def steps(self) -> tuple[Step, ...]:
        for name, link in self.greets:
            self._notify(name, link) if name == "signal" else self._wait(link)
        for op in self.ops:
            for number in self.to.acquires[op.index]:
                self._add(Step("sem_acquire", "", semaphores=(number,)))
                self._waited = True
            self._op(op)
            for number in self.to.releases[op.index]:
                self._settle()
                self._add(Step("sem_release", "", semaphores=(number,)))
        return tuple(self.out)

    def _op(self, op: Op) -> None:
        message = self.to.taken.get(op.index)
        if message:
            self._wait(message.into)
        reads = [self._at(op, region) for region in op.reads] + ([message.place] if message else [])
        writes = [self._at(op, region, written=True) for region in op.writes]
        if op.kind in (Kind.copy, Kind.put, Kind.get):
            self._move(op.kind.name, reads[0], writes[0])
        elif op.kind == Kind.reduce:
            self._sum([*writes, *reads], writes[0], op)
        elif op.kind in (Kind.recv_reduce, Kind.recv_reduce_send, Kind.recv_reduce_copy_send):
            self._sum(reads, writes[0] if writes else reads[-1], op)
        elif op.kind in (Kind.recv, Kind.recv_copy_send):
            self._move("copy", reads[0], writes[0])
        elif op.kind == Kind.signal:
            self._notify("signal", self.to.links[op.chan_out][0])
        elif op.kind == Kind.wait:
            self._wait(self.to.links[op.chan_in][1])
        if op.kind in (Kind.send, Kind.recv_copy_send):
            self._move("put", (writes or reads)[0], self.to.sent[op.index].place)
        if op.kind in SENDS:
            self._notify("signal", self.to.sent[op.index].out)

    def _at(self, op: Op, region: Region, written: bool = False) -> Place:
        peer = op.rank
        if op.kind == Kind.put and written:
            peer = self.to.program.channels[op.chan_out].dst
        elif op.kind == Kind.get and not written:
            peer = self.to.program.channels[op.chan_in].src
        return self.to.place(region, peer)

    def _move(self, name: str, source: Place, target: Place) -> None:
        by = "none" if source.ranks == target.ranks else "memory"
        self._data(Step(name, "", (source,), (target,), by))

    def _sum(self, parts: Sequence[Place], total: Place, op: Op) -> None:
        """Add the sum of two places, and put it to its receiver."""
        sent = self.to.sent.get(op.index)
        writes = (total, sent.place) if sent else (total,)
        self._data(Step("res" if sent else "re", "", tuple(parts), writes, "memory" if sent else "none"))

    def _data(self, step: Step) -> None:
        """Add an op of all threads, after a sync if they waited, or touched the same places, since the last one."""
        touched = [(place, False) for place in step.reads] + [(place, True) for place in step.writes]
        if not any(place.size for place, _ in touched):
            return
        clash = any((one or other) and _meet(a, b) for a, one in touched for b, other in self._touched)
        if self._waited or clash:
            self._sync()
        self._add(step)
        self._touched += touched

    def _notify(self, name: str, link: Link) -> None:
        self._settle()
        self._add(Step(name, "", links=(link,), by="memory"))

    def _wait(self, link: Link) -> None:
        self._add(Step("wait", "", links=(link,), by="memory"))
        self._waited = True

    def _settle(self) -> None:
        if self._touched:
            self._sync()

    def _sync(self) -> None:
        self._add(Step("nop", ""))
        self._touched, self._waited = [], False

    def _add(self, step: Step) -> None:
        self.out.append(step)


def _meet(a: Place, b: Place) -> bool:
    same = (a.ranks, a.buffer) == (b.ranks, b.buffer)
    return same and a.start < b.start + b.size and b.start < a.start + a.size
