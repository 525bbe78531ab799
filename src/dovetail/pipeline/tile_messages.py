"""tile_messages: which positions of which face a tile still needs, and which other tile computes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.loops.analysis.sweeps import Sweep
from dovetail.loops.grid.blocks import Range
from dovetail.loops.matrices import Vector
from dovetail.pipeline.decomposition import Cutting
from dovetail.pipeline.skews import Lean, span_of
from dovetail.pipeline.sweeps import Single

Ints = NDArray[np.int64]
Ghost = tuple[int, str, Vector]  # a part, an array, and the offset of the part that its face is of
GIVEN, NEVER = -1, -1 << 62  # what makes the values that are there at first, and what nobody has


class Event(NamedTuple):
    """A tile of a sweep on a part, with the positions that it touches and how it leans; or a single statement, with the
    position that it writes."""

    step: int
    phase: Sweep | Single
    part: int
    tile: Range
    lean: Lean


class Message(NamedTuple):
    """Positions of a face that were left so by one event, `maker`, and are needed by another, `user`, first.

    `source`: the part that sends it, which may be the one that needs it where an array has no faces.
    """

    ghost: Ghost
    source: int
    low: int
    high: int
    maker: int
    user: int

    @property
    def target(self) -> int:
        return self.ghost[0]

    @property
    def array(self) -> str:
        return self.ghost[1]


def events_of(cutting: Cutting, steps: int, grain: int, most_tiles: int | None = None) -> list[Event]:
    """All that is computed, in an order in which one processor could do it: tile after tile, each by all parts; a
    single statement by every part that holds a copy of the element that it writes."""
    found = []
    for step in range(steps):
        for phase in cutting.pipelined.phases:
            if isinstance(phase, Single):
                at = target_place(cutting, phase)
                holders = cutting.holders(_grid_place(cutting, phase))
                found += [Event(step, phase, part, (at, at + 1), Lean(1, 0, 1)) for part in holders]
                continue
            for tile in cutting.tiles(phase, grain)[:most_tiles]:
                for part in cutting.parts_in_turn(phase):
                    if about := cutting.tile_of(phase, part, tile):
                        low, lean = about
                        found.append(Event(step, phase, part, (low, low + lean.length), lean))
    return found


def _grid_place(cutting: Cutting, single: Single) -> dict[int, int]:
    """The coordinates of the element that a single statement writes."""
    target = single.statement.target
    sides = zip(cutting.axes(target.array), target.at, strict=True)
    return {axis: at.at(cutting.values) for axis, at in sides if axis is not None}


def target_place(cutting: Cutting, single: Single) -> int:
    """The position that a single statement writes."""
    return _grid_place(cutting, single).get(cutting.mapped, 0)


def targets_of(event: Event) -> tuple[str, ...]:
    """The arrays that an event writes."""
    phase = event.phase
    return phase.targets if isinstance(phase, Sweep) else (phase.statement.target.array,)


def messages_of(cutting: Cutting, events: list[Event]) -> list[Message]:
    """All messages of faces, in the order in which they are first needed. What was given is sent at once, as far as
    anybody needs it."""
    held = list(product(range(cutting.num_parts), cutting.pipelined.nest.arrays))
    ledger = Ledger({each: np.full(cutting.length(each[1]), GIVEN) for each in held})
    found = list[Message]()
    for number, event in enumerate(events):
        part, phase = event.part, event.phase
        wanted = spans(cutting, phase, part, event.tile[0], event.lean) if isinstance(phase, Sweep) else ()
        for array, offset, where in wanted:
            source = cutting.neighbour(part, offset)
            assert source is not None
            ghost = part, array, offset
            found += [Message(ghost, source, *run, number) for run in ledger.news((source, array), ghost, where)]
        for array in targets_of(event):
            ledger.write((part, array), event.tile, number)
    return _given_together(found)


class Ledger:
    """Which event has written each position of an array last, and what of it each reader has.

    `newest`: the events, by any key of an array, or of what a part has of it.
    """

    def __init__(self, newest: Mapping[Hashable, Ints]) -> None:
        self.newest, self.held = newest, dict[tuple[Hashable, Hashable], Ints]()

    def write(self, key: Hashable, where: Range, number: int) -> None:
        """Note that an event has written positions."""
        self.newest[key][slice(*where)] = number

    def has(self, key: Hashable, reader: Hashable) -> Ints:
        """The events whose values a reader has."""
        if (key, reader) not in self.held:
            self.held[key, reader] = np.full(len(self.newest[key]), NEVER)
        return self.held[key, reader]

    def news(
        self, key: Hashable, reader: Hashable, where: Range, left: Callable[[int], Range] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (low, high, maker), what a reader lacks of what one event has left, and note that the reader has it.

        `left`: what an event wrote. With it a reader gets all that is left of it there, else what lies in `where`.
        """
        newest, held = self.newest[key], self.has(key, reader)
        ends = np.flatnonzero(np.diff(newest[slice(*where)])) + where[0] + 1
        for low, high in pairwise([where[0], *ends.tolist(), where[1]]):
            fresh = np.flatnonzero(held[low:high] != newest[low:high])
            if len(fresh):
                maker = int(newest[low])
                found = _around(newest, low, left(maker)) if left else (low + int(fresh[0]), low + int(fresh[-1]) + 1)
                held[slice(*found)] = maker
                yield *found, maker


def _around(newest: Ints, at: int, where: Range) -> Range:
    """The positions around one, among some, that the same event has left."""
    others = np.flatnonzero(newest[slice(*where)] != newest[at]) + where[0]
    place = int(np.searchsorted(others, at))
    return int(others[place - 1]) + 1 if place else where[0], int(others[place]) if place < len(others) else where[1]


def spans(cutting: Cutting, sweep: Sweep, part: int, low: int, lean: Lean) -> Iterator[tuple[str, Vector, Range]]:
    """The faces that a tile reads of other parts, and which positions of them."""
    for array in sweep.reads:
        for offset, needs in cutting.needs(sweep, array, part).items():
            found = span_of(lean, needs, sweep.signs[cutting.mapped])
            if found and cutting.neighbour(part, offset) is not None:
                moves = cutting.mapped_axis(array) is not None
                yield array, offset, (low + found[0], low + found[1]) if moves else (0, 1)


def _given_together(found: list[Message]) -> list[Message]:
    """What was given of a face, in one message for each run, needed by the first that needs any of it."""
    runs: dict[Ghost, list[Message]] = defaultdict(list)
    for message in found:
        if message.maker == GIVEN:
            runs[message.ghost].append(message)
    merged: list[Message] = []
    for some in runs.values():
        some.sort(key=lambda message: message.low)
        for message in some:
            last = merged[-1] if merged else None
            if last and last.ghost == message.ghost and message.low <= last.high:
                merged[-1] = last._replace(high=max(last.high, message.high), user=min(last.user, message.user))
            else:
                merged.append(message)
    return sorted([*merged, *(m for m in found if m.maker != GIVEN)], key=lambda message: message.user)
