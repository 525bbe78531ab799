"""aggregate: reduce a long trace to bounded size: seconds per class of calls, lane and time bin."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.timeline import Timeline
from dovetail.timeline.timeline import COLUMNS
from dovetail.trace.analysis.call_classes import CLASSES, class_of
from dovetail.trace.decode import KINDS
from dovetail.trace.store import TraceFile
from dovetail.trace.trace import thread_title

Array = NDArray[Any]
MOST_SPANS, LEAST_BINS, MOST_BINS = 100_000, 64, 2048  # about the most spans in total; limits of the bins per lane
_POINT = KINDS.index("point")


class Aggregate(NamedTuple):
    """A timeline in which one span stands for all calls of one class within a bin of `bin_s` seconds.

    `classes`, `calls`: for each span, the class (row of CLASSES) and the number of calls.
    """

    timeline: Timeline
    classes: Array
    calls: Array
    bin_s: float
    num_calls: int


def aggregate(file: TraceFile) -> Aggregate:
    """Reduce a trace on disk, a chunk at a time. A span is as long as its calls took in total within the bin."""
    sums = _Bins(file)
    for part in file.parts():
        sums.add(part.columns)
    return sums.aggregate()


class _Bins:
    """Seconds, calls and bytes by lane, bin and class. A call's seconds are divided among the bins that it spans."""

    def __init__(self, file: TraceFile) -> None:
        self.file, self.lanes = file, dict[tuple[int, int], int]()
        self.class_of = np.array([class_of(name) for name in file.names], "i8")
        self.begin = min((c.start_s for c in file.chunks), default=0.0)
        span = max((c.end_s for c in file.chunks), default=0.0) - self.begin
        self.bins = min(max(MOST_SPANS // max(4 * file.num_ranks, 1), LEAST_BINS), MOST_BINS)
        self.bin_s = max(span, 1e-9) / self.bins
        self.cells = self.bins * len(CLASSES)
        self.sums: dict[int, Array] = {}  # lane -> seconds, calls and bytes: shape (3, bins * classes)
        self.num_calls = 0

    def add(self, col: dict[str, Array]) -> None:
        at = np.flatnonzero((col["part"] == 0) & (col["kind"] != _POINT))
        self.num_calls += len(at) + int(col["repeats"][at].sum())
        both = col["rank"][at].astype("i8") << 32 | col["thread"][at]
        for key in np.unique(both).tolist():
            mine = at[both == key]
            lane = self.lanes.setdefault(divmod(key, 1 << 32), len(self.lanes))
            self._lane(lane, {name: col[name][mine] for name in ("name", "start_s", "end_s", "num_bytes", "repeats")})

    def _lane(self, lane: int, col: dict[str, Array]) -> None:
        sums = self.sums.setdefault(lane, np.zeros((3, self.cells)))
        start, end = ((col[name] - self.begin) / self.bin_s for name in ("start_s", "end_s"))
        first, last = (np.clip(x.astype("i8"), 0, self.bins - 1) for x in (start, end))
        kind = self.class_of[col["name"]]
        for weights, i in ((1 + col["repeats"], 1), (col["num_bytes"], 2)):
            sums[i] += np.bincount(first * len(CLASSES) + kind, weights, self.cells)
        each = last - first + 1  # number of bins that the call spans
        call = np.repeat(np.arange(len(first)), each)
        place = first[call] + np.arange(len(call)) - np.repeat(np.cumsum(each) - each, each)
        seconds = np.maximum(np.minimum(end[call], place + 1) - np.maximum(start[call], place), 0.0)
        sums[0] += np.bincount(place * len(CLASSES) + kind[call], seconds, self.cells)

    def aggregate(self) -> Aggregate:
        """Make the spans. Those of a bin follow one another; a span outside MPI may contain others."""
        columns: list[dict[str, Array]] = []
        for (rank, thread), lane in self.lanes.items():
            shares = self.sums[lane][0].reshape(self.bins, -1).copy()
            shares[:, 1:] /= np.maximum(shares[:, 1:].sum(axis=1, keepdims=True), 1.0)
            shares[:, 0] = np.minimum(shares[:, 0], 1.0)
            begins = np.cumsum(shares, axis=1) - shares - shares[:, :1]
            begins[:, 0] = 0.0
            bins, kind = np.nonzero(shares > 1e-4)
            cell = bins * len(CLASSES) + kind
            start = self.begin + (bins + begins[bins, kind]) * self.bin_s
            spans = {"start_s": start, "end_s": start + shares[bins, kind] * self.bin_s, "name": kind}
            spans |= {"rank": np.full(len(bins), rank), "thread": np.full(len(bins), thread)}
            columns.append(spans | {"count": self.sums[lane][1][cell], "num_bytes": self.sums[lane][2][cell]})
        return self._timeline(columns)

    def _timeline(self, parts: list[dict[str, Array]]) -> Aggregate:
        titles = [thread_title(self.file.meta, rank, thread) for rank, thread in self.lanes]
        number = {title: i for i, title in enumerate(dict.fromkeys(titles))}
        for part, title in zip(parts, titles, strict=True):
            part["lane"] = np.full(len(part["rank"]), number[title])
        names = ("start_s", "end_s", "name", "rank", "lane", "num_bytes", "count")
        col = {name: np.concatenate([np.zeros(0), *(part[name] for part in parts)]) for name in names}
        col["op"] = np.arange(len(col["rank"]))
        columns = {name: np.ascontiguousarray(col[name].astype(dtype)) for name, dtype in COLUMNS.items()}
        for column in columns.values():
            column.flags.writeable = False
        errors = [rank.get("clock_error_s") or 0.0 for rank in self.file.meta.get("ranks", ())]
        meta = {"clock_error_s": max(errors, default=0.0)}
        made = Timeline("measured", self.file.num_ranks, tuple(number), CLASSES, columns, meta)
        return Aggregate(made, columns["name"], col["count"].astype("i8"), self.bin_s, self.num_calls)
