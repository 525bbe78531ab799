"""collective_calls: find which calls of the ranks form one collective, and which rank called last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.matching import DONE, alike, no_columns, of_name
from dovetail.trace.decode import KINDS
from dovetail.trace.grown import Grown
from dovetail.trace.trace import Comm, Trace

Array = NDArray[Any]
COLLECTIVE, WINDOW = KINDS.index("collective"), KINDS.index("window")
WINDOW_CALLS = ("MPI_Win_fence", "MPI_Win_free")  # they wait for all ranks of their window
_USED = ("kind", "name", "rank", "thread", "comm", "peer", "start_s", "end_s", "num_bytes", "received_bytes", "request")


_ENDS = ("request", "start_s", "end_s", "name", "thread")


class CollectiveCalls(NamedTuple):
    """One entry per call of a rank. Calls of one collective have the same number `collective`, counted from 0."""

    collective: Array
    name: Array
    rank: Array
    root: Array  # a rank of the job; -1: none
    start_s: Array
    end_s: Array
    num_bytes: Array
    received_bytes: Array
    last_start_s: Array  # start of the collective's last call
    last_rank: Array  # the rank that called last
    root_start_s: Array  # start of the root's call; NaN: no root, or its call is missing
    comm: Array
    request: Array
    row: Array  # row of the trace
    thread: Array
    waited_s: Array  # the call that completes it (this call, or one that waits for its request) begins; NaN: none
    waited_end_s: Array  # that call ends
    waited_name: Array
    waited_thread: Array


class CollectiveMatcher:
    """Collects collective calls. The n-th calls of all ranks on a communicator form one collective."""

    def __init__(self) -> None:
        self._kept, self._ends = Grown(), Grown()
        self._asked = np.zeros(0, "i8")  # requests of collectives
        self._num_rows = 0

    def take(self, columns: dict[str, Array]) -> None:
        """Add rows, ordered by end time."""
        of_window = (columns["kind"] == WINDOW) & (columns["peer"] < 0) & (columns["comm"] >= 0)
        at = np.flatnonzero((columns["kind"] == COLLECTIVE) | of_window)
        if len(at):
            self._kept.add({name: columns[name][at] for name in _USED} | {"row": at + self._num_rows})
            asked = columns["request"][at]
            self._asked = np.union1d(self._asked, asked[asked >= 0])
        if len(self._asked):
            over = (columns["kind"] == DONE) & np.isin(columns["request"], self._asked)
            self._ends.add({name: columns[name][over] for name in _ENDS})
        self._num_rows += len(columns["kind"])

    def calls(self, names: Sequence[str], comms: Sequence[Comm]) -> CollectiveCalls:
        """Return all calls in the order of their collectives, without those that only make a persistent request.

        Clears what was collected.
        """
        if not len(self._kept):
            return CollectiveCalls(*no_columns(CollectiveCalls._fields))
        rows = self._kept.give()
        is_init = of_name(names, lambda name: name.endswith(("_init", "_init_c")))[rows["name"]]
        meets = of_name(names, lambda name: name in WINDOW_CALLS)[rows["name"]] | (rows["kind"] == COLLECTIVE)
        rows = {name: column[~is_init & meets] for name, column in rows.items()}
        rows["peer"] = np.where(rows["kind"] == WINDOW, -1, rows["peer"])
        if not len(rows["kind"]):
            return CollectiveCalls(*no_columns(CollectiveCalls._fields))
        comm = np.array(alike(comms), "i4")[rows["comm"]]
        order = np.lexsort((rows["start_s"], rows["rank"], comm))
        rows, comm = {name: column[order] for name, column in rows.items()}, comm[order]
        nth = _number_within(comm, rows["rank"])
        _, collective = np.unique(comm.astype("i8") << 32 | nth, return_inverse=True)
        return _met(rows | self._waited(rows), collective)

    def _waited(self, rows: dict[str, Array]) -> dict[str, Array]:
        """Return start, end, name and thread of the call that completes each collective call."""
        found = {name: np.array(rows[name]) for name in _ENDS[1:]}
        later = np.flatnonzero(rows["request"] >= 0)
        for name in ("start_s", "end_s"):
            found[name][later] = np.nan
        if len(self._ends) and len(later):
            ends = self._ends.give()
            request, first = np.unique(ends["request"], return_index=True)
            at = np.searchsorted(request, rows["request"][later])
            at[at == len(request)] = 0
            known = request[at] == rows["request"][later] if len(request) else np.zeros(len(later), bool)
            for name in _ENDS[1:]:
                found[name][later[known]] = ends[name][first[at[known]]]
        return {f"waited_{name}": column for name, column in found.items()}


def collective_calls(trace: Trace) -> CollectiveCalls:
    """Return the collective calls of a trace."""
    collectives_matcher = CollectiveMatcher()
    collectives_matcher.take(trace.columns)
    return collectives_matcher.calls(trace.names, trace.comms)


def _number_within(*keys: Array) -> Array:
    """Return 0, 1, 2, … within each run of equal keys."""
    count = len(keys[0])
    changed = np.zeros(count, bool)
    changed[:1] = True
    for key in keys:
        changed[1:] |= np.diff(key) != 0
    return np.arange(count) - np.maximum.accumulate(np.where(changed, np.arange(count), 0))


def _met(rows: dict[str, Array], collective: Array) -> CollectiveCalls:
    """Return the calls ordered by collective and start, with the start of the last call and of the root's."""
    order = np.lexsort((rows["start_s"], collective))
    rows, collective = {name: column[order] for name, column in rows.items()}, collective[order]
    last = np.append(np.flatnonzero(np.diff(collective)), len(collective) - 1)[: len(collective)]
    root_start = np.full(len(last), np.nan)
    is_root = (rows["rank"] == rows["peer"]) & (rows["peer"] >= 0)
    root_start[collective[is_root]] = rows["start_s"][is_root]
    return CollectiveCalls(
        *(collective, rows["name"], rows["rank"], rows["peer"], rows["start_s"], rows["end_s"], rows["num_bytes"]),
        *(
            rows["received_bytes"],
            rows["start_s"][last][collective],
            rows["rank"][last][collective],
            root_start[collective],
        ),
        *(rows["comm"], rows["request"], rows["row"], rows["thread"]),
        *(rows[f"waited_{name}"] for name in _ENDS[1:]),
    )
