"""rank_activity: what each rank did at each time: work between two calls, a call, I/O, pauses between polls, a wait."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.crowding import crowding
from dovetail.advise.disturbance import Disturbance, disturbance
from dovetail.advise.intervals import Intervals
from dovetail.advise.regions import Regions
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.call_classes import IO, OTHER, OUTSIDE, PICKLE, PICKLING, SETUP, SYSTEM_IO, class_of
from dovetail.trace.analysis.collective_calls import CollectiveCalls, CollectiveMatcher
from dovetail.trace.analysis.matching import Matcher, Messages, of_name
from dovetail.trace.analysis.polls import LOOKS, POLLS, Polls
from dovetail.trace.analysis.sites import call_sites
from dovetail.trace.analysis.wait_rows import Waits, joined
from dovetail.trace.analysis.waits import by_call, waits_of_collectives, waits_of_messages
from dovetail.trace.decode import KINDS
from dovetail.trace.grown import Grown

Array = NDArray[Any]
Kind = Literal["work", "io", "pickle", "poll", "call", "start", "stolen", "crowded"]
MOST_ACTIVITIES = 16  # activities listed, those that take longest; the others count together
MOST_WAITS = 1_000_000  # waits that are attributed: the longest
_POINT = KINDS.index("point")


class Activity(NamedTuple):
    """What a rank does outside waits, named alike on all ranks.

    `kind`: "work" between two MPI calls, without I/O; "io": MPI_File, or the C library's I/O; "pickle": mpi4py turns
    objects into bytes, or back; "poll": time between two unsuccessful tests; "call": time within a call that does not
    wait; "start": before the rank has left MPI_Init; "stolen": others had its cores, "crowded": other ranks had them
    (only if the trace has the kernel's counters).
    `place`: call sites; of work, also the program's own interval (`dovetail.trace.interval`) in which most of it was.
    """

    kind: Kind
    place: str


STARTS, STOLEN = Activity("start", "MPI_Init"), Activity("stolen", "other programs, or the hypervisor")
CROWDED = Activity("crowded", "other ranks of the job")


class _Calls(NamedTuple):
    """MPI calls, and I/O, of the thread of each rank that makes most calls, by rank and start.

    `site`: index into `places`.
    """

    rank: Array
    start_s: Array
    end_s: Array
    site: Array


_KINDS = {"rank": "i4", "start_s": "f8", "end_s": "f8", "site": "i4"}  # of the columns of _Calls


@dataclass(frozen=True)
class RankActivity:
    """The ranks' activities, their waits, and when pairs of ranks met.

    Attributes
    ----------
    activities : tuple of Activity
        The longest, then all other work, all other calls, the time before the end of MPI_Init, and last, if `lost` is
        known, the time that others, and other ranks, had the ranks' cores.
    waits : Waits
        One per call that waited; at most MOST_WAITS.
    met_s : array of float
        For each wait, when its rank and the rank that it waits for last met before.
    waited_s : float
        Seconds of all waits, of those left out, too.
    seconds : float
        From the end of MPI_Init to the begin of MPI_Finalize, the mean of all ranks.
    """

    num_ranks: int
    activities: tuple[Activity, ...]
    waits: Waits
    met_s: Array
    waited_s: float
    seconds: float
    calls: _Calls = field(repr=False)
    labels: Array = field(repr=False)  # by (site, next site): an activity
    own_labels: Array = field(repr=False)  # by site: the activity of the call itself
    starts_s: Array = field(repr=False)  # when each rank leaves MPI_Init
    outer: tuple[Array, Array] = field(repr=False)  # by call: the sites before and after it, I/O left out
    may_wait: Array = field(repr=False)  # by call: whether it may wait for, or start an exchange with, other ranks
    lost: Disturbance | None = field(default=None, repr=False)
    crowded: tuple[str, ...] = ()  # a sentence if there are more ranks than cores
    left_out_s: Array | None = field(default=None, repr=False)  # by call: seconds of the work before it not to count

    def without(self, rank: Array, start_s: Array, seconds: Array) -> RankActivity:
        """Return the activities without `seconds` of the work before each of these calls (rank, start)."""
        left_out_s = np.zeros(len(self.calls.rank))
        for one in range(self.num_ranks):
            here, mine = self.calls.start_s[self._bounds[one] : self._bounds[one + 1]], rank == one
            at = np.searchsorted(here, start_s[mine])
            known = at < len(here)
            np.add.at(left_out_s, self._bounds[one] + at[known], seconds[mine][known])
        return replace(self, left_out_s=left_out_s)

    @cached_property
    def _bounds(self) -> Array:
        found: Array = np.searchsorted(self.calls.rank, np.arange(self.num_ranks + 1))
        return found

    def stretches(self, rank: int, times_s: Array) -> Array:
        """Return how many calls that may wait for others the rank has begun until each time."""
        here = slice(int(self._bounds[rank]), int(self._bounds[rank + 1]))
        found: Array = np.searchsorted(self.calls.start_s[here][self.may_wait[here]], times_s, side="right")
        return found

    def of_rank(self, rank: int) -> tuple[list[Intervals], Intervals]:
        """Return the intervals of each activity of a rank, and those of its waits."""
        here = slice(int(self._bounds[rank]), int(self._bounds[rank + 1]))
        start_s, end_s, site = self.calls.start_s[here], self.calls.end_s[here], self.calls.site[here]
        mine = self.waits.rank == rank
        waits = Intervals.of(self.waits.start_s[mine], self.waits.until_s[mine])
        call_s = np.array(start_s)
        at = np.searchsorted(start_s, waits.start_s)
        known = at < len(start_s)
        call_s[at[known]] = np.minimum(self.waits.until_s[mine][known], end_s[at[known]])
        reached_s = np.maximum.accumulate(end_s) if len(end_s) else end_s
        gap_s = np.concatenate([reached_s[:-1], call_s]) if len(end_s) else call_s
        stop_s = np.concatenate([start_s[1:], end_s]) if len(end_s) else end_s
        if self.left_out_s is not None and len(end_s):
            until_s = np.maximum(gap_s[: len(end_s) - 1], start_s[1:])
            gap_s[: len(end_s) - 1] = np.minimum(gap_s[: len(end_s) - 1] + self.left_out_s[here][1:], until_s)
        before, after = (sites[here] for sites in self.outer)
        label = np.concatenate([self.labels[before[:-1], after[1:]], self.own_labels[site]]) if len(end_s) else site
        order = np.lexsort((gap_s, label))
        gap_s, stop_s, label = gap_s[order], stop_s[order], label[order]
        cuts = np.searchsorted(label, np.arange(len(self.activities) + 1))
        found = [Intervals.of(gap_s[a:b], stop_s[a:b]) for a, b in itertools.pairwise(cuts)]
        found[self.activities.index(STARTS)] = Intervals.of(np.zeros(1), self.starts_s[rank : rank + 1])
        if self.lost is not None:
            found[-2] = found[-1] = Intervals.of(self.lost.times_s[:-1], self.lost.times_s[1:])
        return found, waits


def rank_activity(trace: Trace | TraceFile) -> RankActivity:
    """Read a trace, a chunk at a time if it lies on disk."""
    matcher, collectives_matcher, calls, regions = Matcher(), CollectiveMatcher(), _CallReader(trace), Regions(trace)
    polls: list[Polls] = []
    is_poll = of_name(trace.names, lambda name: name in POLLS)
    for part in trace.parts() if isinstance(trace, TraceFile) else [trace]:
        matcher.take(part.columns)
        collectives_matcher.take(part.columns)
        polls.append(Polls.of(part.columns, is_poll))
        calls.take(part.columns)
        regions.take(part.columns)
    joins = collectives_matcher.calls(trace.names, trace.comms)
    found, _ = matcher.messages(trace.names, trace.comms)
    seen = joined(waits_of_messages(found, trace.names), waits_of_collectives(joins, trace.names))
    waits = by_call(seen, Polls.joined(polls)).waits
    main = calls.main_threads(trace.num_ranks)
    waits = waits.at((waits.thread == main[waits.rank]) & (waits.cause >= 0) & (waits.cause < trace.num_ranks))
    total_s = float((waits.until_s - waits.start_s).sum())
    waits = _longest(waits, MOST_WAITS)
    meetings_s = _meetings(waits, found, joins, trace)
    del found, joins, seen
    return _with_regions(calls.activity(main, waits, meetings_s, total_s), regions, main)


def _with_regions(ranks: RankActivity, regions: Regions, main: Array) -> RankActivity:
    """Return the same, with work named by the program's own intervals, too."""
    if not regions:
        return ranks
    names = regions.mostly(main, [ranks.of_rank(rank)[0] for rank in range(ranks.num_ranks)])
    named = [
        it._replace(place=f"{it.place}, in {name}") if name and it.kind == "work" else it
        for it, name in zip(ranks.activities, names, strict=True)
    ]
    return replace(ranks, activities=tuple(named))


def _longest(waits: Waits, most: int) -> Waits:
    """Return at most `most` waits, the longest, ordered by rank and start, without overlaps."""
    length_s = waits.until_s - waits.start_s
    if len(length_s) > most:
        waits = waits.at(length_s >= np.partition(length_s, -most)[-most])
    waits = waits.at(np.lexsort((waits.start_s, waits.rank)))
    return waits._replace(start_s=np.array(waits.start_s), until_s=np.fmin(waits.until_s, waits.end_s))


def _meetings(waits: Waits, found: Messages, joins: CollectiveCalls, trace: Trace | TraceFile) -> Array:
    """Return for each wait when its two ranks last met before: by a message, or in a collective of all ranks."""
    n = trace.num_ranks
    whole = found.received_row >= 0
    src, dst = found.src[whole].astype("i8"), found.dst[whole].astype("i8")
    pair = np.minimum(src, dst) * n + np.maximum(src, dst)
    both = np.minimum(waits.rank, waits.cause) * n + np.maximum(waits.rank, waits.cause)
    met_s = _latest(pair, found.received_s[whole], both, waits.start_s)
    sizes = np.bincount(joins.collective) if len(joins.collective) else np.zeros(0, "i8")
    first = np.flatnonzero(np.diff(joins.collective, prepend=-1)) if len(sizes) else np.zeros(0, "i8")
    of_all = first[sizes == n]
    zero = np.zeros(len(of_all), "i8")
    met_s = np.fmax(met_s, _latest(zero, joins.last_start_s[of_all], np.zeros(len(both), "i8"), waits.start_s))
    of_some = (sizes[joins.collective] < n) & (joins.rank != joins.last_rank) if len(sizes) else np.zeros(0, bool)
    some, last = joins.rank[of_some].astype("i8"), joins.last_rank[of_some].astype("i8")
    pair = np.minimum(some, last) * n + np.maximum(some, last)
    return np.fmax(met_s, _latest(pair, joins.last_start_s[of_some], both, waits.start_s))


def _latest(keys: Array, times_s: Array, asked: Array, before_s: Array) -> Array:
    """Return for each asked key the latest of its times not after `before_s`; 0 if there is none."""
    if not len(keys):
        return np.zeros(len(asked))
    order = np.lexsort((times_s, keys))
    keys, times_s = keys[order], times_s[order]
    span = float(max(times_s.max(), before_s.max(initial=0.0))) + 1.0  # makes one ascending sequence of all keys
    at = np.searchsorted(keys * span + times_s, asked * span + before_s, side="right") - 1
    found: Array = np.where((at >= 0) & (keys[at] == asked), np.minimum(times_s[at], before_s), 0.0)
    return found


class _CallReader:
    """Collects the MPI calls of a trace with numbered call sites."""

    def __init__(self, trace: Trace | TraceFile) -> None:
        self.trace, self.kept = trace, Grown()
        self.is_mpi = of_name(trace.names, lambda name: name.startswith("MPI_"))
        self.is_io = of_name(trace.names, lambda name: name.startswith((SYSTEM_IO, PICKLE)))
        self.numbers: dict[tuple[int, int, int], int] = {}  # (rank, name, address) -> number of a call site
        self.counts: dict[tuple[int, int], int] = {}  # (rank, thread) -> calls

    def take(self, columns: dict[str, Array]) -> None:
        """Add rows."""
        is_call = (self.is_mpi | self.is_io)[columns["name"]] & (columns["part"] == 0) & ~columns["is_open"]
        at = np.flatnonzero(is_call & (columns["kind"] != _POINT))
        rank, thread = columns["rank"][at], columns["thread"][at]
        calls_mpi = self.is_mpi[columns["name"][at]]
        both, count = np.unique((rank.astype("i8") << 32 | thread)[calls_mpi], return_counts=True)
        for key, more in zip(both.tolist(), count.tolist(), strict=True):
            self.counts[divmod(key, 1 << 32)] = self.counts.get(divmod(key, 1 << 32), 0) + more
        about = {"rank": rank, "thread": thread, "site": self._sites(rank, columns["name"][at], columns["arg"][at])}
        self.kept.add(about | {name: columns[name][at] for name in ("start_s", "end_s")})

    def _sites(self, rank: Array, name: Array, address: Array) -> Array:
        addresses, place = np.unique(address, return_inverse=True)
        cell = (rank.astype("i8") * len(self.is_mpi) + name) * max(len(addresses), 1) + place.ravel()
        cells, inverse = np.unique(cell, return_inverse=True)
        numbers = []
        for one in cells.tolist():
            where, which = divmod(one, len(addresses))
            key = (*divmod(where, len(self.is_mpi)), int(addresses[which]))
            numbers.append(self.numbers.setdefault(key, len(self.numbers)))
        found: Array = np.array(numbers, "i4")[inverse.ravel()]
        return found

    def main_threads(self, num_ranks: int) -> Array:
        """Return the thread of each rank that makes most calls."""
        main = np.full(num_ranks, -1)
        for (rank, thread), _ in sorted(self.counts.items(), key=lambda item: (item[1], -item[0][1])):
            main[rank] = thread
        return main

    def activity(self, main: Array, waits: Waits, met_s: Array, waited_s: float) -> RankActivity:
        """Return the activities of all ranks."""
        rows = self.kept.give() if len(self.kept) else {name: np.zeros(0, kind) for name, kind in _KINDS.items()}
        texts, names = self._texts()
        is_setup = of_name([*names, ""], lambda name: class_of(name) == SETUP)[rows["site"].astype("i8")]
        of_main = rows.pop("thread") == main[rows["rank"].astype("i8")] if len(is_setup) else is_setup
        num_ranks = self.trace.num_ranks
        begins = of_main & is_setup & of_name([*names, ""], _is_init)[rows["site"].astype("i8")]
        starts_s = np.zeros(num_ranks)
        np.maximum.at(starts_s, rows["rank"][begins].astype("i8"), rows["end_s"][begins])
        run_s = _run_s(rows, of_main, is_setup, starts_s)
        order = np.flatnonzero(of_main)
        order = order[np.lexsort((rows["start_s"][order], rows["rank"][order]))]
        calls = _Calls(*(rows[name][order] for name in _Calls._fields))
        begun_s = np.where(is_setup[order], np.fmax(calls.start_s, starts_s[calls.rank]), calls.start_s)
        alike: dict[str, int] = {}
        number = np.array([alike.setdefault(text, len(alike)) for text in texts], "i8")
        calls = calls._replace(start_s=begun_s, site=number[calls.site.astype("i8")] if len(texts) else calls.site)
        seconds = float(run_s.sum()) / max(num_ranks, 1)
        name_of = dict(zip(texts, names, strict=True))
        outer = _without_io(calls, np.array([class_of(name_of[text]) in (IO, PICKLING) for text in alike], bool))
        may_wait = np.array([_may_wait(name_of[text]) for text in alike], bool)[calls.site]
        labels, own, activities = _labels(calls, outer, list(alike), name_of)
        lost = disturbance(self.trace.meta, num_ranks)
        activities += (STOLEN, CROWDED) if lost is not None else ()
        head = num_ranks, activities, waits, np.fmax(met_s, 0.0), waited_s, seconds
        crowds = crowding(self.trace.meta, num_ranks)
        crowded = crowds.warnings if crowds is not None else ()
        return RankActivity(*head, calls, labels, own, starts_s, outer, may_wait, lost, crowded)

    def _texts(self) -> tuple[list[str], list[str]]:
        """Return the place of each call site, as `file.c:42 MPI_Send`, and the name of its call."""
        if not self.numbers:
            return [], []
        rank, name, address = (np.array(column, "i8") for column in zip(*self.numbers, strict=True))
        known = Trace(self.trace.num_ranks, self.trace.names, (), {"rank": rank, "arg": address}, self.trace.meta)
        names = [self.trace.names[number] for number in name.tolist()]
        sites = call_sites(known, np.arange(len(rank)))
        return [f"{site} {call}".strip() for site, call in zip(sites, names, strict=True)], names


def _run_s(rows: dict[str, Array], of_main: Array, is_setup: Array, starts_s: Array) -> Array:
    """Return the seconds of each rank from the end of MPI_Init, or its first call, to MPI_Finalize, or its last one."""
    rank, start_s = rows["rank"][of_main].astype("i8"), rows["start_s"][of_main]
    first_s, last_s = np.full(len(starts_s), np.inf), np.full(len(starts_s), -np.inf)
    np.minimum.at(first_s, rank, start_s)
    np.maximum.at(last_s, rank, np.where(is_setup[of_main], start_s, rows["end_s"][of_main]))
    found: Array = np.fmax(last_s - np.fmax(first_s, starts_s), 0.0)
    return found


def _is_init(name: str) -> bool:
    return class_of(name) == SETUP and "init" in name.lower()


def _may_wait(name: str) -> bool:
    """Whether a call may wait for other ranks, or start an exchange with them; polls do not wait.

    >>> [_may_wait(name) for name in ("MPI_Isend", "MPI_Allreduce", "MPI_Test", "MPI_Comm_rank", "libc read")]
    [True, True, False, False, False]
    """
    return class_of(name) not in (OUTSIDE, IO, OTHER, PICKLING) and name not in LOOKS


def _without_io(calls: _Calls, is_io: Array) -> tuple[Array, Array]:
    """Return for each call the site of the last, and of the next, call of its rank that is no I/O, itself included.

    So I/O between two calls does not divide the work between them. At a rank's first or last calls: its own site.
    """
    at, is_outer = np.arange(len(calls.site)), ~is_io[calls.site]
    before = np.maximum.accumulate(np.where(is_outer, at, 0))
    after = np.minimum.accumulate(np.where(is_outer, at, len(at) - 1)[::-1])[::-1]
    found = [np.where(calls.rank[there] == calls.rank, there, at) for there in (before, after)]
    return calls.site[found[0]], calls.site[found[1]]


def _labels(
    calls: _Calls, outer: tuple[Array, Array], places: Sequence[str], name_of: dict[str, str]
) -> tuple[Array, Array, tuple[Activity, ...]]:
    """Return the activity between each two call sites, of each call itself, and all activities."""
    count, site = len(places), calls.site
    follows = calls.rank[1:] == calls.rank[:-1] if len(site) else np.zeros(0, bool)
    gap_s = np.maximum(calls.start_s[1:] - calls.end_s[:-1], 0.0)[follows]
    between = np.bincount((outer[0][:-1] * count + outer[1][1:])[follows], gap_s, count * count)
    own = np.bincount(site, np.maximum(calls.end_s - calls.start_s, 0.0), count)
    own[[class_of(name_of[text]) == SETUP for text in places]] = 0.0
    spent = np.concatenate([between, own])
    most = np.argsort(-spent, kind="stable")[:MOST_ACTIVITIES]
    most = most[spent[most] > 0]
    activities = [_activity(int(key), places, name_of) for key in most.tolist()]
    activities += [Activity("work", "other work"), Activity("call", "other calls"), STARTS]
    label = np.full(count * count + count, len(most), "i8")
    label[count * count :] += 1
    label[most] = np.arange(len(most))
    return label[: count * count].reshape(count, count), label[count * count :], tuple(activities)


def _activity(key: int, place: Sequence[str], name_of: dict[str, str]) -> Activity:
    """Return the activity with this number: between two call sites, or in the call at one."""
    if key >= len(place) ** 2:
        text = place[key - len(place) ** 2]
        kinds: dict[int, Kind] = {IO: "io", PICKLING: "pickle"}
        return Activity(kinds.get(class_of(name_of[text]), "call"), text)
    before, after = (place[i] for i in divmod(key, len(place)))
    if name_of[before] in LOOKS and name_of[after] in LOOKS:
        return Activity("poll", after)
    return Activity("work", f"{before} to {after}")
