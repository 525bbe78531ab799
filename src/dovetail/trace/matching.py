"""Which receive takes which send, as MPI's order says; and whether any message came before it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.decode import KINDS
from dovetail.trace.trace import Comm, Trace

Array = NDArray[Any]
SEND, RECV, DONE, REQUEST = (KINDS.index(kind) for kind in ("send", "recv", "done", "request"))
_USED = ("kind", "name", "rank", "thread", "peer", "tag", "comm", "start_s", "end_s", "num_bytes", "request", "begins")


class Messages(NamedTuple):
    """One entry for each message that was sent; what a receive knows of it is NaN, or -1, where none took it."""

    src: Array
    src_thread: Array
    dst: Array
    dst_thread: Array
    sent_s: Array  # the sending call begins
    taken_s: Array  # the call in which it was found to be there ends
    num_bytes: Array


class Matcher:
    """Collects sends and receives, and pairs those of one sender, receiver, communicator and tag in their order.

    A receive stands where it was posted in that order, and ends where it was found to be complete.
    """

    def __init__(self) -> None:
        self._kept: list[dict[str, Array]] = []

    def take(self, columns: dict[str, Array]) -> None:
        """Rows in the order of their ends."""
        at = np.isin(columns["kind"], (SEND, RECV, DONE)) | ((columns["kind"] == REQUEST) & (columns["request"] >= 0))
        if at.any():
            self._kept.append({name: columns[name][at] for name in _USED})

    def messages(self, names: Sequence[str], comms: Sequence[Comm]) -> tuple[Messages, int]:
        """The messages, and how many receives are of none of them. What was collected is given up for it."""
        if not self._kept:
            return Messages(*(np.zeros(0) for _ in Messages._fields)), 0
        rows = {name: np.concatenate([part.pop(name) for part in self._kept]) for name in _USED}
        self._kept = []
        is_init = np.array([name.endswith(("_init", "_init_c")) for name in names], bool)[rows["name"]]
        is_start = np.array([name in ("MPI_Start", "MPI_Startall") for name in names], bool)[rows["name"]]
        return _paired(*_sides(rows, is_init, is_start, np.array(_alike(comms), "i4")))

    def check(self, names: Sequence[str], comms: Sequence[Comm]) -> dict[str, Any]:
        """How many messages there are, and how many were received before they were sent, on the corrected clocks."""
        found, strays = self.messages(names, comms)
        early = (found.sent_s - found.taken_s)[~np.isnan(found.taken_s)]
        return {
            "messages": len(found.src),
            "without_partner": len(found.src) - len(early) + strays,
            "received_before_sent": int(np.count_nonzero(early > 0)),
            "earliest_s": float(max(early.max(initial=0.0), 0.0)),
        }


def messages(trace: Trace) -> Messages:
    """The messages of a trace."""
    matcher = Matcher()
    matcher.take(trace.columns)
    return matcher.messages(trace.names, trace.comms)[0]


def _alike(comms: Sequence[Comm]) -> list[int]:
    """A number for each communicator, the same for both sides of one that joins two groups; 0 for one unknown."""
    numbers: dict[object, int] = {}
    keys = [(*sorted((comm.ranks, comm.remote)), comm.number) for comm in comms]
    return [numbers.setdefault(key, len(numbers) + 1) for key in keys] + [0]


def _sides(
    rows: dict[str, Array], is_init: Array, is_start: Array, alike: Array
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Messages as sent and as received: communicator, sender, receiver, tag, bytes, and when."""
    made, started = _beginnings(rows, is_start)
    has_start = np.isin(rows["kind"], (REQUEST, DONE)) & (made >= 0)
    of_send = has_start & (rows["kind"][made] == SEND)
    sent = np.flatnonzero(((rows["kind"] == SEND) & ~is_init) | (of_send & is_start & is_init[made]))
    by = np.where(rows["kind"][sent] == SEND, sent, made[sent])  # the row that tells whereto
    sends = {"comm": alike[rows["comm"][by]], "src": rows["rank"][sent], "dst": rows["peer"][by]}
    sends |= {"tag": rows["tag"][by], "at_s": rows["start_s"][sent], "num_bytes": rows["num_bytes"][by]}
    sends["thread"] = rows["thread"][sent]
    taken = np.flatnonzero((rows["kind"] == DONE) & ~of_send & (rows["peer"] >= 0))
    posted = np.where(started[taken] >= 0, rows["start_s"][started[taken]], rows["start_s"][taken])
    takes = {"comm": alike[rows["comm"][taken]], "src": rows["peer"][taken], "dst": rows["rank"][taken]}
    takes |= {"tag": rows["tag"][taken], "at_s": posted, "end_s": rows["end_s"][taken]}
    takes["thread"] = rows["thread"][taken]
    real = sends["dst"] >= 0
    return {name: column[real] for name, column in sends.items()}, takes


def _beginnings(rows: dict[str, Array], is_start: Array) -> tuple[Array, Array]:
    """Of each row with a request: the row where that was made, and the latest where it was started; -1 for none."""
    count = len(rows["kind"])
    made, started = np.full(count, -1, "i8"), np.full(count, -1, "i8")
    at = np.flatnonzero(rows["request"] >= 0)
    order = at[np.argsort(rows["request"][at], kind="stable")]
    if not len(order):
        return made, started
    request, place = rows["request"][order], np.arange(len(order))
    first = np.concatenate([[0], np.flatnonzero(np.diff(request)) + 1])
    group = np.repeat(first, np.diff(np.append(first, len(order))))
    begins = rows["begins"][order]
    for found, starts in ((made, begins), (started, begins | is_start[order])):
        latest = np.maximum.accumulate(np.where(starts, place, -1))
        found[order] = np.where(latest >= group, order[latest], -1)
    return made, started


def _paired(sends: dict[str, Array], takes: dict[str, Array]) -> tuple[Messages, int]:
    """The k-th send of each sender, receiver, communicator and tag with the k-th receive."""
    count = len(sends["src"])
    keys = ("comm", "src", "dst", "tag", "at_s")
    both = {name: np.concatenate([sends[name], takes[name]]) for name in keys}
    side = np.repeat(np.array([0, 1], "u1"), (count, len(takes["src"])))
    order = np.lexsort((both["at_s"], side, both["tag"], both["dst"], both["src"], both["comm"]))
    changed = np.zeros(len(order), bool)
    for name in keys[:-1]:
        changed[1:] |= np.diff(both[name][order]) != 0
    changed[:1] = True
    group = np.flatnonzero(changed)
    group_of = np.cumsum(changed) - 1
    num_sends = np.add.reduceat(side[order] == 0, group) if len(group) else np.zeros(0, int)
    at = np.flatnonzero(side[order] == 1)
    nth = at - group[group_of[at]] - num_sends[group_of[at]]
    met = at[nth < num_sends[group_of[at]]]
    a = order[met - num_sends[group_of[met]]]
    b = order[met] - count
    taken_s, thread = np.full(count, np.nan), np.full(count, -1, "i4")
    taken_s[a], thread[a] = takes["end_s"][b], takes["thread"][b]
    src, dst = (sends["src"], sends["thread"]), (sends["dst"], thread)
    return Messages(*src, *dst, sends["at_s"], taken_s, sends["num_bytes"]), len(takes["src"]) - len(met)
