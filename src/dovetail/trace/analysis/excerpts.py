"""excerpts: cut a long trace into equal parts, and take an excerpt from the middle of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.trace.analysis.matching import Matcher, Messages
from dovetail.trace.analysis.meetings import Gatherer, Meetings
from dovetail.trace.store import TraceFile
from dovetail.trace.trace import Trace


class Excerpt(NamedTuple):
    """Consecutive rows of a trace, and the messages and collectives all of whose calls lie within them."""

    trace: Trace
    found: Messages
    met: Meetings


def excerpts(file: TraceFile, count: int, num_rows: int) -> list[Excerpt]:
    """Return `count` excerpts of about `num_rows` rows each. Messages are matched in the whole trace first."""
    matcher, gatherer = Matcher(), Gatherer()
    for part in file.parts():
        matcher.take(part.columns)
        gatherer.take(part.columns)
    middles = ((2 * i + 1) * file.num_rows // (2 * count) for i in range(count))
    parts = [_rows(file, max(middle - num_rows // 2, 0), num_rows) for middle in middles]
    met = gatherer.meetings(file.names, file.comms)
    del gatherer  # frees its memory
    meetings = [_meetings(met, first, first + trace.num_rows) for trace, first in parts]
    del met
    found, _ = matcher.messages(file.names, file.comms)
    return [
        Excerpt(t, _messages(found, first, first + t.num_rows), m)
        for (t, first), m in zip(parts, meetings, strict=True)
    ]


def _messages(found: Messages, first: int, last: int) -> Messages:
    """Return the messages all of whose calls lie in the rows from `first` to before `last`."""
    rows = (found.sent_row, found.posted_row, found.taken_row)
    whole = np.all([(row >= first) & (row < last) for row in rows], axis=0)
    whole &= (found.probe_row < 0) | ((found.probe_row >= first) & (found.probe_row < last))
    mine = Messages(*(column[whole] for column in found))
    moved = {name: getattr(mine, name) - first for name in ("sent_row", "posted_row", "taken_row")}
    return mine._replace(**moved, probe_row=np.where(mine.probe_row >= 0, mine.probe_row - first, -1))


def _meetings(met: Meetings, first: int, last: int) -> Meetings:
    """Return the collectives all of whose calls lie in the rows from `first` to before `last`."""
    inside = (met.row >= first) & (met.row < last)
    sizes = np.bincount(met.meeting)
    whole = inside & (np.bincount(met.meeting[inside], minlength=len(sizes))[met.meeting] == sizes[met.meeting])
    mine = Meetings(*(column[whole] for column in met))
    return mine._replace(meeting=np.unique(mine.meeting, return_inverse=True)[1], row=mine.row - first)


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
