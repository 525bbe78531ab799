"""tile_messages: which positions of which faces a tile must receive, and which other tile computes them."""

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
from dovetail.pipeline.skews import Skew, span_of
from dovetail.pipeline.sweeps import Single

Ints = NDArray[np.int64]
Ghost = tuple[int, str, Vector]  # a face: receiving part, array, and offset of the sending part
GIVEN, NEVER = -1, -1 << 62  # numbers of "events": the one that makes the initial values, and one that never happens


class Event(NamedTuple):
    """A tile of a sweep on a part with its positions and extent, or a single statement with its position."""

    step: int
    phase: Sweep | Single
    part: int
    tile: Range
    skew: Skew


class Message(NamedTuple):
    """Positions [low, high) of a face, with the values that event `maker` wrote and event `user` is the first to need.

    `source`: the part that sends them. It may be the receiving part itself if the array has no faces.
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
    """Return all events, in a valid sequential order: tile after tile, each on all parts. A single statement is
    executed by every part that holds a copy of the element that it writes."""
    found = []
    for step in range(steps):
        for phase in cutting.pipelined.phases:
            if isinstance(phase, Single):
                at = target_place(cutting, phase)
                holders = cutting.holders(_grid_place(cutting, phase))
                found += [Event(step, phase, part, (at, at + 1), Skew(1, 0, 1)) for part in holders]
                continue
            for tile in cutting.tiles(phase, grain)[:most_tiles]:
                for part in cutting.parts_in_turn(phase):
                    if about := cutting.tile_of(phase, part, tile):
                        low, skew = about
                        found.append(Event(step, phase, part, (low, low + skew.length), skew))
    return found


def _grid_place(cutting: Cutting, single: Single) -> dict[int, int]:
    """Return the coordinates of the element that a single statement writes."""
    target = single.statement.target
    sides = zip(cutting.axes(target.array), target.at, strict=True)
    return {axis: at.at(cutting.values) for axis, at in sides if axis is not None}


def target_place(cutting: Cutting, single: Single) -> int:
    """Return the position that a single statement writes."""
    return _grid_place(cutting, single).get(cutting.mapped, 0)


def targets_of(event: Event) -> tuple[str, ...]:
    """Return the arrays that an event writes."""
    phase = event.phase
    return phase.targets if isinstance(phase, Sweep) else (phase.statement.target.array,)


def messages_of(cutting: Cutting, events: list[Event]) -> list[Message]:
    """Return all messages of faces, in the order of first need; needed initial values are sent at the start."""
    held = list(product(range(cutting.num_parts), cutting.pipelined.nest.arrays))
    ledger = Ledger({each: np.full(cutting.length(each[1]), GIVEN) for each in held})
    found = list[Message]()
    for number, event in enumerate(events):
        part, phase = event.part, event.phase
        wanted = spans(cutting, phase, part, event.tile[0], event.skew) if isinstance(phase, Sweep) else ()
        for array, offset, where in wanted:
            source = cutting.neighbour(part, offset)
            assert source is not None
            ghost = part, array, offset
            found += [Message(ghost, source, *run, number) for run in ledger.news((source, array), ghost, where)]
        for array in targets_of(event):
            ledger.write((part, array), event.tile, number)
    return _given_together(found)


class Ledger:
    """Records which event wrote each position of an array last, and which version of it each reader has.

    `newest`: by key, the number of the last event for each position. A key stands for an array, or a part's array.
    """

    def __init__(self, newest: Mapping[Hashable, Ints]) -> None:
        self.newest, self.held = newest, dict[tuple[Hashable, Hashable], Ints]()

    def write(self, key: Hashable, where: Range, number: int) -> None:
        """Record that an event has written positions."""
        self.newest[key][slice(*where)] = number

    def has(self, key: Hashable, reader: Hashable) -> Ints:
        """Return the events whose values a reader has, by position."""
        if (key, reader) not in self.held:
            self.held[key, reader] = np.full(len(self.newest[key]), NEVER)
        return self.held[key, reader]

    def news(
        self, key: Hashable, reader: Hashable, where: Range, left: Callable[[int], Range] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (low, high, maker) for each run of positions of which a reader lacks the newest values, all written by
        one event, and record that the reader has them.

        `left(maker)`: the positions that an event wrote. With it, a run extends to all adjacent positions that still
        hold the event's values; else it ends with `where`.
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
    """Return the range around position `at`, within `where`, that the same event wrote last."""
    others = np.flatnonzero(newest[slice(*where)] != newest[at]) + where[0]
    place = int(np.searchsorted(others, at))
    return int(others[place - 1]) + 1 if place else where[0], int(others[place]) if place < len(others) else where[1]


def spans(cutting: Cutting, sweep: Sweep, part: int, low: int, skew: Skew) -> Iterator[tuple[str, Vector, Range]]:
    """Yield (array, offset, positions) of each face that a tile reads."""
    for array in sweep.reads:
        for offset, needs in cutting.needs(sweep, array, part).items():
            found = span_of(skew, needs, sweep.signs[cutting.mapped])
            if found and cutting.neighbour(part, offset) is not None:
                moves = cutting.mapped_axis(array) is not None
                yield array, offset, (low + found[0], low + found[1]) if moves else (0, 1)


def _given_together(found: list[Message]) -> list[Message]:
    """Merge messages of initial values: one for each run of positions of a face, needed when any of them is."""
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
