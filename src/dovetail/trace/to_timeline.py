"""A Trace as a Timeline: a lane for each thread, a span for each call and interval."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.timeline import Timeline
from dovetail.timeline.timeline import COLUMNS
from dovetail.trace.trace import Trace


def span_rows(trace: Trace) -> NDArray[Any]:
    """The rows that are spans, in the order of their beginnings, outer ones first."""
    col = trace.columns
    chosen = np.flatnonzero((col["part"] == 0) & ~trace.of_kind("point"))
    ordered: NDArray[Any] = chosen[np.lexsort((-col["end_s"][chosen], col["start_s"][chosen]))]
    return ordered


def to_timeline(trace: Trace) -> Timeline:
    """The spans of a trace, in the order of `span_rows`; points are left out."""
    col, chosen = trace.columns, span_rows(trace)
    num_threads = int(col["thread"][chosen].max(initial=-1)) + 1
    values = {name: col[name][chosen] for name in ("rank", "name", "num_bytes", "start_s", "end_s")}
    values |= {"lane": col["thread"][chosen], "op": np.full(len(chosen), -1)}
    columns = {name: np.ascontiguousarray(values[name], dtype) for name, dtype in COLUMNS.items()}
    for column in columns.values():
        column.flags.writeable = False
    lanes = tuple(f"thread {i}" if i else "main" for i in range(num_threads))
    errors = [rank.get("clock_error_s") or 0.0 for rank in trace.meta.get("ranks", ())]
    return Timeline(
        "measured", trace.num_ranks, lanes, trace.names, columns, {"clock_error_s": max(errors, default=0.0)}
    )
