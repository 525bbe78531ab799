"""halo_depth: how far beyond its own rows a part computes between two exchanges, and which ghost rows that takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.loops.analysis.lags import Lag, least_lags
from dovetail.stencil.sweeps import Event, RowSweep, Stencil, events

Key = tuple[str, int]  # an array and a version of it


class Widths(NamedTuple):
    """How many rows below and above its own a part holds, by axis."""

    low: tuple[int, ...]
    high: tuple[int, ...]


class Block(NamedTuple):
    """Sweeps between two exchanges: how far beyond its own rows each part computes, and what it must have received."""

    events: list[Event]
    beyond: list[Widths]
    needs: dict[Key, Widths]


def blocks_of(stencil: Stencil, steps: int, sweeps: int, test: int = 0, edged: Collection[str] = ()) -> Iterator[Block]:
    """The sweeps of a run, `sweeps` between two exchanges; a block ends with the run, and with each `test`-th step.
    `edged`: the sweeps that do not compute all rows."""
    all_events = list(events(stencil, steps))
    window = test * len(stencil.sweeps) or max(len(all_events), 1)
    for begin in range(0, len(all_events), window):
        for start in range(begin, min(begin + window, len(all_events)), sweeps):
            yield _block(stencil, all_events[start : min(start + sweeps, begin + window)], edged)


def _block(stencil: Stencil, some: list[Event], edged: Collection[str]) -> Block:
    """Backwards from the last sweep, which computes its own rows only."""
    axes = stencil.row_axes
    none, needs, beyond = Widths((0,) * axes, (0,) * axes), dict[Key, Widths](), list[Widths]()
    for event in reversed(some):
        wide = needs.pop((event.sweep.target, event.version), none)
        beyond.insert(0, wide)
        if keeps(stencil, edged, event) or stays(stencil, edged, event):
            key = event.sweep.target, event.version - 1
            needs[key] = wider(needs.get(key, none), wide)
        for operand, version in zip(event.sweep.operands, event.reads, strict=True):
            low = tuple(width + max(-by, 0) for width, by in zip(wide.low, operand.shift, strict=True))
            high = tuple(width + max(by, 0) for width, by in zip(wide.high, operand.shift, strict=True))
            key = operand.array, version
            needs[key] = wider(needs.get(key, none), Widths(low, high))
    return Block(some, beyond, needs)


def keeps(stencil: Stencil, edged: Collection[str], event: Event, leaving: Mapping[str, int] | None = None) -> bool:
    """Whether what a sweep does not compute is copied from the version before: its plane may not have had it yet, nor
    have those that are `leaving`, versions by array that are written to another place."""
    name = event.sweep.target
    is_new = event.version < stencil.given[name] + stencil.depth[name] or (leaving or {}).get(name) == event.version
    return event.sweep.name in edged and stencil.depth[name] > 1 and is_new


def stays(stencil: Stencil, edged: Collection[str], event: Event) -> bool:
    """Whether a sweep leaves rows of an array in place as the version before has them."""
    return event.sweep.name in edged and stencil.depth[event.sweep.target] == 1


def wider(one: Widths, other: Widths) -> Widths:
    return Widths(*(tuple(map(max, a, b)) for a, b in zip(one, other, strict=True)))


def reach(sweep: RowSweep) -> Widths:
    """How far beyond a row a sweep reads."""
    low, high = zip(*(sweep.reach(axis) for axis in range(len(sweep.operands[0].shift))), strict=True)
    return Widths(tuple(-each for each in low), high)


def lags(some: Sequence[Event], depth: Mapping[str, int], mirrored: Collection[str] = ()) -> list[int]:
    """How many rows each sweep must stay behind the first, where tiles of rows are taken by all of them in turn.

    A row is computed after those that it needs, and after those that need what its plane held before; and after that of
    the version before, whose rows at the edge it may keep. Of arrays that are mirrored at the ends, reading so far back
    is reading so far ahead, too.

    >>> from dovetail.loops.problems import acoustic3d_of, jacobi2d
    >>> from dovetail.stencil.sweeps import stencil_of
    >>> for made in (jacobi2d, acoustic3d_of(4)):
    ...     found = stencil_of(made)
    ...     print(lags([*events(found, 3)], found.depth))
    [0, 1, 2]
    [0, 2, 4]
    """
    found = least_lags(len(some), _lags(some, depth, mirrored))
    assert found is not None, "sweeps come after those that they need"
    return found


def _lags(some: Sequence[Event], depth: Mapping[str, int], mirrored: Collection[str]) -> Iterator[Lag]:
    for number, event in enumerate(some):
        target = event.sweep.target
        for other, before in enumerate(some[:number]):
            for operand, version in zip(event.sweep.operands, event.reads, strict=True):
                if (operand.array, version) == (before.sweep.target, before.version):
                    by = operand.shift[0]
                    yield other, number, abs(by) if operand.array in mirrored else by
            for operand, version in zip(before.sweep.operands, before.reads, strict=True):
                if operand.array == target and (event.version - version) % depth[target] == 0:
                    by = -operand.shift[0]
                    yield other, number, abs(by) if target in mirrored else by
            if before.sweep.target == target:
                yield other, number, 0
