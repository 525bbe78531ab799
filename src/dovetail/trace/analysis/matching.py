"""matching: match sends and receives by MPI's ordering rules; count messages received before they were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.probed import next_received
from dovetail.trace.decode import KINDS, NEAR_TAG
from dovetail.trace.grown import Grown
from dovetail.trace.trace import Comm, Trace

Array = NDArray[Any]
SEND, RECV, DONE, REQUEST = (KINDS.index(kind) for kind in ("send", "recv", "done", "request"))
_USED = ("kind", "name", "rank", "thread", "peer", "tag", "comm", "start_s", "end_s", "num_bytes", "request", "begins")


class Messages(NamedTuple):
    """One entry per sent message. If no receive matched, the fields of the receive are NaN or -1."""

    src: Array
    src_thread: Array
    dst: Array
    dst_thread: Array
    sent_s: Array  # the sending call begins
    sent_end_s: Array  # the sending call ends
    done_end_s: Array  # the call that completes the send (this call, or one that waits for its request) ends; NaN: none
    done_s: Array  # that call begins
    done_thread: Array
    done_name: Array
    posted_s: Array  # the call that posts the receive begins
    waited_s: Array  # the call that completes the receive begins
    received_s: Array  # the call that completes the receive ends
    num_bytes: Array
    sent_name: Array  # name of the sending call: an index into the trace's names
    received_name: Array
    sent_row: Array  # row of the trace
    posted_row: Array
    received_row: Array
    probe_s: Array  # a blocking probe for the message begins
    probe_end_s: Array
    probe_name: Array
    probe_row: Array


class Matcher:
    """Collects sends and receives; pairs those with equal sender, receiver, communicator and tag, in order.

    The order of receives is the order in which they were posted.
    """

    def __init__(self) -> None:
        self._kept = Grown()
        self._num_rows = 0

    def take(self, columns: dict[str, Array]) -> None:
        """Add rows, ordered by end time."""
        about = np.isin(columns["kind"], (SEND, RECV, DONE)) | (
            (columns["kind"] == REQUEST) & (columns["request"] >= 0)
        )
        at = np.flatnonzero(about)
        if len(at):
            self._kept.add({name: columns[name][at] for name in _USED} | {"row": at + self._num_rows})
        self._num_rows += len(about)

    def messages(self, names: Sequence[str], comms: Sequence[Comm]) -> tuple[Messages, int]:
        """Return the messages, and the number of receives that match no send. Clears what was collected."""
        if not len(self._kept):
            return Messages(*no_columns(Messages._fields)), 0
        rows = self._kept.give()
        is_init = of_name(names, lambda name: name.endswith(("_init", "_init_c")))[rows["name"]]
        is_start = of_name(names, lambda name: name in ("MPI_Start", "MPI_Startall"))[rows["name"]]
        is_probe = of_name(names, lambda name: name in ("MPI_Probe", "MPI_Mprobe"))[rows["name"]]
        probes = np.flatnonzero(is_probe & (rows["kind"] == RECV))
        sides = _sides(rows, is_init, is_start, np.array(alike(comms), "i4"))
        if not len(probes):
            rows.clear()  # frees its memory
        found, strays = _paired(*sides)
        return _with_probes(found, rows, probes) if len(probes) else found, strays


def messages(trace: Trace) -> Messages:
    """Return the messages of a trace."""
    matcher = Matcher()
    matcher.take(trace.columns)
    return matcher.messages(trace.names, trace.comms)[0]


def check(found: Messages, strays: int) -> dict[str, Any]:
    """Return the number of messages, and of those received before they were sent on the corrected clocks."""
    early = (found.sent_s - found.received_s)[~np.isnan(found.received_s)]
    return {
        "messages": len(found.src),
        "without_partner": len(found.src) - len(early) + strays,
        "received_before_sent": int(np.count_nonzero(early > 0)),
        "earliest_s": float(max(early.max(initial=0.0), 0.0)),
    }


def no_columns(names: Sequence[str]) -> Iterator[Array]:
    """Yield an empty column per name: floats for names that end in `_s`, else integers."""
    return (np.zeros(0, "f8" if name.endswith("_s") else "i8") for name in names)


def of_name(names: Sequence[str], test: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return `test(name)` for each name, as an array."""
    return np.array([test(name) for name in names], bool)


def alike(comms: Sequence[Comm]) -> list[int]:
    """Return a number per communicator, equal for both sides of an intercommunicator; last, 0 for an unknown one."""
    numbers: dict[object, int] = {}
    keys = [(*sorted((comm.ranks, comm.remote)), comm.number, comm.is_window) for comm in comms]
    return [numbers.setdefault(key, len(numbers) + 1) for key in keys] + [0]


def _sides(
    rows: dict[str, Array], is_init: Array, is_start: Array, alike: Array
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the columns of all sends, and those of all receives: communicator, sender, receiver, tag, bytes, times."""
    made, started = _beginnings(rows, is_start)
    has_start = np.isin(rows["kind"], (REQUEST, DONE)) & (made >= 0)
    of_send = has_start & (rows["kind"][made] == SEND)
    sent = np.flatnonzero(((rows["kind"] == SEND) & ~is_init) | (of_send & is_start & is_init[made]))
    by = np.where(rows["kind"][sent] == SEND, sent, made[sent])  # the row that names the destination
    sends = {"comm": alike[rows["comm"][by]], "src": rows["rank"][sent], "dst": rows["peer"][by]}
    sends |= {"tag": rows["tag"][by], "at_s": rows["start_s"][sent], "num_bytes": rows["num_bytes"][by]}
    sends |= {name: rows[name][sent] for name in ("thread", "end_s", "name", "row")}
    over = np.flatnonzero((rows["kind"] == DONE) & of_send & (started >= 0))
    ended_by = np.where(rows["request"] >= 0, -1, np.arange(len(made)))  # the row that completes a send
    ended_by[started[over]] = over
    by_end, known = ended_by[sent], ended_by[sent] >= 0
    for name, column in (("done_end_s", "end_s"), ("done_s", "start_s")):
        sends[name] = np.where(known, rows[column][by_end], np.nan)
    for name, column in (("done_thread", "thread"), ("done_name", "name")):
        sends[name] = np.where(known, rows[column][by_end], -1)
    taken = np.flatnonzero((rows["kind"] == DONE) & ~of_send & (rows["peer"] >= 0))
    receives = {"comm": alike[rows["comm"][taken]], "src": rows["peer"][taken], "dst": rows["rank"][taken]}
    asked = np.where(started[taken] >= 0, started[taken], taken)
    receives |= {"tag": rows["tag"][taken], "at_s": rows["start_s"][asked], "posted_row": rows["row"][asked]}
    receives |= {name: rows[name][taken] for name in ("thread", "start_s", "end_s", "name", "row")}
    near = _of_neighbours(rows, made, alike)
    receives = {name: np.concatenate([column, near[name]]) for name, column in receives.items()}
    real = sends["dst"] >= 0
    return {name: column[real] for name, column in sends.items()}, receives


def _of_neighbours(rows: dict[str, Array], made: Array, alike: Array) -> dict[str, Array]:
    """Return the receives of non-blocking collectives among neighbours: one per neighbour, all of one request."""
    begun = np.flatnonzero((rows["kind"] == RECV) & (rows["tag"] == NEAR_TAG) & rows["begins"] & (rows["request"] >= 0))
    begun = begun[np.argsort(rows["request"][begun], kind="stable")]
    over = np.flatnonzero((rows["kind"] == DONE) & (made >= 0))
    over = over[(rows["kind"][made[over]] == RECV) & (rows["tag"][made[over]] == NEAR_TAG)]
    sides = (np.searchsorted(rows["request"][begun], rows["request"][over], side=side) for side in ("left", "right"))
    low, high = sides
    ends = np.repeat(over, high - low)
    within = np.arange(len(ends)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    asked = begun[np.repeat(low, high - low) + within] if len(ends) else begun[:0]
    found = {"comm": alike[rows["comm"][asked]], "src": rows["peer"][asked], "dst": rows["rank"][asked]}
    found |= {"tag": rows["tag"][asked], "at_s": rows["start_s"][asked], "posted_row": rows["row"][asked]}
    return found | {name: rows[name][ends] for name in ("thread", "start_s", "end_s", "name", "row")}


def _beginnings(rows: dict[str, Array], is_start: Array) -> tuple[Array, Array]:
    """Return for each row the row that created its request, and the latest row that started it; -1 for none."""
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


def _paired(sends: dict[str, Array], receives: dict[str, Array]) -> tuple[Messages, int]:
    """Pair the k-th send with the k-th receive of equal sender, receiver, communicator and tag.

    Returns the messages and the number of receives without a send.
    """
    count = len(sends["src"])
    keys = ("comm", "src", "dst", "tag", "at_s")
    both = {name: np.concatenate([sends[name], receives[name]]) for name in keys}
    side = np.repeat(np.array([0, 1], "u1"), (count, len(receives["src"])))
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
    matched = at[nth < num_sends[group_of[at]]]
    a = order[matched - num_sends[group_of[matched]]]
    b = order[matched] - count

    def of_receive(name: str, other: float) -> Array:
        column = np.full(count, other, receives[name].dtype)
        column[a] = receives[name][b]
        return column

    found = Messages(
        *(
            sends["src"],
            sends["thread"],
            sends["dst"],
            of_receive("thread", -1),
            sends["at_s"],
            sends["end_s"],
            sends["done_end_s"],
            sends["done_s"],
            sends["done_thread"],
            sends["done_name"],
        ),
        *(of_receive("at_s", np.nan), of_receive("start_s", np.nan), of_receive("end_s", np.nan), sends["num_bytes"]),
        *(sends["name"], of_receive("name", -1), sends["row"], of_receive("posted_row", -1)),
        of_receive("row", -1),
        *(np.full(count, missing) for missing in (np.nan, np.nan, -1, -1)),
    )
    return found, len(receives["src"]) - len(matched)


def _with_probes(found: Messages, rows: dict[str, Array], probes: Array) -> Messages:
    """Return the messages with the probes that waited for them; `probes`: their indices in `rows`.

    MPI_Probe waits for the message that its thread receives next. MPI_Mprobe posts the receive itself.
    """
    complete = np.flatnonzero(found.received_row >= 0)
    by = np.searchsorted(rows["row"], found.received_row[complete])
    receives = {name: rows[name][by] for name in ("rank", "comm", "peer", "tag")}
    receives |= {"thread": found.dst_thread[complete], "at_s": found.posted_s[complete]}
    is_probe = rows["request"][probes] < 0
    alone = {name: rows[name][probes[is_probe]] for name in ("rank", "thread", "comm", "peer", "tag", "end_s")}
    received = np.full(len(probes), -1, "i8")
    received[is_probe] = next_received({**alone, "at_s": alone.pop("end_s")}, receives)
    posted = np.argsort(found.posted_row[complete], kind="stable")
    place = np.searchsorted(found.posted_row[complete][posted], rows["row"][probes[~is_probe]])
    received[~is_probe] = np.append(posted, -1)[place]
    same = found.posted_row[complete[received]] == rows["row"][probes] if len(complete) else is_probe
    received[~is_probe & ~same] = -1
    order = np.flatnonzero(received >= 0)[::-1]  # reversed, so that the first of several probes for a message wins
    columns = {"probe_s": "start_s", "probe_end_s": "end_s", "probe_name": "name", "probe_row": "row"}
    for field, name in columns.items():
        getattr(found, field)[complete[received[order]]] = rows[name][probes[order]]
    return found
