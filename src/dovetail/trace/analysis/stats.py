"""stats: statistics of a trace: seconds by call, message sizes, traffic between ranks, wait states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.call_classes import SETUP, class_of
from dovetail.trace.analysis.collective_calls import CollectiveMatcher
from dovetail.trace.analysis.delays import delays_of
from dovetail.trace.analysis.matching import Matcher, Messages, of_name
from dovetail.trace.analysis.polls import POLLS, Polls
from dovetail.trace.analysis.requests_in_flight import Log
from dovetail.trace.analysis.site_sums import SiteStats, SiteSums
from dovetail.trace.analysis.wait_rows import joined
from dovetail.trace.analysis.waits import (
    STATES,
    CallWaits,
    by_call,
    critical_path,
    waits_of_collectives,
    waits_of_messages,
)
from dovetail.trace.decode import KINDS
from dovetail.trace.store import TraceFile
from dovetail.trace.trace import Trace

SCHEMA = "dovetail.trace_stats/1"
_MOVES = [KINDS.index(kind) for kind in ("send", "done", "collective", "put", "get", "window")]
_POINT, _PUT, _GET = (KINDS.index(kind) for kind in ("point", "put", "get"))


@dataclass(frozen=True)
class CallStats:
    """All calls of one name, on one rank or on all: their number, bytes sent or received, and seconds within them.

    An interval that stands for several polls counts once per poll.
    """

    name: str
    count: int
    num_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return count, bytes and seconds by name."""
        return {"name": self.name, "count": self.count, "bytes": self.num_bytes, "seconds": self.seconds}


@dataclass(frozen=True)
class WaitStats:
    """Waits of one kind in calls of one name.

    A call that waits for several messages counts as waiting for the last of them.

    Attributes
    ----------
    state, name : str
        Kind of wait (one of STATES), and name of the calls.
    count, seconds : int, float
        Number of calls that waited, and their total seconds.
    most_rank, most_s : int, float
        The rank that waited longest, and its seconds.
    cause_rank, cause_s : int, float
        The rank that was waited for longest, and the seconds that ranks waited for it.
    """

    state: str
    name: str
    count: int
    seconds: float
    most_rank: int
    most_s: float
    cause_rank: int
    cause_s: float

    def to_json(self) -> dict[str, Any]:
        """Return all attributes by name; `state` as `kind`."""
        return {"kind": self.state, **{key: getattr(self, key) for key in list(self.__dataclass_fields__)[1:]}}


@dataclass(frozen=True)
class RankStats:
    """Statistics of one rank; all times in seconds.

    Attributes
    ----------
    seconds : float
        From the first event to the last.
    mpi_s, waited_s : float
        Within MPI, and waiting within MPI, over all threads; without MPI_Init and MPI_Finalize.
    critical_s : float
        On the critical path; without MPI_Init and MPI_Finalize.
    under_way_s, hidden_s : float
        With a request in flight or inside MPI, and of that outside MPI.
    pure_s : float
        What the received messages take in isolation, by the trace's curve of message times.
    calls : tuple of CallStats
        By name, longest first.
    open_calls : tuple of str
        Calls that never ended.
    num_threads : int
        Threads that called MPI.
    setup_s : float
        In MPI_Init and MPI_Finalize.
    """

    rank: int
    seconds: float
    mpi_s: float
    waited_s: float
    critical_s: float
    under_way_s: float
    hidden_s: float
    pure_s: float
    calls: tuple[CallStats, ...] = field(repr=False)
    open_calls: tuple[str, ...] = ()
    num_threads: int = 1
    setup_s: float = 0.0

    @property
    def seen_s(self) -> float:
        """Return the seconds of all threads that called MPI, without MPI_Init and MPI_Finalize."""
        return max(self.seconds * self.num_threads - self.setup_s, 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the statistics of one rank; times in seconds."""
        calls = [call.to_json() for call in self.calls]
        times = ("seconds", "setup_s", "mpi_s", "waited_s", "critical_s", "under_way_s", "hidden_s", "pure_s")
        shown = {"rank": self.rank, **{name: getattr(self, name) for name in times}}
        return {**shown, "threads": self.num_threads, "calls": calls, "open_calls": list(self.open_calls)}


@dataclass(frozen=True)
class Stats:
    """Statistics of a whole trace; puts and gets count as messages.

    `sizes[i]`: number of messages of 2**(i-1) to 2**i - 1 bytes; `sizes[0]`: empty messages.
    `matrix_bytes`, `matrix_messages`: arrays of shape (ranks, ranks), by sender and receiver. `waits`: longest first.
    """

    num_ranks: int
    calls: tuple[CallStats, ...]
    ranks: tuple[RankStats, ...]
    waits: tuple[WaitStats, ...]
    sizes: tuple[int, ...]
    matrix_bytes: NDArray[np.int64] = field(repr=False)
    matrix_messages: NDArray[np.int64] = field(repr=False)
    meta: dict[str, Any] = field(repr=False)
    sites: tuple[SiteStats, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; seconds and bytes."""
        head = {"schema": SCHEMA, "num_ranks": self.num_ranks, "calls": [call.to_json() for call in self.calls]}
        sizes = [{"below_bytes": 1 << i, "messages": count} for i, count in enumerate(self.sizes)]
        matrix = {"matrix_bytes": self.matrix_bytes.tolist(), "matrix_messages": self.matrix_messages.tolist()}
        sums = {"wait_states": [wait.to_json() for wait in self.waits], "overlap": self.overlap, "sizes": sizes}
        about: dict[str, Any] = {key: self.meta[key] for key in ("clocks", "lost", "faults") if key in self.meta}
        head["sites"] = [site.to_json() for site in self.sites]
        return {**head, "ranks": [rank.to_json() for rank in self.ranks], **sums, **matrix, **about}

    @property
    def overlap(self) -> dict[str, float]:
        """Return the share of communication that is hidden behind work, as four benchmarks define it.

        P: time of messages in isolation; C: work while messages are in flight; T: time with messages in flight.
        `hta` = C / T, `imb_nbc` = (P + C - T) / max(P, C), `imb` = (P + C - T) / min(P, C), `osu` = 1 - (T - C) / P;
        each clipped to 0 … 1.
        """
        together, work, transfer_s = (
            sum(getattr(rank, name) for rank in self.ranks) for name in ("under_way_s", "hidden_s", "pure_s")
        )
        saved = transfer_s + work - together
        shares = {"hta": work / (together or 1.0), "imb_nbc": saved / (max(transfer_s, work) or 1.0)}
        shares |= {"imb": saved / (min(transfer_s, work) or 1.0), "osu": saved / (transfer_s or 1.0)}
        return {name: min(max(share, 0.0), 1.0) for name, share in shares.items()}


def stats(trace: Trace | TraceFile) -> Stats:
    """Compute the statistics of a trace; a trace on disk is read a chunk at a time."""
    is_mpi = of_name(trace.names, lambda name: name.startswith("MPI_"))
    is_poll = of_name(trace.names, lambda name: name in POLLS)
    is_setup = of_name(trace.names, lambda name: class_of(name) == SETUP)
    sums, matcher, collectives_matcher, log = (
        _Sums(trace.num_ranks, is_mpi, is_setup),
        Matcher(),
        CollectiveMatcher(),
        Log(),
    )
    polls: list[Polls] = []
    for part in trace.parts() if isinstance(trace, TraceFile) else [trace]:
        sums.add(part.columns)
        matcher.take(part.columns)
        collectives_matcher.take(part.columns)
        log.take(part.columns, is_mpi & ~sums.is_setup)
        polls.append(Polls.of(part.columns, is_poll))
    sums.forget_unseen()
    hidden = log.hidden(trace.names, trace.num_ranks)
    del log  # frees its memory
    at_collectives = waits_of_collectives(collectives_matcher.calls(trace.names, trace.comms), trace.names)
    del collectives_matcher
    found, _ = matcher.messages(trace.names, trace.comms)
    seen = joined(waits_of_messages(found, trace.names), at_collectives)
    path = critical_path(by_call(seen).waits, *sums.run_times()).seconds_of(trace.num_ranks, sums.setup)
    waited = by_call(seen, Polls.joined(polls) if polls else None)
    transfer_s = _transfer_s(found, trace.num_ranks)
    spent = np.bincount(waited.waits.rank, waited.seconds, trace.num_ranks), path, *hidden, transfer_s
    calls, ranks = sums.calls(trace.names), sums.ranks(trace.names, spent)
    sent = np.concatenate([np.stack([found.src, found.dst, found.num_bytes]).astype("i8"), *sums.one_sided], axis=1)
    totals = _wait_stats(waited, trace), _sizes(sent[2]), *_matrix(sent, trace.num_ranks)
    sites = sums.sites.stats(trace.num_ranks, trace.names, trace.meta)
    return Stats(trace.num_ranks, calls, ranks, *totals, trace.meta, sites)


def _transfer_s(found: Messages, num_ranks: int) -> NDArray[Any]:
    """Return by rank the seconds that its received messages take in isolation."""
    whole = found.received_row >= 0
    took = delays_of(found, np.ones(len(whole), bool))(found.num_bytes[whole])
    return np.bincount(found.dst[whole].astype("i8"), took, num_ranks)


def _sizes(num_bytes: NDArray[Any]) -> tuple[int, ...]:
    size_class = np.frexp(num_bytes.astype("f8"))[1]
    return tuple(np.bincount(size_class).tolist()) if len(size_class) else ()


def _matrix(sent: NDArray[Any], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return bytes and numbers of messages by sender and receiver, each of shape (n, n)."""
    src, dst, num_bytes = sent
    inside = (src >= 0) & (src < n) & (dst >= 0) & (dst < n)
    cells = (src * n + dst)[inside]
    moved = np.bincount(cells, num_bytes[inside], n * n).astype("i8")
    return moved.reshape(n, n), np.bincount(cells, minlength=n * n).astype("i8").reshape(n, n)


def _wait_stats(waited: CallWaits, trace: Trace | TraceFile) -> tuple[WaitStats, ...]:
    """Return waits by kind and name of the call, longest first."""
    found, seconds = waited
    key = found.state * len(trace.names) + found.name
    found_waits = []
    for one in np.unique(key).tolist():
        at = key == one
        by_rank = np.bincount(found.rank[at], seconds[at], trace.num_ranks)
        by_cause = np.bincount(found.cause[at], seconds[at], trace.num_ranks)
        most, cause = int(np.argmax(by_rank)), int(np.argmax(by_cause))
        state, name = divmod(one, len(trace.names))
        head = (STATES[state], trace.names[name], int(np.count_nonzero(at)), float(by_rank.sum()))
        found_waits.append(WaitStats(*head, most, float(by_rank[most]), cause, float(by_cause[cause])))
    return tuple(sorted(found_waits, key=lambda wait: -wait.seconds))


class _Sums:
    """Counts, bytes and seconds by rank and name."""

    def __init__(self, num_ranks: int, is_mpi: NDArray[np.bool_], is_setup: NDArray[np.bool_]) -> None:
        self.is_setup, self.sites = is_setup, SiteSums(is_mpi & ~is_setup)
        self.is_mpi, self.shape = is_mpi, (num_ranks, len(is_mpi))
        self.count, self.num_bytes = np.zeros(self.shape, "i8"), np.zeros(self.shape, "i8")
        self.seconds = np.zeros(self.shape)
        self.first, self.last = np.full(num_ranks, np.inf), np.full(num_ranks, -np.inf)
        self.open: list[tuple[int, int]] = []
        self.setup: list[tuple[int, float, float]] = []  # rank, start, end of each MPI_Init and MPI_Finalize
        self.one_sided: list[NDArray[np.int64]] = []  # rows: source rank, destination rank, bytes
        self.threads: set[tuple[int, int]] = set()  # (rank, thread) that called MPI

    def add(self, col: dict[str, NDArray[Any]]) -> None:
        cell = col["rank"].astype("i8") * self.shape[1] + col["name"]
        once = (col["part"] == 0) & (col["kind"] != _POINT)
        moves = np.isin(col["kind"], _MOVES)
        length = self.shape[0] * self.shape[1]
        self.count += np.bincount(cell[once], 1 + col["repeats"][once], length).astype("i8").reshape(self.shape)
        self.num_bytes += np.bincount(cell[moves], col["num_bytes"][moves], length).astype("i8").reshape(self.shape)
        spent = (col["end_s"] - col["start_s"] - col["pause_s"])[once]
        self.sites.add(col, once, moves)
        self.seconds += np.bincount(cell[once], spent, length).reshape(self.shape)
        setup = once & self.is_setup[col["name"]]
        self.setup += zip(*(col[name][setup].tolist() for name in ("rank", "start_s", "end_s")), strict=True)
        np.minimum.at(self.first, col["rank"], col["start_s"])
        np.maximum.at(self.last, col["rank"], col["end_s"])
        for kind, ends in ((_PUT, ("rank", "peer")), (_GET, ("peer", "rank"))):
            at = col["kind"] == kind
            self.one_sided.append(np.stack([col[name][at] for name in (*ends, "num_bytes")]).astype("i8"))
        calls = self.is_mpi[col["name"]]
        threads = np.unique(col["rank"][calls].astype("i8") << 32 | col["thread"][calls])
        self.threads |= {divmod(one, 1 << 32) for one in threads.tolist()}
        left = once & col["is_open"]
        self.open += zip(col["rank"][left].tolist(), col["name"][left].tolist(), strict=True)

    def forget_unseen(self) -> None:
        """Set the first and last time of ranks without rows to 0."""
        unseen = self.first > self.last
        self.first[unseen] = self.last[unseen] = 0.0

    def run_times(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return when each rank's first event begins and its last one ends, without MPI_Init and MPI_Finalize there."""
        first, last = self.first.copy(), self.last.copy()
        for rank, start_s, end_s in self.setup:
            first[rank] = end_s if start_s == self.first[rank] else first[rank]
            last[rank] = start_s if end_s == self.last[rank] else last[rank]
        return first, last

    def calls(self, names: tuple[str, ...], rank: int | None = None) -> tuple[CallStats, ...]:
        """Return the calls of one rank, or of all ranks together, longest first."""
        count, num_bytes, seconds = (
            table.sum(axis=0) if rank is None else table[rank] for table in (self.count, self.num_bytes, self.seconds)
        )
        order = [i for i in np.argsort(-seconds, kind="stable").tolist() if count[i]]
        return tuple(CallStats(names[i], int(count[i]), int(num_bytes[i]), float(seconds[i])) for i in order)

    def ranks(self, names: tuple[str, ...], spent: Sequence[NDArray[Any]]) -> tuple[RankStats, ...]:
        """Return the statistics of all ranks. `spent`: five arrays by rank: `waited_s`, …, `pure_s` of RankStats."""
        return tuple(self._rank(rank, names, [float(s[rank]) for s in spent]) for rank in range(self.shape[0]))

    def _rank(self, rank: int, names: tuple[str, ...], spent: list[float]) -> RankStats:
        calls = self.calls(names, rank)
        seen = float(max(self.last[rank] - self.first[rank], 0.0))
        open_calls = tuple(names[name] for at, name in self.open if at == rank)
        threads = max(1, sum(at == rank for at, _ in self.threads))
        setup_s = float(self.seconds[rank][self.is_setup].sum())
        mpi_s = float(self.seconds[rank][self.is_mpi & ~self.is_setup].sum())
        return RankStats(
            rank, seen, mpi_s, spent[0], spent[1], spent[2], spent[3], spent[4], calls, open_calls, threads, setup_s
        )
