"""What a trace adds up to: time by call, sizes of messages, who sends how much to whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.decode import KINDS
from dovetail.trace.matching import Matcher
from dovetail.trace.store import TraceFile
from dovetail.trace.trace import Trace

SCHEMA = "dovetail.trace_stats/1"
_MOVES = [KINDS.index(kind) for kind in ("send", "done", "collective", "put", "get")]
_POINT = KINDS.index("point")


@dataclass(frozen=True)
class CallStats:
    """All calls of a name, on one rank or on all: bytes that they sent or received, seconds within them."""

    name: str
    count: int
    num_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "count": self.count, "bytes": self.num_bytes, "seconds": self.seconds}


@dataclass(frozen=True)
class RankStats:
    """One rank: the time that it was seen, the part of it within MPI, its calls, and those it never came back from."""

    rank: int
    seconds: float
    mpi_s: float
    calls: tuple[CallStats, ...] = field(repr=False)
    open_calls: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        calls = [call.to_json() for call in self.calls]
        shown = {"rank": self.rank, "seconds": self.seconds, "mpi_s": self.mpi_s}
        return {**shown, "calls": calls, "open_calls": list(self.open_calls)}


@dataclass(frozen=True)
class Stats:
    """The whole trace. `sizes`: messages of less than 1, 2, 4, … bytes and no less than half that (the first: empty).
    `matrix_bytes` and `matrix_messages`: by sender and receiver."""

    num_ranks: int
    calls: tuple[CallStats, ...]
    ranks: tuple[RankStats, ...]
    sizes: tuple[int, ...]
    matrix_bytes: NDArray[np.int64] = field(repr=False)
    matrix_messages: NDArray[np.int64] = field(repr=False)
    meta: dict[str, Any] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        head = {"schema": SCHEMA, "num_ranks": self.num_ranks, "calls": [call.to_json() for call in self.calls]}
        told = [{"below_bytes": 1 << i, "messages": count} for i, count in enumerate(self.sizes)]
        matrix = {"matrix_bytes": self.matrix_bytes.tolist(), "matrix_messages": self.matrix_messages.tolist()}
        about: dict[str, Any] = {key: self.meta[key] for key in ("clocks", "lost", "faults") if key in self.meta}
        return {**head, "ranks": [rank.to_json() for rank in self.ranks], "sizes": told, **matrix, **about}


def stats(trace: Trace | TraceFile) -> Stats:
    """Add up a trace; one on disk is read a chunk at a time."""
    sums, matcher = _Sums(trace.num_ranks, len(trace.names)), Matcher()
    for part in trace.parts() if isinstance(trace, TraceFile) else [trace]:
        sums.add(part.columns)
        matcher.take(part.columns)
    found, _ = matcher.messages(trace.names, trace.comms)
    src, dst = found.src.astype("i8"), found.dst.astype("i8")
    inside = (dst >= 0) & (dst < trace.num_ranks)
    cells, shape = (src * trace.num_ranks + dst)[inside], (trace.num_ranks, trace.num_ranks)
    total = trace.num_ranks**2
    matrix = np.bincount(cells, found.num_bytes[inside], total).astype("i8").reshape(shape)
    counts = np.bincount(cells, minlength=total).astype("i8").reshape(shape)
    size_class = np.frexp(found.num_bytes.astype("f8"))[1]
    sizes = tuple(np.bincount(size_class).tolist()) if len(size_class) else ()
    return Stats(
        *(trace.num_ranks, sums.calls(trace.names), sums.ranks(trace.names), sizes, matrix, counts, trace.meta)
    )


class _Sums:
    """Counts, bytes and seconds by rank and name."""

    def __init__(self, num_ranks: int, num_names: int) -> None:
        self.shape = (num_ranks, num_names)
        self.count, self.num_bytes = np.zeros(self.shape, "i8"), np.zeros(self.shape, "i8")
        self.seconds = np.zeros(self.shape)
        self.first, self.last = np.full(num_ranks, np.inf), np.full(num_ranks, -np.inf)
        self.open: list[tuple[int, int]] = []

    def add(self, col: dict[str, NDArray[Any]]) -> None:
        cell = col["rank"].astype("i8") * self.shape[1] + col["name"]
        once = (col["part"] == 0) & (col["kind"] != _POINT)
        moves = np.isin(col["kind"], _MOVES)
        length = self.shape[0] * self.shape[1]
        self.count += np.bincount(cell[once], minlength=length).reshape(self.shape)
        self.num_bytes += np.bincount(cell[moves], col["num_bytes"][moves], length).astype("i8").reshape(self.shape)
        spent = (col["end_s"] - col["start_s"])[once]
        self.seconds += np.bincount(cell[once], spent, length).reshape(self.shape)
        np.minimum.at(self.first, col["rank"], col["start_s"])
        np.maximum.at(self.last, col["rank"], col["end_s"])
        left = once & col["is_open"]
        self.open += zip(col["rank"][left].tolist(), col["name"][left].tolist(), strict=True)

    def calls(self, names: tuple[str, ...], rank: int | None = None) -> tuple[CallStats, ...]:
        """Of one rank, or of all together; those that took longest first."""
        count, num_bytes, seconds = (
            table.sum(axis=0) if rank is None else table[rank] for table in (self.count, self.num_bytes, self.seconds)
        )
        order = [i for i in np.argsort(-seconds, kind="stable").tolist() if count[i]]
        return tuple(CallStats(names[i], int(count[i]), int(num_bytes[i]), float(seconds[i])) for i in order)

    def ranks(self, names: tuple[str, ...]) -> tuple[RankStats, ...]:
        return tuple(self._rank(rank, names) for rank in range(self.shape[0]))

    def _rank(self, rank: int, names: tuple[str, ...]) -> RankStats:
        calls = self.calls(names, rank)
        seen = float(max(self.last[rank] - self.first[rank], 0.0))
        open_calls = tuple(names[name] for at, name in self.open if at == rank)
        return RankStats(rank, seen, sum(c.seconds for c in calls if c.name.startswith("MPI_")), calls, open_calls)
