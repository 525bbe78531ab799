"""clock_bounds: adjust clocks within their errors, so that no message arrives before it was sent."""

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
PARTS = 256  # a trace is divided into this many parts; in each, the fastest message between two ranks counts
READING_S = 2e-6  # two clocks of a process may be read this many seconds apart
_LITTLE = 1e-3  # weight, in the objective, of moving clocks, relative to the time of the fastest message


class Quickest(NamedTuple):
    """The fastest messages: source, destination, and when they were sent and received."""

    src: Array
    dst: Array
    sent_s: Array
    received_s: Array


class Moved(NamedTuple):
    """Seconds by which a rank's clock is set ahead at the trace's begin and at its end; linear between them."""

    first_s: float
    last_s: float


def quickest(found: Messages) -> Quickest:
    """Return the fastest message between each two ranks in each of PARTS parts of the trace."""
    whole = np.flatnonzero(~np.isnan(found.received_s))
    columns = Quickest(*(getattr(found, name)[whole] for name in Quickest._fields))
    if not len(whole):
        return columns
    span = max(float(columns.sent_s.max()), 1e-9)
    part = np.clip(columns.sent_s / span * PARTS, 0, PARTS - 1).astype("i8")
    order = np.lexsort((columns.received_s - columns.sent_s, part, columns.dst, columns.src))
    keys = np.stack([columns.src, columns.dst, part])[:, order]
    first = order[np.append(True, np.any(np.diff(keys, axis=1) != 0, axis=0))]
    return Quickest(*(column[first] for column in columns))


def clock_moves(seen: Quickest, clocks: Sequence[RankClock], processes: Sequence[ProcessFile]) -> list[Moved] | None:
    """Return how to move each clock within its error, so that the fastest message takes as long as possible.

    Solves a linear program in the seconds by which each clock is moved at the trace's begin and end. Returns None if no
    such moves let every message arrive after it was sent, or if the clocks' errors are unknown. Source: Duda et al.,
    Estimating global time in distributed systems, 1987, who bound a line by the messages above and below it.
    """
    at = {process.rank: i for i, process in enumerate(processes)}
    above = [_above(process, at) for process in processes]
    if any(clock.error_ns is None for clock in clocks) or not set(np.unique([seen.src, seen.dst])) <= set(at):
        return None
    room = [_room_s(clocks, i, over) for i, over in enumerate(above)]
    moved = _solved(above, room, *_limits(seen, at, len(clocks)))
    return None if moved is None else [Moved(*moved[2 * i : 2 * i + 2]) for i in range(len(clocks))]


def moved(clock: RankClock, by: Moved, start_ns: float, span_s: float) -> RankClock:
    """Return the moved clock, for a trace of `span_s` seconds from `start_ns` on. Its error grows by the move."""
    if by == Moved(0.0, 0.0):
        return clock
    begin = round(start_ns)
    step = Line(begin, begin + by.first_s * 1e9, 1 + (by.last_s - by.first_s) / max(span_s, 1e-9))
    error_ns = None if clock.error_ns is None else clock.error_ns + max(map(abs, by)) * 1e9
    return replace(clock, line=clock.line.then(step), error_ns=error_ns)


def _above(process: ProcessFile, at: dict[int, int]) -> int | None:
    """Return the index of the process with whose clock this process compared its own; None for rank 0."""
    if process.rank == process.base:
        return at.get(0) if process.rank else None
    return at.get(process.base + parent(process.rank - process.base))


def _room_s(clocks: Sequence[RankClock], i: int, above: int | None) -> float:
    """Return by how many seconds a clock may be moved relative to its parent's; 0 if they are the same clock."""
    if above is None:
        return 0.0
    more_ns = (clocks[i].error_ns or 0.0) - (clocks[above].error_ns or 0.0)
    return more_ns * 1e-9 + READING_S if more_ns > 0 else 0.0


def _limits(seen: Quickest, at: dict[int, int], count: int) -> tuple[Array, Array]:
    """Return the linear constraints `A @ moves + fastest <= took`, one row per message.

    Column 2i of A is the move of clock i at the trace's begin, column 2i + 1 the one at its end; a move of the sender's
    clock shortens the message, one of the receiver's lengthens it. `took`: how long the messages took, in s.
    """
    span = max(float(np.max(seen.received_s, initial=0.0)), 1e-9)
    rows, table = np.zeros((len(seen.src), 2 * count)), np.arange(len(seen.src))
    index = np.vectorize(at.__getitem__, otypes=["i8"])
    for rank, when, sign in ((seen.src, seen.sent_s, 1.0), (seen.dst, seen.received_s, -1.0)):
        share, i = np.clip(when / span, 0, 1), index(rank)
        rows[table, 2 * i] += sign * (1 - share)
        rows[table, 2 * i + 1] += sign * share
    return rows, seen.received_s - seen.sent_s


def _solved(above: Sequence[int | None], room: Sequence[float], limits: Array, took: Array) -> list[float] | None:
    """Solve the linear program; return the seconds at both ends of each clock, or None if it has no solution.

    Further unknowns: the sizes of the moves relative to the parent's clock, and the time of the fastest message.
    """
    from scipy.optimize import linprog

    ends = limits.shape[1]
    steps = np.eye(ends)
    for i, over in enumerate(above):
        if over is not None:
            steps[2 * i, 2 * over] = steps[2 * i + 1, 2 * over + 1] = -1
    unit = max(float(np.abs(took).min(initial=np.inf)), float(max(room)), 1e-9)  # scales the numbers to about 1
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
