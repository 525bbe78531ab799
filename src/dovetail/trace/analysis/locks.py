"""locks: how long one-sided calls wait for a lock while the rank that holds it works instead of moving data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.decode import KINDS
from dovetail.trace.trace import Trace

LOCK, UNLOCK = "MPI_Win_lock", "MPI_Win_unlock"
_MOVES = [KINDS.index(kind) for kind in ("put", "get", "window")]
Floats = NDArray[np.float64]


class Call(NamedTuple):
    """A call of a rank: its row in the trace, and its times."""

    row: int
    start_s: float
    end_s: float


def locked_s(trace: Trace, calls: Sequence[Sequence[Call]]) -> dict[int, float]:
    """Return by row the seconds of each one-sided call in which another rank worked between a lock and its unlock.

    Only locks of the same target in the same window count. `calls`: the calls of each rank, in order of time.
    """
    col, names = trace.columns, trace.names
    moves = np.isin(col["kind"], _MOVES) & (col["part"] == 0) & (col["peer"] >= 0)
    if not {LOCK, UNLOCK} <= {names[i] for i in np.unique(col["name"][moves]).tolist()}:
        return {}
    held: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    asked: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for each in calls:
        about = [(it, _lock(trace, it.row) if moves[it.row] else None) for it in each]
        for key, call in ((key, it) for it, key in about if key is not None):
            asked[key].append(call)
        for key, interval in _held(trace, about):
            held[key].append(interval)
    found: dict[int, float] = {}
    for key, intervals in held.items():
        bounds_s = _union(np.array(intervals))
        waits = asked[key]
        over_s = _overlap(bounds_s, np.array([(it.start_s, it.end_s) for it in waits]))
        found |= {it.row: s for it, s in zip(waits, over_s.tolist(), strict=True) if s > 0}
    return found


def _lock(trace: Trace, row: int) -> tuple[int, int]:
    return int(trace.columns["comm"][row]), int(trace.columns["peer"][row])


def _held(
    trace: Trace, calls: Sequence[tuple[Call, tuple[int, int] | None]]
) -> Iterator[tuple[tuple[int, int], tuple[float, float]]]:
    """Yield each time between two calls of a rank in which it holds a lock, and which one."""
    mine: set[tuple[int, int]] = set()
    for (call, key), (after, _) in pairwise(calls):
        name = trace.names[int(trace.columns["name"][call.row])]
        if key is not None and name in (LOCK, UNLOCK):
            mine = mine | {key} if name == LOCK else mine - {key}
        if after.start_s > call.end_s:
            yield from ((one, (call.end_s, after.start_s)) for one in sorted(mine))


def _union(intervals: Floats) -> Floats:
    """Return disjoint intervals that cover the same time."""
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reached_s = np.maximum.accumulate(intervals[:, 1])
    begins = np.concatenate([[True], intervals[1:, 0] > reached_s[:-1]])
    ends = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(intervals) - 1]])
    return np.stack([intervals[begins, 0], reached_s[ends]], axis=1)


def _overlap(disjoint: Floats, asked: Any) -> Floats:
    """Return how much of each asked interval the disjoint ones cover."""
    before_s = np.concatenate([[0.0], np.cumsum(disjoint[:, 1] - disjoint[:, 0])])

    def until(time_s: Floats) -> Floats:
        at = np.searchsorted(disjoint[:, 0], time_s, side="right")
        last = np.maximum(at - 1, 0)
        more = np.clip(time_s - disjoint[last, 0], 0.0, disjoint[last, 1] - disjoint[last, 0])
        found: Floats = np.where(at > 0, before_s[last] + more, 0.0)
        return found

    return until(asked[:, 1]) - until(asked[:, 0])
