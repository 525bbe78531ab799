"""spans: build a Timeline from single spans, and read it as one interval per op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import DovetailError
from dovetail.timeline.timeline import COLUMNS, Label, Timeline

Floats = NDArray[np.float64]


class Span(NamedTuple):
    """A span: lane `lane` of rank `rank` did `name`, from start_s to end_s; `op`: its row in the Program, or -1."""

    rank: int
    lane: str
    name: str
    start_s: float
    end_s: float
    op: int = -1
    num_bytes: int = 0


def from_spans(
    label: Label,
    num_ranks: int,
    spans: Iterable[Span],
    lanes: Iterable[str] = (),
    meta: Mapping[str, Any] | None = None,
) -> Timeline:
    """Return a Timeline of spans in the given order. Its lanes are `lanes`, then others by first appearance.

    >>> from_spans("measured", 1, [Span(0, "net", "send", 0.0, 2.0)]).makespan_s
    2.0
    """
    rows = [Span(*span) for span in spans]
    lane_row = {lane: row for row, lane in enumerate(dict.fromkeys([*lanes, *(span.lane for span in rows)]))}
    name_row = {name: row for row, name in enumerate(dict.fromkeys(span.name for span in rows))}
    values: dict[str, list[Any]] = {name: [getattr(span, name) for span in rows] for name in COLUMNS}
    values["lane"] = [lane_row[span.lane] for span in rows]
    values["name"] = [name_row[span.name] for span in rows]
    columns = {name: np.array(values[name], dtype=dtype) for name, dtype in COLUMNS.items()}
    for column in columns.values():
        column.flags.writeable = False
    return Timeline(label, num_ranks, tuple(lane_row), tuple(name_row), columns, dict(meta or {}))


def op_times(timeline: Timeline, num_ops: int) -> tuple[Floats, Floats]:
    """Return first start and last end of every op of a Program, in seconds; NaN for ops without a span.

    Raises DovetailError if the timeline has an op beyond `num_ops`.
    """
    col = timeline.columns
    rows = np.flatnonzero(col["op"] >= 0)
    op = col["op"][rows]
    if len(op) and op.max() >= num_ops:
        raise DovetailError("this timeline is of another program", found=f"op {op.max()}, where there are {num_ops}")
    start, end = np.full(num_ops, np.nan), np.full(num_ops, np.nan)
    np.fmin.at(start, op, col["start_s"][rows])
    np.fmax.at(end, op, col["end_s"][rows])
    return start, end


def covered(points: Floats, start_s: Floats, end_s: Floats) -> NDArray[np.bool_]:
    """Return which intervals between neighbouring `points` lie in some [start_s, end_s]; all ends are among the points.

    >>> covered(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.5]), np.array([1.0, 0.5])).tolist()
    [True, False, False]
    """
    real = end_s > start_s
    change = np.zeros(len(points), dtype=np.int64)
    np.add.at(change, np.searchsorted(points, start_s[real]), 1)
    np.add.at(change, np.searchsorted(points, end_s[real]), -1)
    return np.cumsum(change)[:-1] > 0
