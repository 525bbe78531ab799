"""tracks: a timeline's spans in rows without overlap, by time; one or more rows per rank and lane."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.timeline import Timeline

CLOCK_GRAIN_S = 1e-9  # overlaps up to this are ignored


class Track(NamedTuple):
    """Spans `order[first : first + num_spans]` of a rank and lane; `depth` counts up where spans of a lane overlap."""

    rank: int
    lane: int
    depth: int
    first: int
    num_spans: int


def tracks(timeline: Timeline) -> tuple[list[Track], NDArray[np.int64]]:
    """Return the tracks by rank, lane and depth, and the permutation `order` of the timeline's spans."""
    col = timeline.columns
    if not timeline.num_spans:
        return [], np.zeros(0, dtype=np.int64)
    start, end = col["start_s"], np.maximum(col["end_s"], col["start_s"])
    order = np.lexsort((end, start, col["lane"], col["rank"]))
    depth = np.zeros(len(order), dtype=np.int64)
    bounds = _bounds(col["rank"][order], col["lane"][order])
    for low, high in pairwise(bounds):
        rows = order[low:high]
        if np.any(np.maximum.accumulate(end[rows])[:-1] - start[rows][1:] > CLOCK_GRAIN_S):
            depth[rows] = _depths(start[rows], end[rows])
    order = np.lexsort((end, start, depth, col["lane"], col["rank"])).astype(np.int64)
    bounds = _bounds(col["rank"][order], col["lane"][order], depth[order])
    found = []
    for low, high in pairwise(bounds):
        row = order[low]
        found.append(Track(int(col["rank"][row]), int(col["lane"][row]), int(depth[row]), int(low), int(high - low)))
    return found, order


def _bounds(*keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices at which any of the sorted keys changes, with 0 and the length."""
    changed = np.zeros(len(keys[0]) - 1, dtype=bool)
    for key in keys:
        changed |= np.diff(key) != 0
    return np.concatenate([[0], np.flatnonzero(changed) + 1, [len(keys[0])]]).astype(np.int64)


def _depths(start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for spans sorted by start, the lowest depth free at each start.

    >>> _depths(np.array([0.0, 1.0, 3.0]), np.array([2.0, 4.0, 5.0])).tolist()
    [0, 1, 0]
    """
    depth = np.zeros(len(start_s), dtype=np.int64)
    open_: list[tuple[float, int]] = []  # (end, depth)
    free: list[int] = []
    num_depths = 0
    for row, (begin, finish) in enumerate(zip(start_s.tolist(), end_s.tolist(), strict=True)):
        while open_ and open_[0][0] - begin <= CLOCK_GRAIN_S:
            heappush(free, heappop(open_)[1])
        if not free:
            heappush(free, num_depths)
            num_depths += 1
        depth[row] = heappop(free)
        heappush(open_, (finish, int(depth[row])))
    return depth
