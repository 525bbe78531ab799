"""pipeline_program: the program of a pipeline: receive faces, compute a tile, send faces; and its reference."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Kind, Program, Region
from dovetail.ir.proof.terms import each
from dovetail.loops.analysis.sweeps import Sweep
from dovetail.loops.grid.blocks import Range
from dovetail.loops.grid.ordered_builder import OrderedBuilder
from dovetail.loops.grid.repeat_steps import repeated
from dovetail.loops.matrices import Vector
from dovetail.pipeline.decomposition import Cutting
from dovetail.pipeline.names import Names, tile_regions, whole
from dovetail.pipeline.sweeps import Single
from dovetail.pipeline.tile_messages import GIVEN, Event, Message, events_of, messages_of, target_place, targets_of

Ints = NDArray[np.int64]


class How(NamedTuple):
    """How a pipeline runs. `grain`: positions of a tile; `overlapped`: messages travel while the next tile is computed.

    Only for predictions of longer runs: `most_tiles` of each sweep are simulated; `move` False leaves out the copies of
    arrays to and from their slots.
    """

    cutting: Cutting
    steps: int
    grain: int
    overlapped: bool
    most_tiles: int | None = None
    move: bool = True

    @property
    def share(self) -> float:
        """The share of each sweep's tiles that the program contains."""
        tiles = max((len(self.cutting.tiles(s, self.grain)) for s in self.cutting.pipelined.sweeps), default=0)
        return min(1.0, (self.most_tiles or tiles) / tiles) if tiles else 1.0


def pipeline_program(how: How) -> Program:
    """Return the program. Each rank has a block of every array as input, of every written array as output."""

    def make(steps: int) -> Program:
        writer = _Writer(how._replace(steps=steps), plain=False)
        writer.run()
        return writer.builder.build()

    return repeated(make, how.steps)


def plain_program(how: How) -> Program:
    """Return the reference program: rank 0 computes the same tiles on all ranks' arrays.

    Each tile copies its results into the faces of its neighbours at once, so tiles always read the newest values.
    """

    def make(steps: int) -> Program:
        writer = _Writer(how._replace(steps=steps), plain=True)
        writer.collect()
        writer.run_on_rank_0()
        writer.distribute()
        return writer.builder.build()

    return repeated(make, how.steps)


class _Writer:
    """Append the ops, in the order in which each rank runs them sequentially."""

    def __init__(self, how: How, plain: bool) -> None:
        self.how, self.cutting, self.plain = how, how.cutting, plain
        self.ranks = range(self.cutting.num_parts)
        word = "plain" if plain else "overlapped" if how.overlapped else "blocking"
        self.builder = b = OrderedBuilder(f"{word}_{self.cutting.pipelined.name}_{self.cutting.way}", len(self.ranks))
        self.compute, self.send, self.recv = b.lane("compute", "compute"), b.lane("send", "net"), b.lane("recv", "net")
        self.recv_back = b.lane("recv_back", "net")
        self.names = Names(self.cutting, plain)
        self.under_way: dict[tuple[int, int], deque[Region]] = defaultdict(deque)
        self.entered: dict[tuple[str, int], int] = defaultdict(int)  # leading positions already in slots
        self.latest: dict[int, list[int]] = defaultdict(list)  # a blocking rank's ops since its last tile
        self._declare()

    def _declare(self) -> None:
        self.known = dict[str, None]()
        arrays, written = self.cutting.pipelined.nest.arrays, self.cutting.pipelined.written
        for array in arrays:
            length = self.cutting.length(array)
            self.builder.buffer(array, "input", length)
            if array in written:
                self.builder.buffer(f"{array}_out", "output", length)
            for part in self.ranks:
                self._scratch(self.names.storage(array, part), array)
                if self.plain:
                    self._scratch(self.names.given(array, part), array)
                    if array in written:
                        self._scratch(self.names.result(array, part), array)
                for offset in self.cutting.faces(array):
                    self._scratch(self.names.received(array, offset, part), array)
                    if not self.plain:
                        self._scratch(self.names.goes(array, offset), array)
        for phase in self.cutting.pipelined.phases:
            if isinstance(phase, Single):
                for number in range(len(phase.statement.reads)):
                    self._scratch(self.names.picked(phase, number), "")
                    self._scratch(self.names.got(phase, number), "")

    def _scratch(self, name: str, array: str) -> None:
        if name not in self.known and name not in (array, f"{array}_out"):
            self.known[name] = None
            length = self.cutting.length(array) if array else 1
            self.builder.buffer(name, "scratch", [length, *[0] * (len(self.ranks) - 1)] if self.plain else length)

    def _rank(self, part: int) -> int:
        return 0 if self.plain else part

    # Copies between the user's arrays and slots

    def _enter(self, array: str, part: int, high: int) -> None:
        """Copy positions up to `high` into the slots where tiles use them, unless they are there."""
        low = self.entered[array, part]
        if high > low:
            self.entered[array, part] = high
            names = self.names.given(array, part), self.names.storage(array, part)
            self._move("enter", array, part, names, low, high)

    def _leave(self, array: str, part: int, positions: Ints) -> None:
        """Copy positions (in order) to the result, each run of consecutive ones at once."""
        names = self.names.storage(array, part), self.names.result(array, part)
        for run in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1):
            if len(run):
                self._move("leave", array, part, names, int(run[0]), int(run[-1]) + 1)

    def _move(self, word: str, array: str, part: int, names: tuple[str, str], low: int, high: int) -> None:
        if names[0] == names[1] or not self.how.move:
            return
        here, there = (Region(name, low, high - low) for name in names)
        about = {"reads": [here], "writes": [there], "line": f"{word} {array}"}
        rank, kind = self._rank(part), Kind.copy
        if self.cutting.is_padded(array, part):
            about["call"] = self.builder.kernel(self.names.move(word, array, part), each(1))  # type: ignore[assignment]
            kind = Kind.compute
        self.latest[rank].append(self.builder.add(kind, rank, self.compute, **about))  # type: ignore[arg-type]

    def _leave_final(self, last: Mapping[tuple[str, int], Ints], event: Event, number: int) -> None:
        """Copy the positions that no later event writes to the result, while they are in a cache."""
        low, high = event.tile
        for array in targets_of(event):
            self._leave(array, event.part, np.flatnonzero(last[array, event.part][low:high] == number) + low)

    def _leave_rest(self, last: Mapping[tuple[str, int], Ints]) -> None:
        """Copy the positions that no event writes to the result."""
        for (array, part), events in last.items():
            length = self.cutting.length(array) if self.how.most_tiles is None else self.entered[array, part]
            self._enter(array, part, length)
            self._leave(array, part, np.flatnonzero(events[:length] < 0))

    def collect(self) -> None:
        for array, part in product(self.cutting.pipelined.nest.arrays, self.ranks):
            whole = 0, self.cutting.length(array)
            self._across(part, Region(array, *whole), 0, Region(self.names.given(array, part), *whole))

    def distribute(self) -> None:
        for array, part in product(self.cutting.pipelined.written, self.ranks):
            whole = 0, self.cutting.length(array)
            self._across(0, Region(self.names.result(array, part), *whole), part, Region(f"{array}_out", *whole))

    def _across(self, source: int, here: Region, target: int, there: Region) -> None:
        self.builder.move((self.compute, self.send, self.recv), source, here, target, there)

    # Tiles

    def run(self) -> None:
        events = events_of(self.cutting, self.how.steps, self.how.grain, self.how.most_tiles)
        needed, made = defaultdict[int, list[Message]](list), defaultdict[int, list[Message]](list)
        for message in messages_of(self.cutting, events):
            needed[message.user].append(message)
            made[message.maker].append(message)
        last = self._last_writers(events)
        for message in made[GIVEN]:
            self._post(message, "initial values")
        for number, event in enumerate(events):
            line = _line(event)
            for message in needed[number]:
                self._receive(
                    message.source, message.ghost[0], self._received(message), line, self._comes_back(message, event)
                )
            self._event(event, line)
            for message in made[number]:
                self._post(message, line)
            self._leave_final(last, event, number)
        self._leave_rest(last)

    def _last_writers(self, events: Sequence[Event]) -> dict[tuple[str, int], Ints]:
        """Return, for every position of every array that is written, the last event that writes it; -1 if none does."""
        pairs = product(self.cutting.pipelined.written, self.ranks)
        last = {(array, part): np.full(self.cutting.length(array), -1) for array, part in pairs}
        for number, event in enumerate(events):
            for array in targets_of(event):
                last[array, event.part][event.tile[0] : event.tile[1]] = number
        return last

    def run_on_rank_0(self) -> None:
        arrays = self.cutting.pipelined.nest.arrays
        for array, part in product(arrays, self.ranks):
            self._enter(array, part, self.cutting.length(array))
        for array, part in product(arrays, self.ranks):
            self._pack_all(array, part, (0, self.cutting.length(array)))
        for event in events_of(self.cutting, self.how.steps, self.how.grain):
            self._event(event, _line(event))
            for array in targets_of(event):
                self._pack_all(array, event.part, event.tile)
        for array, part in product(self.cutting.pipelined.written, self.ranks):
            self._leave(array, part, np.arange(self.cutting.length(array)))

    def _pack_all(self, array: str, source: int, tile: Range) -> None:
        """Copy positions of every face of a part to the buffers where the neighbours read them."""
        for offset in self.cutting.faces(array):
            part = self.cutting.neighbour(source, tuple(-step for step in offset))
            if part is not None:
                where = Region(self.names.received(array, offset, part), tile[0], tile[1] - tile[0])
                self._pack(array, offset, source, where, "")

    def _event(self, event: Event, line: str) -> None:
        if isinstance(event.phase, Single):
            self._single(event.phase, event, line)
        else:
            self._tile(event.phase, event, line)

    def _tile(self, sweep: Sweep, event: Event, line: str) -> None:
        regions = tile_regions(self.names, sweep, event.part, event.tile[0], event.skew)
        for array, region in zip(sweep.reads, regions.own, strict=True):
            self._enter(array, event.part, region.offset + region.count)
        reads = [*regions.own, *(region for _, _, region in regions.faces)]
        self._computed(event.part, self.names.tile(sweep, event.part, event.skew), reads, regions.writes, line)

    def _computed(
        self,
        part: int,
        kernel: str,
        reads: Sequence[Region],
        writes: Sequence[Region],
        line: str,
        *,
        slotwise: bool = False,
    ) -> None:
        modes = each(len(reads)) if slotwise else whole(len(reads))
        call, rank = self.builder.kernel(kernel, modes), self._rank(part)
        about = {"reads": reads, "writes": writes, "call": call, "line": line, "after": self._sent(rank)}
        self.latest[rank].append(self.builder.add(Kind.compute, rank, self.compute, **about))  # type: ignore[arg-type]

    def _single(self, single: Single, event: Event, line: str) -> None:
        """Append a single statement; parts that hold elements that it reads copy them out and send them if needed."""
        target, reads = single.statement.target.array, list[Region]()
        for number, read in enumerate(single.statement.reads):
            sides = [a for a in zip(self.cutting.axes(read.array), read.at, strict=True) if a[0] is not None]
            place = {axis: at.at(self.cutting.values) for axis, at in sides if axis is not None}
            holder = self.cutting.holder(place, event.part)
            at = Region(self.names.storage(read.array, holder), place.get(self.cutting.mapped, 0), 1)
            picked, got = Region(self.names.picked(single, number), 0, 1), Region(self.names.got(single, number), 0, 1)
            self._enter(read.array, holder, at.offset + 1)
            stays = holder == event.part or self.plain
            self._computed(
                holder, self.names.pick(single, number), [at], [got if stays else picked], line, slotwise=True
            )
            if not stays:
                self._message(holder, picked, event.part, got, line)
                self._receive(holder, event.part, got, line, holder > event.part)
            reads.append(got)
        own = Region(self.names.storage(target, event.part), target_place(self.cutting, single), 1)
        self._enter(target, event.part, own.offset + 1)
        self._computed(event.part, self.names.single(single), [own, *reads], [own], line)

    # Messages

    def _received(self, message: Message) -> Region:
        part, array, offset = message.ghost
        return Region(self.names.received(array, offset, part), message.low, message.high - message.low)

    def _post(self, message: Message, line: str) -> None:
        """Copy a face out of its slots and send it."""
        part, array, offset = message.ghost
        goes = Region(self.names.goes(array, offset), message.low, message.high - message.low)
        self._pack(array, offset, message.source, goes, line)
        self._message(message.source, goes, part, self._received(message), line)

    def _pack(self, array: str, offset: Vector, source: int, where: Region, line: str) -> None:
        slots = Region(self.names.storage(array, source), where.offset, where.count)
        self._enter(array, source, where.offset + where.count)
        call, rank = self.builder.kernel(self.names.pack(array, offset, source), each(1)), self._rank(source)
        about = {"reads": [slots], "writes": [where], "call": call, "line": line}
        self.latest[rank].append(self.builder.add(Kind.compute, rank, self.compute, **about))  # type: ignore[arg-type]

    def _message(self, source: int, here: Region, target: int, there: Region, line: str) -> None:
        channel = self.builder.channel(source, target)
        row = self.builder.add(Kind.send, source, self.send, reads=[here], chan_out=channel, line=line)
        self.latest[source].append(row)
        self.under_way[source, target].append(there)

    def _comes_back(self, message: Message, user: Event) -> bool:
        """Whether a message comes from a part whose turn in the sweep is after the one that needs it."""
        assert isinstance(user.phase, Sweep)
        source, target = (self.cutting.turn(user.phase, part) for part in (message.source, user.part))
        return source > target

    def _receive(self, source: int, target: int, wanted: Region, line: str, comes_back: bool) -> None:
        """Receive a message, and before it those sent earlier on the same channel.

        A message from a later part is for a future step. Every schedule receives it as soon as there is room; else
        two parts could wait for each other to receive what they send.
        """
        queue = self.under_way[source, target]
        while wanted in queue:
            there, channel = queue.popleft(), self.builder.channel(source, target)
            after = [] if self.how.overlapped or comes_back else self.latest[target]
            lane = self.recv_back if source > target else self.recv
            self.builder.add(Kind.recv, target, lane, writes=[there], chan_in=channel, after=after, line=line)
            if there == wanted:
                break

    def _sent(self, rank: int) -> list[int]:
        """Return what a computation must wait for if sends block; later ops then only wait for the computation."""
        found, self.latest[rank] = self.latest[rank], []
        return [] if self.how.overlapped or self.plain else found


def _line(event: Event) -> str:
    low, high = event.tile
    return f"step {event.step}, {event.phase.name}, positions {low} to {high}"
