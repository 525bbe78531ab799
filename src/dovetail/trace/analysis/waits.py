"""waits: wait states (which rank waited in a call, for which rank, since when), and the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.collectives import kind_of_mpi, traits_of
from dovetail.trace.analysis.collective_calls import CollectiveCalls
from dovetail.trace.analysis.matching import Messages, of_name
from dovetail.trace.analysis.polls import POLLS, Polls
from dovetail.trace.analysis.wait_rows import Waits, joined

Array = NDArray[Any]
STATES = ("late_sender", "late_receiver", "wait_at_collective", "late_root", "early_root")
LATE_SENDER, LATE_RECEIVER, AT_COLLECTIVE, LATE_ROOT, EARLY_ROOT = range(len(STATES))
_OF_SOME = ("Neighbor_", "Scan", "Exscan", "Ineighbor_", "Iscan", "Iexscan")  # wait for neighbours or lower ranks only


class CallWaits(NamedTuple):
    """One wait per call that waited, and its seconds without the pauses between polls."""

    waits: Waits
    seconds: Array


def waits_of_messages(found: Messages, names: Sequence[str]) -> Waits:
    """Return every wait that the messages of a trace show. Waits of one call may overlap (see `by_call`).

    A successful test of a late message also ends a wait, even if the message arrived before the test: earlier,
    unsuccessful tests waited.
    """
    is_poll = _polls(names)
    return joined(_of_receivers(found, is_poll), _of_probes(found), _of_senders(found, names, is_poll))


def waits_of_collectives(met: CollectiveCalls, names: Sequence[str]) -> Waits:
    """Return every wait that the collectives of a trace show."""
    return _of_collectives(met, names, _polls(names))


def _polls(names: Sequence[str]) -> NDArray[np.bool_]:
    """Return whether each name is a poll; last, False for no name (-1)."""
    return of_name([*names, ""], lambda name: name in POLLS)


def by_call(found: Waits, polls: Polls | None = None) -> CallWaits:
    """Return one wait per call: the one that ends last, since all begin with the call.

    With `polls`, unsuccessful tests before a successful one count as waits, too.
    """
    seconds = found.until_s - found.start_s
    if polls is not None:
        found, seconds = _polled(found, polls)
    waited = seconds > 0
    found, seconds = found.at(waited), seconds[waited]
    order = np.lexsort((-found.until_s, found.start_s, found.end_s, found.thread, found.rank))
    found, seconds = found.at(order), seconds[order]
    changed = np.zeros(len(order), bool)
    changed[:1] = True
    for column in (found.rank, found.thread, found.start_s, found.end_s):
        changed[1:] |= column[1:] != column[:-1]
    return CallWaits(found.at(changed), seconds[changed])


def _of_receivers(found: Messages, is_poll: Array) -> Waits:
    """Return the waits of receivers that began before the send."""
    since = np.where(is_poll[found.received_name.astype("i8")], found.posted_s, found.waited_s)
    at = np.flatnonzero((found.received_row >= 0) & (found.sent_s > since))
    until = np.minimum(found.sent_s, found.received_s)[at]
    return Waits(
        *(np.full(len(at), LATE_SENDER), found.received_name[at], found.dst[at], found.dst_thread[at]),
        *(found.waited_s[at], until, found.received_s[at], found.src[at], found.posted_s[at]),
    )


def _of_probes(found: Messages) -> Waits:
    """Return the waits of probes that began before the send."""
    at = np.flatnonzero((found.received_row >= 0) & (found.sent_s > found.probe_s))
    until = np.minimum(found.sent_s, found.probe_end_s)[at]
    return Waits(
        *(np.full(len(at), LATE_SENDER), found.probe_name[at], found.dst[at], found.dst_thread[at]),
        *(found.probe_s[at], until, found.probe_end_s[at], found.src[at], found.probe_s[at]),
    )


def _of_senders(found: Messages, names: Sequence[str], is_poll: Array) -> Waits:
    """Return the waits of calls that complete a send and began before its receive was posted.

    A call that also receives messages may have waited for those only. In such a call, a message counts only if it is
    longer than every message that was sent eagerly, or if its sender must wait (MPI_Ssend).
    """
    buffered = of_name([*names, ""], lambda name: "bsend" in name.lower())[found.sent_name.astype("i8")]
    strict = of_name([*names, ""], lambda name: "ssend" in name.lower())[found.sent_name.astype("i8")]
    eager = found.num_bytes[found.done_end_s < found.posted_s].max(initial=-1)
    since = np.where(is_poll[found.done_name.astype("i8")], found.sent_end_s, found.done_s)
    late = (found.received_row >= 0) & (found.posted_s > since) & (found.done_end_s > found.posted_s) & ~buffered
    sure = strict | (found.num_bytes > eager) | ~_receives_too(found, late)
    at = np.flatnonzero(late & sure)
    return Waits(
        *(np.full(len(at), LATE_RECEIVER), found.done_name[at], found.src[at], found.done_thread[at]),
        *(found.done_s[at], found.posted_s[at], found.done_end_s[at], found.dst[at], found.sent_s[at]),
    )


def _receives_too(found: Messages, chosen: Array) -> Array:
    """Return for each chosen message whether the call that completes its send also receives messages."""
    kind = np.dtype([("rank", "i8"), ("thread", "i8"), ("start", "f8")])
    both = [np.zeros(len(chosen), kind) for _ in range(2)]
    columns = (found.src, found.done_thread, found.done_s), (found.dst, found.dst_thread, found.waited_s)
    for calls, values in zip(both, columns, strict=True):
        for name, value in zip(kind.names or (), values, strict=True):
            calls[name] = value
    receives = np.zeros(len(chosen), bool)
    receives[chosen] = np.isin(both[0][chosen], both[1][found.received_row >= 0])
    return receives


def _of_collectives(met: CollectiveCalls, names: Sequence[str], is_poll: Array) -> Waits:
    """Return the waits of ranks that called a collective before the ranks that they need: all others, or the root."""
    direction = np.zeros(len(names), "i8")
    for i, name in enumerate(names):
        traits = traits_of(kind_of_mpi(_of_blocking(name).capitalize()))
        direction[i] = 1 if traits.from_root else 2 if traits.to_root else 0
    way = direction[met.name] if len(met.name) else met.name
    is_root, until = met.root == met.rank, np.array(met.last_start_s, "f8")
    cause, state = np.array(met.last_rank), np.full(len(way), AT_COLLECTIVE)
    from_root = way == 1
    until[from_root], cause[from_root] = met.root_start_s[from_root], met.root[from_root]
    state[from_root], state[way == 2] = LATE_ROOT, EARLY_ROOT
    waited = np.where(way == 1, ~is_root, (way == 0) | is_root) & ~np.isnan(until) & ~np.isnan(met.waited_s)
    of_some = of_name(names, lambda name: name.removeprefix("MPI_").startswith(_OF_SOME))
    if len(met.name):
        waited &= ~(of_some[met.name] & (met.waited_end_s < until))  # it did not need the last rank
    until = np.fmin(until, met.waited_end_s)
    since = np.where(is_poll[met.waited_name.astype("i8")], met.start_s, met.waited_s)
    at = np.flatnonzero(waited & (until > since))
    rows = (state, met.waited_name, met.rank, met.waited_thread, met.waited_s, until, met.waited_end_s, cause)
    return Waits(*(column[at] for column in (*rows, met.start_s)))


def _of_blocking(name: str) -> str:
    """Return a collective's name in lower case, without the prefix MPI_ and without the I of non-blocking ones.

    >>> _of_blocking("MPI_Ibcast"), _of_blocking("MPI_Bcast_c")
    ('bcast', 'bcast')
    """
    short = name.removeprefix("MPI_").removesuffix("_c").lower()
    return short[1:] if short.startswith("i") else short


def _polled(found: Waits, polls: Polls) -> tuple[Waits, Array]:
    """Return the waits with those of earlier unsuccessful tests added, and seconds without pauses between polls."""
    poll, wait = polls.before(found)
    start, end, seconds = polls.start_s[poll], polls.end_s[poll], found.until_s - found.start_s
    own = (start == found.start_s[wait]) & (end == found.end_s[wait])
    until = np.minimum(found.until_s[wait], end)
    spent = np.minimum(until, end - polls.pause_s[poll]) - start  # as if all pauses came at the end
    seconds[wait[own]] = spent[own]
    vain = ~own & (until > start)
    more = found.at(wait[vain])._replace(start_s=start[vain], until_s=until[vain], end_s=end[vain])
    return joined(found, more), np.maximum(np.concatenate([seconds, spent[vain]]), 0.0)


@dataclass(frozen=True)
class CriticalPath:
    """The intervals, in order of time, on the ranks that determine the length of the run; it contains no waits."""

    rank: Array
    start_s: Array
    end_s: Array

    def seconds_of(self, num_ranks: int, apart: Sequence[tuple[int, float, float]] = ()) -> Array:
        """Return the seconds on each rank, without those in the calls `apart` (rank, start, end)."""
        spent_s = self.end_s - self.start_s
        for rank, start_s, end_s in apart:
            first = int(np.searchsorted(self.end_s, start_s, side="right"))
            near = slice(first, int(np.searchsorted(self.start_s, end_s)))
            common_s = np.minimum(self.end_s[near], end_s) - np.maximum(self.start_s[near], start_s)
            spent_s[near] -= np.where(self.rank[near] == rank, np.maximum(common_s, 0.0), 0.0)
        return np.bincount(self.rank, spent_s, num_ranks)


def critical_path(found: Waits, first_s: Array, last_s: Array) -> CriticalPath:
    """Return the critical path: go back from the last event; at each wait, continue on the rank that was waited for.

    `first_s`, `last_s`: when each rank's run time begins and ends.
    """
    order = np.lexsort((found.until_s, found.end_s, found.rank))
    ends, bounds = found.end_s[order], np.searchsorted(found.rank[order], np.arange(len(first_s) + 1))
    rank = int(np.argmax(last_s)) if len(last_s) else 0
    time, intervals = float(last_s[rank]) if len(last_s) else 0.0, []
    for _ in range(len(order) + 1):
        at = int(bounds[rank] + np.searchsorted(ends[bounds[rank] : bounds[rank + 1]], time, side="right")) - 1
        if at < bounds[rank]:
            break
        wait = order[at]
        intervals.append((rank, float(found.until_s[wait]), time))
        rank, time = int(found.cause[wait]), float(found.until_s[wait])
    if len(last_s):
        intervals.append((rank, min(float(first_s[rank]), time), time))
    columns = zip(*intervals[::-1], strict=True) if intervals else ((), (), ())
    arrays = [np.array(column) for column in columns]
    return CriticalPath(arrays[0].astype("i8"), arrays[1].astype("f8"), arrays[2].astype("f8"))
