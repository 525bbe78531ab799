"""band_program: the program in which ranks compute bands of steps in rotation, tile by tile; and its reference."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from dovetail.ir import Kind, Program, Region
from dovetail.loops.grid.blocks import Range
from dovetail.loops.grid.ordered_builder import OrderedBuilder
from dovetail.loops.grid.repeat_steps import repeated
from dovetail.pipeline.bands import Line, kernel_name
from dovetail.pipeline.names import whole
from dovetail.pipeline.skews import Skew
from dovetail.pipeline.tile_messages import GIVEN, Ledger, Message

END = 1 << 62  # the `user` of messages that carry final results


class Tile(NamedTuple):
    """A tile of a band on a rank. `low`: the first position that it touches."""

    number: int
    band: int
    depth: int
    rank: int
    low: int
    skew: Skew

    @property
    def touched(self) -> Range:
        return self.low, self.low + self.skew.length


def line_program(line: Line) -> Program:
    """The program in bands. Inputs are each rank's block of every array, outputs its block of the written arrays."""

    def make(bands: int) -> Program:
        return _Writer(_of_bands(line, bands)).run()

    return repeated(make, len(line.bands), line.ranks)


def plain_program(line: Line) -> Program:
    """The reference program: the same tiles on rank 0, band after band."""

    def make(bands: int) -> Program:
        return _Writer(_of_bands(line, bands), plain=True).run_on_rank_0()

    return repeated(make, len(line.bands), line.ranks)


def _of_bands(line: Line, bands: int) -> Line:
    """The line with `bands` bands in all, the first one unchanged."""
    first = line.bands[0].depth if bands else 0
    return Line(line.cutting, line.ranks, first + max(bands - 1, 0) * line.depth, line.depth, line.grain)


def tiles_of(line: Line) -> list[Tile]:
    """All tiles, in a valid sequential order."""
    found = list[Tile]()
    for number, band in enumerate(line.bands):
        for low, skew in line.tiles(band.depth):
            found.append(Tile(len(found), number, band.depth, band.rank, low, skew))
    return found


def messages_of(line: Line, tiles: Sequence[Tile]) -> Iterator[Message]:
    """Yield all messages, in the order in which tiles need them, and last those that carry final results.

    A message holds all values that one tile (or, at the start, one rank's block) left around those that are needed, so
    that later tiles need no message of their own for these.
    """
    given = GIVEN - np.repeat(np.arange(line.ranks), [high - low for low, high in line.owned])
    ledger = Ledger({array: given.copy() for array in line.moving})

    def left(maker: int) -> Range:
        tile = tiles[maker] if maker > GIVEN else None
        return tile.touched if tile else line.owned[GIVEN - maker]

    def message(target: int, array: str, run: tuple[int, int, int], user: int) -> Message:
        low, high, maker = run
        source = tiles[maker].rank if maker > GIVEN else GIVEN - maker
        return Message((target, array, ()), source, low, high, max(maker, GIVEN), user)

    for tile in tiles:
        for array in line.moving:
            where = line.cutting.span(line.sweep, array, tile.touched)
            for run in ledger.news(array, tile.rank, where, left):
                yield message(tile.rank, array, run, tile.number)
        for array in line.sweep.targets:
            ledger.write(array, tile.touched, tile.number)
            ledger.has(array, tile.rank)[slice(*tile.touched)] = tile.number
    for array, (rank, owned) in product(line.sweep.targets, enumerate(line.owned)):
        yield from (message(rank, array, run, END) for run in ledger.news(array, None, owned))


class _Writer:
    """Writes the ops, in the order in which each rank executes them."""

    def __init__(self, line: Line, plain: bool = False) -> None:
        self.line, self.plain, self.ranks = line, plain, range(line.ranks)
        name = f"{'plain_' * plain}bands_{line.cutting.pipelined.name}"
        self.builder = b = OrderedBuilder(name, line.ranks)
        self.compute, self.send, self.recv = b.lane("compute", "compute"), b.lane("send", "net"), b.lane("recv", "net")
        self.recv_back = b.lane("recv_back", "net")
        self.under_way: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.tiles = tiles_of(line)
        self._declare()

    def _declare(self) -> None:
        length = self.line.cutting.grid[0]
        own = [high - low for low, high in self.line.owned]
        for array in self.line.cutting.pipelined.nest.arrays:
            moves = self.line.cutting.mapped_axis(array) is not None
            self.builder.buffer(array, "input", own if moves else 1)
            if array in self.line.sweep.targets:
                self.builder.buffer(f"{array}_out", "output", own)
            if array in self.line.moving:
                on_first = [length, *[0] * (self.line.ranks - 1)]
                self.builder.buffer(held_name(array), "scratch", on_first if self.plain else length)
                if not self.plain:
                    self.builder.buffer(received_name(array), "scratch", length)
            elif self.plain and array in self.line.sweep.reads:
                for rank in self.ranks:
                    self.builder.buffer(own_name(array, rank), "scratch", [1, *[0] * (self.line.ranks - 1)])

    # On ranks

    def run(self) -> Program:
        needed, made = defaultdict[int, list[Message]](list), defaultdict[int, list[Message]](list)
        for message in messages_of(self.line, self.tiles):
            needed[message.user].append(message)
            made[message.maker].append(message)
        self._post(made[GIVEN], "what was given")
        for tile in self.tiles:
            text = _line(tile)
            for message in needed[tile.number]:
                self._take(message, text)
            self._tile(tile, text)
            self._post(made[tile.number], text)
        for message in needed[END]:
            self._take(message, "results")
        return self.builder.build()

    def _post(self, messages: Sequence[Message], text: str) -> None:
        for message in messages:
            if message.source != message.target:
                channel = self.builder.channel(message.source, message.target)
                here = self._left(message)
                self.builder.add(Kind.send, message.source, self.send, reads=[here], chan_out=channel, line=text)
                self.under_way[message.source, message.target].append(message)
            elif message.user == END:
                self._copy(message, text)

    def _take(self, wanted: Message, text: str) -> None:
        """Receive a message, and before it those sent earlier on the same channel. Messages back to lower ranks are
        received as soon as there is room, in a lane of their own."""
        if wanted.source == wanted.target:
            return self._copy(wanted, text) if wanted.user != END else None
        queue = self.under_way[wanted.source, wanted.target]
        lane = self.recv_back if wanted.source > wanted.target else self.recv
        while wanted in queue:
            message = queue.popleft()
            channel, there = self.builder.channel(message.source, message.target), self._wanted(message)
            place = there if message.user == END else there._replace(buffer=received_name(message.array))
            self.builder.add(Kind.recv, message.target, lane, writes=[place], chan_in=channel, line=text)
            if place != there:
                self._local(message.target, place, there, text)
        return None

    def _copy(self, message: Message, text: str) -> None:
        self._local(message.target, self._left(message), self._wanted(message), text)

    def _local(self, rank: int, here: Region, there: Region, text: str) -> None:
        self.builder.add(Kind.copy, rank, self.compute, reads=[here], writes=[there], line=text)

    def _left(self, message: Message) -> Region:
        """The region of a message's data on its source."""
        at = message.low - (self.line.owned[message.source][0] if message.maker == GIVEN else 0)
        name = message.array if message.maker == GIVEN else held_name(message.array)
        return Region(name, at, message.high - message.low)

    def _wanted(self, message: Message) -> Region:
        """The region of a message's data on its target."""
        at = message.low - (self.line.owned[message.target][0] if message.user == END else 0)
        name = f"{message.array}_out" if message.user == END else held_name(message.array)
        return Region(name, at, message.high - message.low)

    def _tile(self, tile: Tile, text: str) -> None:
        rank, reads, writes = 0 if self.plain else tile.rank, list[Region](), list[Region]()
        for array in self.line.sweep.reads:
            low, high = self.line.cutting.span(self.line.sweep, array, tile.touched)
            own = own_name(array, tile.rank) if self.plain else array
            reads.append(Region(held_name(array) if array in self.line.moving else own, low, high - low))
            if array in self.line.sweep.targets:
                writes.append(Region(held_name(array), tile.low, tile.skew.length))
        call = self.builder.kernel(kernel_name(self.line.sweep, tile.depth, tile.skew), whole(len(reads)))
        self.builder.add(Kind.compute, rank, self.compute, reads=reads, writes=writes, call=call, line=text)

    # Reference

    def run_on_rank_0(self) -> Program:
        """Return the reference program: rank 0 collects all blocks, computes all tiles, and sends the results."""
        arrays, targets = self.line.cutting.pipelined.nest.arrays, self.line.sweep.targets
        for array, (rank, (low, high)) in product(arrays, enumerate(self.line.owned)):
            if array in self.line.moving:
                self._across(rank, Region(array, 0, high - low), 0, Region(held_name(array), low, high - low))
            elif array in self.line.sweep.reads:
                self._across(rank, Region(array, 0, 1), 0, Region(own_name(array, rank), 0, 1))
        for tile in self.tiles:
            self._tile(tile, _line(tile))
        for array, (rank, (low, high)) in product(targets, enumerate(self.line.owned)):
            self._across(0, Region(held_name(array), low, high - low), rank, Region(f"{array}_out", 0, high - low))
        return self.builder.build()

    def _across(self, source: int, here: Region, target: int, there: Region) -> None:
        self.builder.move((self.compute, self.send, self.recv), source, here, target, there)


def held_name(array: str) -> str:
    """Return the name of the buffer that holds all positions of an array while bands are computed."""
    return f"{array}_held"


def received_name(array: str) -> str:
    """Return the name of the buffer of an array's received values, before they are needed."""
    return f"{array}_received"


def own_name(array: str, rank: int) -> str:
    """Return the name of the buffer, on rank 0, of another rank's input of an array that is not cut."""
    return f"{array}_of{rank}"


def _line(tile: Tile) -> str:
    return f"band {tile.band}, positions {tile.low} to {tile.low + tile.skew.length}"
