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
    """Some excerpts of a trace, and of all of it the floods of messages, and the seconds between Init and Finalize."""

    pieces: list[Excerpt]
    floods: list[Flood]
    seconds: float


def excerpts(file: TraceFile, count: int, num_rows: int) -> Excerpts:
    """Return `count` excerpts of about `num_rows` rows each. Messages are matched in the whole trace first."""
    matcher, collectives_matcher = Matcher(), CollectiveMatcher()
    ends: list[tuple[float, float]] = []
    for part in file.parts():
        ends.append(_ends(part))
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
    starts_s, stops_s = zip(*ends, strict=True)
    begin_s = min(starts_s) if min(starts_s) < inf else min(chunk.start_s for chunk in file.chunks)
    end_s = max(stops_s) if max(stops_s) > -inf else max(chunk.end_s for chunk in file.chunks)
    return Excerpts(pieces, floods_of(found), end_s - begin_s)


def _ends(part: Trace) -> tuple[float, float]:
    """Return the first end of MPI_Init and the last begin of MPI_Finalize; infinities if there are none."""
    col = part.columns
    inits, finals = (
        np.isin(col["name"], [i for i, name in enumerate(part.names) if name in those])
        for those in (("MPI_Init", "MPI_Init_thread"), ("MPI_Finalize",))
    )
    return float(col["end_s"][inits].min(initial=inf)), float(col["start_s"][finals].max(initial=-inf))


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
