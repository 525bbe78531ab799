"""traced: the counts of a traced program's ranks: what a trace shows, in the form of the counting library's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.accelerate.counter import joint_when
from dovetail.accelerate.counts import Bucket, Counts
from dovetail.advise.crowding import crowding
from dovetail.core import DovetailError
from dovetail.run.options import LEVELS, Level
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.call_classes import SETUP, class_of
from dovetail.trace.analysis.collective_calls import CollectiveCalls, CollectiveMatcher
from dovetail.trace.decode import KINDS

_COLLECTIVE, _POINT = KINDS.index("collective"), KINDS.index("point")
_SETUP = ("MPI_Init", "MPI_Init_thread", "MPI_Finalize")


def counts_of_trace(trace: Trace | TraceFile) -> Counts:
    """Return what the ranks of a trace spent in MPI, by call, size of the communicator and bytes.

    Times include what the tracer adds to a call. The skew of blocking collectives that no rank can leave before all
    have entered is known from the trace: for each call, the time before the last rank's begin.

    Raises
    ------
    DovetailError
        If the trace has no rank of an MPI program.
    """
    ranks = [about for about in trace.meta.get("ranks", ()) if about.get("library")]
    if not ranks:
        raise DovetailError("the trace has no rank of an MPI program", hint="record one: `dovetail trace run -- …`")
    sums = _Sums(trace)
    matcher = CollectiveMatcher()
    for part in trace.parts() if isinstance(trace, TraceFile) else (trace,):
        sums.add(part)
        matcher.take(part.columns)
    sums.add_waits(matcher.calls(trace.names, trace.comms))
    elapsed = sums.elapsed_s()
    hosts = tuple(sorted({str(about["host"]) for about in ranks}))
    crowd, core_waits_s = _crowd(trace, elapsed)
    return Counts(
        str(ranks[0]["library"]),
        hosts,
        trace.num_ranks,
        float(elapsed.max()),
        float(elapsed.sum()),
        sums.buckets(),
        crowd=crowd,
        core_waits_s=core_waits_s,
    )


def _crowd(trace: Trace | TraceFile, elapsed_s: NDArray[np.float64]) -> tuple[float, float]:
    """Return `Counts.crowd` and `core_waits_s`; 1 and 0 if each rank has a core of its own, or if it is unknown."""
    found = crowding(trace.meta, trace.num_ranks)
    if found is None or not found.is_crowded or np.isnan(found.waited).any():
        return 1.0, 0.0
    return found.num_ranks / found.num_cores, float((found.waited * elapsed_s).sum())


def level_of(trace: Trace | TraceFile) -> Level:
    """Return the level of thread support of the first rank; "single" if unknown."""
    found = {str(about.get("thread_level")) for about in trace.meta.get("ranks", ())[:1]}
    return next((level for level in LEVELS if level in found), "single")


class _Sums:
    """Buckets and first and last times, by rank, of a trace that is read part by part."""

    def __init__(self, trace: Trace | TraceFile) -> None:
        self.names = trace.names
        self.sizes = np.array([len(comm.ranks) for comm in trace.comms] or [0], "i8")
        self.is_mpi = np.array([name.startswith("MPI_") and class_of(name) != SETUP for name in trace.names], bool)
        self.is_setup = np.array([name in _SETUP for name in trace.names], bool)
        self.first, self.last = np.full(trace.num_ranks, np.inf), np.full(trace.num_ranks, -np.inf)
        self.found: dict[tuple[str, int, int], Bucket] = {}

    def add(self, part: Trace) -> None:
        """Add the calls of a part, and the times of its rows."""
        col = part.columns
        setup = self.is_setup[col["name"]]
        np.minimum.at(self.first, col["rank"], np.where(setup, col["end_s"], col["start_s"]))
        np.maximum.at(self.last, col["rank"], np.where(setup, col["start_s"], col["end_s"]))
        once = (col["part"] == 0) & (col["kind"] != _POINT) & self.is_mpi[col["name"]]
        size = np.where(col["kind"] == _COLLECTIVE, self.sizes[np.maximum(col["comm"], 0)], 0)[once]
        num_bytes = np.maximum(col["num_bytes"], col["received_bytes"])[once]
        name, spent = col["name"][once], (col["end_s"] - col["start_s"] - col["pause_s"])[once]
        for key, chosen in _groups(name, size, _log2(num_bytes)):
            calls = int((1 + col["repeats"][once][chosen]).sum())
            self._put(key, calls=calls, seconds=float(spent[chosen].sum()))

    def add_waits(self, joins: CollectiveCalls) -> None:
        """Add the skew of blocking collectives."""
        blocking = joins.request < 0
        size = self.sizes[np.maximum(joins.comm, 0)]
        num_bytes = np.maximum(joins.num_bytes, joins.received_bytes)
        took = joins.end_s - joins.start_s
        waited = np.clip(joins.last_start_s - joins.start_s, 0.0, took)
        for key, chosen in _groups(joins.name, size, _log2(num_bytes)):
            chosen = chosen & blocking
            if self._is_joint(*key) and chosen.any():
                sums = float(took[chosen].sum()), float(waited[chosen].sum())
                self._put(key, sampled=int(chosen.sum()), sampled_s=sums[0], waited_s=sums[1])

    def _is_joint(self, name: int, _size: int, log2_bytes: int) -> bool:
        when = joint_when(self.names[name].removeprefix("MPI_").removesuffix("_c"))
        return when == "1" or (bool(when) and log2_bytes >= 0)

    def _put(self, key: tuple[int, int, int], **more: float) -> None:
        name = self.names[key[0]].removeprefix("MPI_"), key[1], key[2]
        bucket = self.found.setdefault(name, Bucket(*name, 0, 0.0))
        self.found[name] = bucket._replace(**{field: getattr(bucket, field) + value for field, value in more.items()})

    def elapsed_s(self) -> NDArray[np.float64]:
        """Return by rank the seconds from the end of MPI_Init to the begin of MPI_Finalize."""
        return np.maximum(np.where(self.first < self.last, self.last - self.first, 0.0), 0.0)

    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets, the one with the most time first."""
        return tuple(sorted(self.found.values(), key=lambda bucket: -bucket.seconds))


def _log2(num_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return log2, rounded down; -1 for no bytes."""
    exponent: NDArray[np.int64] = np.frexp(np.maximum(num_bytes, 0).astype("f8"))[1].astype("i8")
    return exponent - 1


def _groups(
    name: NDArray[Any], size: NDArray[Any], log2_bytes: NDArray[Any]
) -> Iterator[tuple[tuple[int, int, int], NDArray[np.bool_]]]:
    """Yield each combination of values that occurs, and the mask of its places."""
    keys = name.astype("i8") << 40 | size.astype("i8") << 8 | (log2_bytes + 1)
    for key in np.unique(keys).tolist():
        yield (key >> 40, key >> 8 & 0xFFFFFFFF, (key & 255) - 1), keys == key
