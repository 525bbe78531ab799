"""excerpts: cut a long trace into equal parts, and take an excerpt from the middle of each."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from dovetail.trace.analysis.collective_calls import CollectiveCalls, CollectiveMatcher
from dovetail.trace.analysis.floods import Flood, floods_of
from dovetail.trace.analysis.matching import Matcher, Messages
from dovetail.trace.store import TraceFile
from dovetail.trace.trace import Trace


class Excerpt(NamedTuple):
    """Consecutive rows of a trace, and the messages and collectives all of whose calls lie within them."""

    trace: Trace
    found: Messages
    joins: CollectiveCalls


class Excerpts(NamedTuple):
    """Some excerpts of a trace, and the floods of messages of all of it.

    `seconds`: of each excerpt, how long the part of the trace takes that it represents, without Init and Finalize.
    """

    pieces: list[Excerpt]
    floods: list[Flood]
    seconds: list[float]


def excerpts(file: TraceFile, count: int, num_rows: int) -> Excerpts:
    """Return `count` excerpts of about `num_rows` rows each. Messages are matched in the whole trace first."""
    matcher, collectives_matcher = Matcher(), CollectiveMatcher()
    borders = _Borders(file, count)
    for part in file.parts():
        borders.take(part)
        matcher.take(part.columns)
        collectives_matcher.take(part.columns)
    middles = ((2 * i + 1) * file.num_rows // (2 * count) for i in range(count))
    parts = [_rows(file, max(middle - num_rows // 2, 0), num_rows) for middle in middles]
    joins = collectives_matcher.calls(file.names, file.comms)
    del collectives_matcher  # frees its memory
    calls = [_collective_calls(joins, first, first + trace.num_rows) for trace, first in parts]
    del joins
    found, _ = matcher.messages(file.names, file.comms)
    pieces = [
        _trimmed(Excerpt(t, _messages(found, first, first + t.num_rows), m))
        for (t, first), m in zip(parts, calls, strict=True)
    ]
    return Excerpts(pieces, floods_of(found), borders.seconds())


class _Borders:
    """When each of `count` parts of equally many rows begins, when the first Init ends, the last Finalize begins."""

    def __init__(self, file: TraceFile, count: int) -> None:
        self.file, self.rows, self.seen = file, [i * file.num_rows // count for i in range(count)], 0
        self.begins_s: list[float] = []
        self.first_s, self.last_s = inf, -inf

    def take(self, part: Trace) -> None:
        """Take the next rows of the trace."""
        col = part.columns
        here = [row - self.seen for row in self.rows if 0 <= row - self.seen < part.num_rows]
        self.begins_s += col["start_s"][here].tolist()
        self.seen += part.num_rows
        inits, finals = (
            np.isin(col["name"], [i for i, name in enumerate(part.names) if name in those])
            for those in (("MPI_Init", "MPI_Init_thread"), ("MPI_Finalize",))
        )
        self.first_s = min(self.first_s, float(col["end_s"][inits].min(initial=inf)))
        self.last_s = max(self.last_s, float(col["start_s"][finals].max(initial=-inf)))

    def seconds(self) -> list[float]:
        """Return how long each part takes, between Init and Finalize if the trace has them."""
        first_s = self.first_s if self.first_s < inf else min(chunk.start_s for chunk in self.file.chunks)
        last_s = self.last_s if self.last_s > -inf else max(chunk.end_s for chunk in self.file.chunks)
        at = np.clip([first_s, *self.begins_s[1:], last_s], first_s, last_s)
        found: list[float] = np.diff(np.maximum.accumulate(at)).tolist()  # rows are nearly in the order of time
        return found


def _trimmed(it: Excerpt) -> Excerpt:
    """Return the excerpt without the calls before its first, and after its last, message or collective.

    Those at its ends have lost their partners, so that their waits would count as work.
    """
    used = np.concatenate([it.found.sent_row, it.found.posted_row, it.found.received_row, it.joins.row])
    if not len(used):
        return it
    begins = np.flatnonzero(it.trace.columns["part"] == 0)
    first = int(begins[np.searchsorted(begins, used.min(), side="right") - 1])
    after = int(np.searchsorted(begins, used.max(), side="right"))
    last = int(begins[after]) if after < len(begins) else it.trace.num_rows
    found = _messages(it.found, first, last)
    return Excerpt(it.trace.rows(slice(first, last)), found, it.joins._replace(row=it.joins.row - first))


def _messages(found: Messages, first: int, last: int) -> Messages:
    """Return the messages all of whose calls lie in the rows from `first` to before `last`."""
    rows = (found.sent_row, found.posted_row, found.received_row)
    whole = np.all([(row >= first) & (row < last) for row in rows], axis=0)
    whole &= (found.probe_row < 0) | ((found.probe_row >= first) & (found.probe_row < last))
    mine = Messages(*(column[whole] for column in found))
    moved = {name: getattr(mine, name) - first for name in ("sent_row", "posted_row", "received_row")}
    return mine._replace(**moved, probe_row=np.where(mine.probe_row >= 0, mine.probe_row - first, -1))


def _collective_calls(joins: CollectiveCalls, first: int, last: int) -> CollectiveCalls:
    """Return the collectives all of whose calls lie in the rows from `first` to before `last`."""
    inside = (joins.row >= first) & (joins.row < last)
    sizes = np.bincount(joins.collective)
    whole = inside & (
        np.bincount(joins.collective[inside], minlength=len(sizes))[joins.collective] == sizes[joins.collective]
    )
    mine = CollectiveCalls(*(column[whole] for column in joins))
    return mine._replace(collective=np.unique(mine.collective, return_inverse=True)[1], row=mine.row - first)


def _rows(file: TraceFile, first: int, num_rows: int) -> tuple[Trace, int]:
    """Return about `num_rows` rows from about `first` on, with whole calls only, and the number of the first row."""
    starts = np.cumsum([0, *(chunk.num_rows for chunk in file.chunks)])
    begin = max(int(np.searchsorted(starts, first, side="right")) - 1, 0)
    end = int(np.searchsorted(starts, first + num_rows))
    near = file.chunk_rows(begin, end)
    low, high = first - int(starts[begin]), first - int(starts[begin]) + num_rows
    begins = np.flatnonzero(near.columns["part"] == 0)
    cuts = begins[np.searchsorted(begins, [low, high]).clip(max=len(begins) - 1)]
    high = int(cuts[1]) if high < near.num_rows else near.num_rows
    return near.rows(slice(int(cuts[0]), high)), int(starts[begin]) + int(cuts[0])
