"""imported: convert traces of other tools to the recorder's events (native/trace), and decode these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.trace.decode import RAW, ThreadDecoder, joined
from dovetail.trace.merge import Requests, name_peers
from dovetail.trace.process_file import EventKind
from dovetail.trace.trace import COLUMNS, Comm, Trace, no_columns

EVENT = np.dtype([("word", "u8"), ("about", "u8")])
_WIDE = 4095


class Events:
    """The events of one thread, in the order of time."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.abouts: list[int] = []

    def add(self, kind: EventKind, word: int, field: int = 0, arg: int = 0) -> None:
        """Append one event; if `field` does not fit, write it as a separate event `wide` before."""
        if field >= _WIDE:
            self.add(EventKind.wide, field)
            field = _WIDE
        self.words.append(word & 0xFFFFFFFFFFFFFFFF)
        self.abouts.append((arg << 16 | field << 4 | int(kind)) & 0xFFFFFFFFFFFFFFFF)

    def insert(self, at: int, *events: tuple[EventKind, int, int, int]) -> None:
        """Insert events before the one at index `at`."""
        inserted = Events()
        for event in events:
            inserted.add(*event)
        self.words[at:at], self.abouts[at:at] = inserted.words, inserted.abouts

    def array(self) -> Any:
        """Return the events as an array of dtype EVENT."""
        found = np.zeros(len(self.words), EVENT)
        found["word"], found["about"] = self.words, self.abouts
        return found


def pair(high: int, low: int) -> int:
    """Return two numbers of 32 bits as one word of an event."""
    return (high & 0xFFFFFFFF) << 32 | (low & 0xFFFFFFFF)


def trace_of(
    threads: Mapping[tuple[int, int], Events], names: Sequence[str], comms: Sequence[Comm], meta: dict[str, Any]
) -> Trace:
    """Return the trace of events given by (rank, thread).

    Clocks are in nanoseconds. Fields of events are indices into `comms`, or into `names` counted from 1.
    """
    parts = [_columns(rank, thread, events) for (rank, thread), events in threads.items()]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS} if parts else no_columns()
    order = np.argsort(columns["end_s"], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    Requests().settle(columns)
    name_peers(columns, comms)
    first = float(columns["start_s"].min(initial=np.inf))
    for name in ("start_s", "end_s"):
        columns[name] -= first if np.isfinite(first) else 0.0
    num_ranks = max((rank for rank, _ in threads), default=-1) + 1
    return Trace(num_ranks, tuple(names), tuple(comms), columns, meta)


def _columns(rank: int, thread: int, events: Events) -> dict[str, Any]:
    decoder, found = ThreadDecoder(), events.array()
    rows = decoder.take(found)
    last = max((w for w, a in zip(events.words, events.abouts, strict=True) if a & 15 in (2, 3, 4)), default=0)
    rows = joined([rows, decoder.rest(last)])
    count = len(rows["kind"])
    columns = no_columns() | {name: rows[name] for name in COLUMNS if name in RAW}
    columns["name"] = rows["name"] - 1
    columns |= {"rank": np.full(count, rank, "i4"), "thread": np.full(count, thread, "i4")}
    times = {
        f"{name}_s": (rows[name] * 1e-9).astype(COLUMNS[f"{name}_s"]) for name in ("start", "end", "pause", "ready")
    }
    return columns | times
