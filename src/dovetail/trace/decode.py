"""decode: turn a thread's events into rows: intervals with their messages, points, and calls still open at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.process_file import REPEAT_BITS, EventKind

Rows = dict[str, NDArray[Any]]
KINDS = (
    *("interval", "point", "send", "recv", "done", "request", "collective", "put", "get", "window", "comm"),
)  # kinds of rows; `request`: a request that a call starts, tests without success, or frees
_DETAILS = tuple(EventKind[name] for name in KINDS[2:])
_KIND_OF = np.zeros(16, "u1")
_KIND_OF[[*_DETAILS]] = range(2, len(KINDS))
_MESSAGES = (EventKind.send, EventKind.recv, EventKind.done)
_WINDOWS = (EventKind.put, EventKind.get, EventKind.window)
_ON_COMM = (EventKind.send, EventKind.recv, EventKind.collective, EventKind.comm)
NEAR_TAG = (1 << 31) - 1  # of the messages of a collective among neighbours (native/trace/mpi/mpi_frame.h)
CHECKSUM_SHIFT = 40  # of a collective's received bytes, and a send's bytes: above them is the checksum of what is given
RAW: dict[str, str] = {
    "kind": "u1",  # row of KINDS
    "name": "i4",  # the process's number of a name
    "part": "i4",  # 0 for the first row of an interval; 1, 2, … for its further messages, requests, …
    "start": "u8",  # event clock
    "end": "u8",
    "arg": "i8",  # the user's number, or the call site of an MPI call
    "peer": "i4",  # -1: none
    "tag": "i4",
    "num_bytes": "i8",
    "received_bytes": "i8",
    "comm": "i4",  # the process's number of a communicator or window; -1: none
    "request": "i8",  # the library's handle; 0: none
    "begins": "?",  # whether the request begins here
    "is_open": "?",  # the interval never ended; its end is the process's last event
    "repeats": "i4",  # unsuccessful polls, before the last one, that this interval stands for
    "pause": "i8",  # event clock between these polls, in total
    "ready": "i8",  # of a send: event clock for which its data had been as they are; 0: unknown
}


def no_rows(count: int = 0) -> Rows:
    """Return `count` empty rows: zeros, without peer and communicator."""
    rows = {name: np.zeros(count, dtype) for name, dtype in RAW.items()}
    rows["peer"][:] = rows["comm"][:] = -1
    return rows


def joined(parts: list[Rows]) -> Rows:
    """Concatenate batches of rows."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else no_rows()


@dataclass
class ThreadDecoder:
    """Decodes the pieces of one thread in order. An interval that is open at the end of a piece continues in the next.

    `unmatched`: number of ends whose begin was lost.
    """

    unmatched: int = 0
    _open: NDArray[Any] = field(default_factory=lambda: np.zeros(0, [("word", "u8"), ("about", "u8")]))

    def take(self, events: NDArray[Any], lost: int = 0) -> Rows:
        """Return the rows of intervals that end in this piece, ordered by end time.

        If `lost` events follow the piece, open intervals are discarded.
        """
        found = _Piece(np.concatenate([self._open, events]))
        self.unmatched += found.num_unmatched
        self._open = found.still_open() if not lost else self._open[:0]
        return found.rows()

    def rest(self, end: int) -> Rows:
        """Return the rows of intervals that never ended, closed at `end`."""
        if not len(self._open):
            return no_rows()
        count = int(np.count_nonzero(self._open["about"] & 15 == EventKind.begin))
        closing = np.zeros(count, self._open.dtype)
        closing["word"], closing["about"] = end, int(EventKind.end)
        rows = _Piece(np.concatenate([self._open, closing])).rows()
        rows["is_open"][:] = True
        rows["end"] = np.maximum(rows["end"], rows["start"])
        return rows


class _Piece:
    """The events of a piece, each with its nesting depth and the interval that it belongs to."""

    def __init__(self, events: NDArray[Any]) -> None:
        events = events[(events["about"] & 15) != EventKind.empty]
        self.events = events
        self.word, about = events["word"], events["about"]
        self.kind = (about & 15).astype("u1")
        self.field = ((about >> 4) & 4095).astype("i4")
        self.arg = about.view("i8") >> 16
        self._widen()
        self._nest()

    def _widen(self) -> None:
        """Read fields that are too large for 12 bits from the event `wide` before."""
        wide = np.flatnonzero(self.kind == EventKind.wide)
        wide = wide[wide + 1 < len(self.kind)]
        self.field[wide + 1] = self.word[wide].astype("i4")

    def _nest(self) -> None:
        """Compute the depth of every begin, end and detail, then `owner`: the begin that each belongs to, or -1."""
        begins, ends = self.kind == EventKind.begin, self.kind == EventKind.end
        level = np.cumsum(begins.astype("i4") - ends.astype("i4"))
        low = np.minimum.accumulate(np.minimum(level, 0)) if len(level) else level
        before = np.concatenate([[0], low[:-1]]) if len(low) else low
        unmatched = ends & (low < before)
        self.num_unmatched = int(np.count_nonzero(unmatched))
        depth = level - low + ends
        nested = np.flatnonzero((depth > 0) & ~unmatched & (self.kind >= EventKind.begin))
        order = nested[np.argsort(_narrow(depth[nested]), kind="stable")]
        latest = np.maximum.accumulate(np.where(begins[order], np.arange(len(order)), 0))
        self.owner = np.full(len(self.kind), -1, "i8")
        self.owner[order] = order[latest] if len(order) else order
        self.ends = np.flatnonzero(ends & ~unmatched)
        self.closed = np.full(len(self.kind), -1, "i8")  # for each begin, its end
        self.closed[self.owner[self.ends]] = self.ends
        self.begins = begins

    def still_open(self) -> Any:
        """Return the events of open intervals, with their details, to continue in the next piece."""
        open_ = self.begins & (self.closed < 0)
        details = (self.kind > EventKind.end) & (self.owner >= 0) & open_[self.owner]
        return self.events[open_ | details]

    def rows(self) -> Rows:
        """Return rows of points and closed intervals, ordered by end time."""
        details = self._details()
        plain = self._plain(details["begin"])
        points = self._points()
        rows = joined([{k: part[k] for k in (*RAW, "at")} for part in (details, plain, points)])
        order = np.lexsort((rows["part"], rows["at"]))
        return {name: rows[name][order] for name in RAW}

    def _points(self) -> Rows:
        at = np.flatnonzero(self.kind == EventKind.point)
        rows = no_rows(len(at))
        rows["kind"][:] = KINDS.index("point")
        rows["name"], rows["arg"], rows["start"], rows["end"] = (
            self.field[at],
            self.arg[at],
            self.word[at],
            self.word[at],
        )
        return rows | {"at": at}

    def _plain(self, begins: NDArray[Any]) -> Rows:
        """Return a row for each closed interval without details."""
        bare = self.begins & (self.closed >= 0)
        bare[begins] = False
        begin = np.flatnonzero(bare)
        return self._of(begin, no_rows(len(begin)))

    def _of(self, begin: NDArray[Any], rows: Rows) -> Rows:
        """Copy the fields of intervals into their rows; return the rows."""
        end = self.closed[begin]
        rows["name"], rows["arg"] = self.field[begin], self.arg[begin]
        rows["start"], rows["end"] = self.word[begin], self.word[end]
        is_many = (self.field[end] == 0) & (self.field[begin] != 0)
        counted = np.where(is_many, self.arg[end], 0)
        rows["repeats"] = (counted & ((1 << REPEAT_BITS) - 1)).astype(RAW["repeats"])
        rows["pause"] = counted >> REPEAT_BITS
        made = np.where(is_many, 0, self.arg[end])
        rows["begins"] |= made != 0
        rows["request"] = np.where(made != 0, made, rows["request"])
        return rows | {"at": end, "begin": begin}

    def _details(self) -> Rows:
        """Return a row for each message, completion, request, collective, … of a closed call."""
        at = np.flatnonzero(np.isin(self.kind, _DETAILS) & (self.owner >= 0))
        at = at[self.closed[self.owner[at]] >= 0]
        waited = self._waited(at)
        at, request = at[~waited.dropped], waited.request[~waited.dropped]
        begin, kind, word = self.owner[at], self.kind[at], self.word[at]
        rows = no_rows(len(at))
        rows["kind"] = _KIND_OF[kind]
        order = np.argsort(begin, kind="stable")
        first = np.concatenate([[True], np.diff(begin[order]) != 0]) if len(at) else np.zeros(0, bool)
        starts = np.maximum.accumulate(np.where(first, np.arange(len(at)), 0))
        rows["part"][order] = np.arange(len(at)) - starts
        rows["request"] = request
        sends = kind == EventKind.send
        rows["num_bytes"] = np.where(sends, self.arg[at] & ((1 << CHECKSUM_SHIFT) - 1), self.arg[at])
        has_peer = np.isin(kind, (*_MESSAGES, *_WINDOWS))
        rows["peer"] = np.where(has_peer, (word >> 32).astype("u4").view("i4"), -1)
        low = (word & 0xFFFFFFFF).astype("u4").view("i4")
        rows["tag"] = np.where(np.isin(kind, _MESSAGES), low, 0)
        rows["comm"] = np.where(np.isin(kind, _ON_COMM), self.field[at], -1)
        rows["comm"] = np.where(np.isin(kind, _WINDOWS), low, rows["comm"])
        posted = np.full(len(self.kind), -1, "i4")  # for each begin, the communicator that its receive was posted on
        posted[begin[kind == EventKind.recv]] = self.field[at[kind == EventKind.recv]]
        rows["comm"] = np.where((kind == EventKind.done) & (request == 0), posted[begin], rows["comm"])
        collective = kind == EventKind.collective
        rows["received_bytes"] = np.where(collective, word & np.uint64((1 << CHECKSUM_SHIFT) - 1), 0).astype("i8")
        rows["received_bytes"] = np.where(sends, self.arg[at] >> CHECKSUM_SHIFT, rows["received_bytes"])
        rows["tag"] = np.where(collective, (word >> np.uint64(CHECKSUM_SHIFT)).astype("i4"), rows["tag"])
        before = at - 1 - (self.kind[at - 1] == EventKind.wide)
        noted = (before >= 0) & (self.kind[before] == EventKind.root)
        rows["peer"] = np.where(collective & noted, self.word[before].astype("i4"), rows["peer"])
        ready = np.maximum((self.word[begin] - self.word[before]).view("i8"), 0)
        rows["ready"] = np.where(sends & noted, ready, 0)
        return self._of(begin, rows)

    def _waited(self, at: NDArray[Any]) -> _Waited:
        """Match each request of a call with the event that marks its completion."""
        kind = self.kind[at]
        key = (self.owner[at] << 31) | self.field[at]
        asked, over = np.flatnonzero(kind == EventKind.request), np.flatnonzero(kind == EventKind.done)
        order = asked[np.argsort(key[asked], kind="stable")]
        place = np.searchsorted(key[order], key[over], side="right") - 1
        met = (place >= 0) & (key[order[place]] == key[over]) if len(order) else np.zeros(len(over), bool)
        request, dropped = np.where(kind == EventKind.request, self.word[at].view("i8"), 0), np.zeros(len(at), bool)
        request[over[met]] = request[order[place[met]]]
        dropped[order[place[met]]] = True
        return _Waited(request, dropped)


@dataclass(frozen=True)
class _Waited:
    """For each detail: its request, and whether another detail already records it."""

    request: NDArray[Any]
    dropped: NDArray[Any]


def _narrow(depth: NDArray[Any]) -> NDArray[Any]:
    """Convert small numbers to 16 bits, which sort faster."""
    return depth.astype("i2") if len(depth) and depth.max() < 1 << 15 else depth
