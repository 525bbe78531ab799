"""halo_depth: how many ghost rows the sweeps between two exchanges need, and how many of them are computed locally."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.stencil.sweeps import Event, RowSweep, Stencil, events

Key = tuple[str, int]  # an array and a version of it


class Widths(NamedTuple):
    """Numbers of ghost rows below and above a part's own rows, by axis."""

    low: tuple[int, ...]
    high: tuple[int, ...]


class Block(NamedTuple):
    """The sweeps between two exchanges. `beyond`: ghost rows that each of them computes; `needs`: ghost rows of each
    version that a part must have received before."""

    events: list[Event]
    beyond: list[Widths]
    needs: dict[Key, Widths]


def blocks_of(stencil: Stencil, steps: int, sweeps: int, test: int = 0, edged: Collection[str] = ()) -> Iterator[Block]:
    """Yield the sweeps of a run in blocks of `sweeps`. Every `test`-th step ends a block, and so does the run.

    `edged`: names of the sweeps that do not compute all rows.
    """
    all_events = list(events(stencil, steps))
    window = test * len(stencil.sweeps) or max(len(all_events), 1)
    for begin in range(0, len(all_events), window):
        for start in range(begin, min(begin + window, len(all_events)), sweeps):
            yield _block(stencil, all_events[start : min(start + sweeps, begin + window)], edged)


def _block(stencil: Stencil, some: list[Event], edged: Collection[str]) -> Block:
    """Return a block. Works backwards from the last sweep, which computes own rows only."""
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
    """Return whether the rows that a sweep does not compute must be copied from the version before.

    They must if the plane that the sweep writes does not hold them yet, or if the sweep writes directly to the result.
    `leaving`: the version of each array that is written there.
    """
    name = event.sweep.target
    is_new = event.version < stencil.given[name] + stencil.depth[name] or (leaving or {}).get(name) == event.version
    return event.sweep.name in edged and stencil.depth[name] > 1 and is_new


def stays(stencil: Stencil, edged: Collection[str], event: Event) -> bool:
    """Return whether a sweep updates an array in place, so that rows it does not compute keep their values."""
    return event.sweep.name in edged and stencil.depth[event.sweep.target] == 1


def wider(one: Widths, other: Widths) -> Widths:
    return Widths(*(tuple(map(max, a, b)) for a, b in zip(one, other, strict=True)))


def reach(sweep: RowSweep) -> Widths:
    """Return how many rows below and above a row a sweep reads."""
    low, high = zip(*(sweep.reach(axis) for axis in range(len(sweep.operands[0].shift))), strict=True)
    return Widths(tuple(-each for each in low), high)


def lags(some: Sequence[Event], depth: Mapping[str, int], mirrored: Collection[str] = ()) -> list[int]:
    """Return how many rows each sweep must lag behind the first, if all of them process one tile of rows after another.

    A row is computed after the rows that it reads, after the rows that read what its plane held before, and after the
    same row of the version before (from which it may copy edges). In reflecting arrays (`mirrored`), reading k rows
    back near an end means reading k rows ahead.

    >>> from dovetail.loops.problems import acoustic3d_of, jacobi2d
    >>> from dovetail.stencil.sweeps import stencil_of
    >>> for made in (jacobi2d, acoustic3d_of(4)):
    ...     found = stencil_of(made)
    ...     print(lags([*events(found, 3)], found.depth))
    [0, 1, 2]
    [0, 2, 4]
    """
    found = list[int]()
    for event in some:
        target = event.sweep.target
        least = 0
        for before, lag in zip(some, found, strict=False):
            for operand, version in zip(event.sweep.operands, event.reads, strict=True):
                if (operand.array, version) == (before.sweep.target, before.version):
                    by = operand.shift[0]
                    least = max(least, lag + (abs(by) if operand.array in mirrored else by))
            for operand, version in zip(before.sweep.operands, before.reads, strict=True):
                if operand.array == target and (event.version - version) % depth[target] == 0:
                    by = -operand.shift[0]
                    least = max(least, lag + (abs(by) if target in mirrored else by))
            if before.sweep.target == target:
                least = max(least, lag)
        found.append(least)
    return found
