"""held: adjust clocks to the messages: within the error of round trips, no message arrives before it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.matching import Messages
from dovetail.trace.clocks import Line, RankClock, parent
from dovetail.trace.process_file import ProcessFile

Array = NDArray[Any]
PARTS = 256  # time slices of a trace; of each the quickest message between two ranks counts
READING_S = 2e-6  # by which two clocks of a process may be read apart
_LITTLE = 1e-3  # weight of moving a clock, relative to the gain of messages


class Quickest(NamedTuple):
    """Messages that took least: who sent them to whom, when they were sent and when they were there."""

    src: Array
    dst: Array
    sent_s: Array
    taken_s: Array


class Moved(NamedTuple):
    """Seconds by which a rank's clock is set ahead when the trace begins, and when it ends; between them on a line."""

    first_s: float
    last_s: float


def quickest(found: Messages) -> Quickest:
    """Of each sender and receiver, in each part of the trace, the message that took least."""
    whole = np.flatnonzero(~np.isnan(found.taken_s))
    columns = Quickest(*(getattr(found, name)[whole] for name in Quickest._fields))
    if not len(whole):
        return columns
    span = max(float(columns.sent_s.max()), 1e-9)
    part = np.clip(columns.sent_s / span * PARTS, 0, PARTS - 1).astype("i8")
    order = np.lexsort((columns.taken_s - columns.sent_s, part, columns.dst, columns.src))
    keys = np.stack([columns.src, columns.dst, part])[:, order]
    least = order[np.append(True, np.any(np.diff(keys, axis=1) != 0, axis=0))]
    return Quickest(*(column[least] for column in columns))


def held_to(seen: Quickest, clocks: Sequence[RankClock], processes: Sequence[ProcessFile]) -> list[Moved] | None:
    """How the clocks are to be moved, each within its error, so that the quickest message takes most; None where
    no way of moving them lets every message come after it was sent, or their errors are not known.

    That is a linear programme in what each clock is moved by at either end (as Duda and others, Estimating global time
    in distributed systems, 1987, bound a line by the messages above and below it).
    """
    at = {process.rank: i for i, process in enumerate(processes)}
    above = [_above(process, at) for process in processes]
    if any(clock.error_ns is None for clock in clocks) or not set(np.unique([seen.src, seen.dst])) <= set(at):
        return None
    room = [_room_s(clocks, i, over) for i, over in enumerate(above)]
    limits, least = _limits(seen, at, len(clocks))
    moved = _solved(above, room, limits, least)
    return None if moved is None else [Moved(*moved[2 * i : 2 * i + 2]) for i in range(len(clocks))]


def moved(clock: RankClock, by: Moved, start_ns: float, span_s: float) -> RankClock:
    """The clock moved over a trace that begins at `start_ns`; its error is as much more."""
    if by == Moved(0.0, 0.0):
        return clock
    begin = round(start_ns)
    step = Line(begin, begin + by.first_s * 1e9, 1 + (by.last_s - by.first_s) / max(span_s, 1e-9))
    error_ns = None if clock.error_ns is None else clock.error_ns + max(map(abs, by)) * 1e9
    return replace(clock, line=clock.line.then(step), error_ns=error_ns)


def _above(process: ProcessFile, at: dict[int, int]) -> int | None:
    """Which process's clock this one's was compared with."""
    if process.rank == process.base:
        return at.get(0) if process.rank else None
    return at.get(process.base + parent(process.rank - process.base))


def _room_s(clocks: Sequence[RankClock], i: int, above: int | None) -> float:
    """How far a clock may be moved against the clock that it was compared with; 0 if they are the same clock."""
    if above is None:
        return 0.0
    more_ns = (clocks[i].error_ns or 0.0) - (clocks[above].error_ns or 0.0)
    return more_ns * 1e-9 + READING_S if more_ns > 0 else 0.0


def _limits(seen: Quickest, at: dict[int, int], count: int) -> tuple[Array, Array]:
    """Of each message: what it loses by each clock's being set ahead at either end, and what it took."""
    span = max(float(np.max(seen.taken_s, initial=0.0)), 1e-9)
    rows, table = np.zeros((len(seen.src), 2 * count)), np.arange(len(seen.src))
    index = np.vectorize(at.__getitem__, otypes=["i8"])
    for rank, when, sign in ((seen.src, seen.sent_s, 1.0), (seen.dst, seen.taken_s, -1.0)):
        share, i = np.clip(when / span, 0, 1), index(rank)
        rows[table, 2 * i] += sign * (1 - share)
        rows[table, 2 * i + 1] += sign * share
    return rows, seen.taken_s - seen.sent_s


def _solved(above: Sequence[int | None], room: Sequence[float], limits: Array, took: Array) -> list[float] | None:
    """Seconds at either end of each clock; then their sizes against the one above, and what the quickest message took,
    are unknowns too."""
    from scipy.optimize import linprog

    ends = limits.shape[1]
    steps = np.eye(ends)
    for i, over in enumerate(above):
        if over is not None:
            steps[2 * i, 2 * over] = steps[2 * i + 1, 2 * over + 1] = -1
    unit = max(float(np.abs(took).min(initial=np.inf)), float(max(room)), 1e-9)  # so that numbers are about 1
    free, ones = np.zeros((ends, 1)), np.ones((len(limits), 1))
    rows = [
        np.hstack([limits, np.zeros((len(limits), ends)), ones]),
        np.hstack([steps, -np.eye(ends), free]),
        np.hstack([-steps, -np.eye(ends), free]),
    ]
    most = [(0, space / unit) for space in np.repeat(room, 2)]
    bounds = [(None, None)] * ends + most + [(0, None)]
    goal = [0.0] * ends + [_LITTLE / ends] * ends + [-1.0]
    right = np.concatenate([took / unit, np.zeros(2 * ends)])
    found = linprog(goal, A_ub=np.vstack(rows), b_ub=right, bounds=bounds, method="highs")
    return [float(x) * unit for x in found.x[:ends]] if found.status == 0 else None
