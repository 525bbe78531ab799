"""tile_messages: which positions of which face a tile still needs, and which other tile computes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.loops.matrices import Vector
from dovetail.loops.sweeps import Sweep
from dovetail.pipeline.decomposition import Cutting, Range
from dovetail.pipeline.skews import Lean, span_of
from dovetail.pipeline.sweeps import Single

GIVEN = -1  # what makes the values that are there at first
NEVER = -2

Ghost = tuple[int, str, Vector]  # a part, an array, and the offset of the part that its face is of


class Event(NamedTuple):
    """A tile of a sweep on a part, with the positions that it touches and how it leans; or a single statement, with the
    position that it writes."""

    step: int
    phase: Sweep | Single
    part: int
    tile: Range
    lean: Lean


class Message(NamedTuple):
    """Positions of a face that were left so by one event, `maker`, and are needed by another, `user`, first."""

    ghost: Ghost
    source: int
    low: int
    high: int
    maker: int
    user: int


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
    ledger, found = _Ledger(cutting), list[Message]()
    for number, event in enumerate(events):
        found += ledger.needed(number, event)
        ledger.write(number, event)
    return _given_together(found)


class _Ledger:
    """Who has last written each position of each face, and what of it the part that needs it has."""

    def __init__(self, cutting: Cutting) -> None:
        self.cutting = cutting
        self.newest: dict[Ghost, NDArray[np.int64]] = {}
        self.held: dict[Ghost, NDArray[np.int64]] = {}
        self.source: dict[Ghost, int] = {}
        self.of_source: dict[tuple[int, str], list[Ghost]] = defaultdict(list)
        for part in range(cutting.num_parts):
            for array in cutting.pipelined.nest.arrays:
                for offset in cutting.faces(array):
                    self._open(part, array, offset)

    def _open(self, part: int, array: str, offset: Vector) -> None:
        source = self.cutting.neighbour(part, offset)
        if source is None:
            return
        ghost, length = (part, array, offset), self.cutting.length(array)
        self.newest[ghost], self.held[ghost] = np.full(length, GIVEN), np.full(length, NEVER)
        self.source[ghost] = source
        self.of_source[source, array].append(ghost)

    def needed(self, number: int, event: Event) -> Iterator[Message]:
        """What a tile needs and has not, in runs that one event left."""
        if not isinstance(event.phase, Sweep):
            return
        for array, offset, (low, high) in spans(self.cutting, event.phase, event.part, event.tile[0], event.lean):
            yield from self._news((event.part, array, offset), low, high, number)

    def _news(self, ghost: Ghost, low: int, high: int, number: int) -> Iterator[Message]:
        newest, held = self.newest[ghost][low:high], self.held[ghost][low:high]
        ends = np.flatnonzero(np.diff(newest)) + 1
        for start, end in zip([0, *ends.tolist()], [*ends.tolist(), len(newest)], strict=True):
            fresh = np.flatnonzero(held[start:end] != newest[start:end])
            if len(fresh):
                first, last = start + int(fresh[0]), start + int(fresh[-1]) + 1
                yield Message(ghost, self.source[ghost], low + first, low + last, int(newest[start]), number)
                held[first:last] = newest[first:last]

    def write(self, number: int, event: Event) -> None:
        for ghost in (ghost for array in targets_of(event) for ghost in self.of_source[event.part, array]):
            self.newest[ghost][event.tile[0] : event.tile[1]] = number


def spans(cutting: Cutting, sweep: Sweep, part: int, low: int, lean: Lean) -> Iterator[tuple[str, Vector, Range]]:
    """The faces that a tile reads of other parts, and which positions of them."""
    for array in sweep.reads:
        for offset, needs in cutting.needs(sweep, array, part).items():
            found = span_of(lean, needs, sweep.signs[cutting.mapped])
            if found and cutting.neighbour(part, offset) is not None:
                moves = cutting.mapped_axis(array) is not None
                yield array, offset, (low + found[0], low + found[1]) if moves else (0, 1)


def span(cutting: Cutting, array: str, tile: Range, back: int, ahead: int) -> Range:
    """Positions of an array that a tile reads, from `back` before its own to `ahead` beyond."""
    if cutting.mapped_axis(array) is None:
        return 0, 1
    return tile[0] + back, tile[1] + ahead


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
