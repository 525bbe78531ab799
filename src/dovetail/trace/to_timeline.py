"""to_timeline: convert a Trace to a Timeline: a lane per thread, a span per call or interval."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.timeline import Timeline
from dovetail.timeline.timeline import COLUMNS
from dovetail.trace.trace import Trace, thread_title


def span_rows(trace: Trace) -> NDArray[Any]:
    """Return the rows that are spans, ordered by start time; of rows that start together, the longest comes first."""
    col = trace.columns
    chosen = np.flatnonzero((col["part"] == 0) & ~trace.of_kind("point"))
    ordered: NDArray[Any] = chosen[np.lexsort((-col["end_s"][chosen], col["start_s"][chosen]))]
    return ordered


def lanes_of(trace: Trace, rows: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Return titles of the threads and lanes of some rows, and for each row the index of its title."""
    both = np.stack([trace.columns["thread"][rows], trace.columns["rank"][rows]], axis=1)
    distinct, inverse = np.unique(both, axis=0, return_inverse=True)
    titles = [thread_title(trace.meta, rank, thread) for thread, rank in distinct.tolist()]
    number = {title: i for i, title in enumerate(dict.fromkeys(titles))}
    return tuple(number), np.array([number[title] for title in titles], "i4")[inverse.ravel()]


def to_timeline(trace: Trace) -> Timeline:
    """Return the spans of a trace as a Timeline, in the order of `span_rows`; without points."""
    col, chosen = trace.columns, span_rows(trace)
    lanes, lane = lanes_of(trace, chosen)
    values = {name: col[name][chosen] for name in ("rank", "name", "num_bytes", "start_s", "end_s")}
    values |= {"lane": lane, "op": np.full(len(chosen), -1)}
    columns = {name: np.ascontiguousarray(values[name], dtype) for name, dtype in COLUMNS.items()}
    for column in columns.values():
        column.flags.writeable = False
    errors = [rank.get("clock_error_s") or 0.0 for rank in trace.meta.get("ranks", ())]
    return Timeline(
        "measured", trace.num_ranks, lanes, trace.names, columns, {"clock_error_s": max(errors, default=0.0)}
    )
