"""requests_in_flight: requests from the call that starts them to the call that completes them, and hidden time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.timeline import union_s
from dovetail.trace.analysis.matching import DONE, no_columns, of_name
from dovetail.trace.decode import KINDS
from dovetail.trace.grown import Grown

Array = NDArray[Any]
_USED = ("kind", "name", "rank", "start_s", "end_s", "request", "begins")
_POINT = KINDS.index("point")


class Flights(NamedTuple):
    """One entry per start and completion of a request (several for a persistent request)."""

    rank: Array
    start_s: Array  # the starting call begins
    issued_s: Array  # the starting call ends
    waited_s: Array  # the completing call begins
    end_s: Array  # the completing call ends


class Log:
    """Collects MPI calls and requests of a trace, chunk by chunk."""

    def __init__(self) -> None:
        self._requests, self._calls = Grown(), Grown()

    def take(self, columns: dict[str, Array], is_mpi: Array) -> None:
        """Add rows, ordered by end time. `is_mpi`: for each name, whether it is an MPI call."""
        about = np.flatnonzero(columns["request"] >= 0)
        if len(about):
            self._requests.add({name: columns[name][about] for name in _USED})
        calls = (columns["part"] == 0) & (columns["kind"] != _POINT) & is_mpi[columns["name"]]
        within = {"end_s": (columns["end_s"] - columns["pause_s"])[calls]}  # as if all pauses came at the end
        self._calls.add({name: columns[name][calls] for name in ("rank", "start_s")} | within)

    def flights(self, names: Sequence[str]) -> Flights:
        """Return all requests that were started and completed. Clears what was collected."""
        if not len(self._requests):
            return Flights(*no_columns(Flights._fields))
        rows = self._requests.give()
        is_start = of_name(names, lambda name: name in ("MPI_Start", "MPI_Startall"))[rows["name"]]
        order = np.argsort(rows["request"], kind="stable")
        rows, is_start = {name: column[order] for name, column in rows.items()}, is_start[order]
        changed = np.append(True, np.diff(rows["request"]) != 0)
        starts = rows["begins"] | is_start
        latest = np.maximum.accumulate(np.where(starts | changed, np.arange(len(order)), 0))
        over = np.flatnonzero((rows["kind"] == DONE) & starts[latest])
        begun = latest[over]
        times = (rows["start_s"][begun], rows["end_s"][begun], rows["start_s"][over], rows["end_s"][over])
        return Flights(rows["rank"][over], *times)

    def hidden(self, names: Sequence[str], num_ranks: int) -> tuple[Array, Array]:
        """Return by rank the seconds with a request in flight or inside an MPI call, and the part outside calls."""
        found = self.flights(names)
        none = {"rank": np.zeros(0, "i4"), "start_s": np.zeros(0), "end_s": np.zeros(0)}
        calls = none | self._calls.give()
        all_s, within_s = np.zeros(num_ranks), np.zeros(num_ranks)
        for rank in range(num_ranks):
            mine, theirs = found.rank == rank, calls["rank"] == rank
            start, end = calls["start_s"][theirs], calls["end_s"][theirs]
            within_s[rank] = union_s(start, end)
            both = np.concatenate([start, found.start_s[mine]]), np.concatenate([end, found.end_s[mine]])
            all_s[rank] = union_s(*both)
        return all_s, all_s - within_s
