"""Wait states: who waited in a call, for whom, and since when; and the critical path, which no wait is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.matching import Messages, of_name
from dovetail.trace.meetings import Meetings

Array = NDArray[Any]
STATES = ("late_sender", "late_receiver", "wait_at_collective", "late_root", "early_root")
_TO_ALL = ("bcast", "scatter")  # need the root
_TO_ONE = ("reduce", "gather")  # the root needs all
_ROOTED = {"Bcast": "bcast", "Scatter": "scatter", "Scatterv": "scatter", "Reduce": "reduce", "Gather": "gather",
           "Gatherv": "gather"}  # fmt: skip
_OF_SOME = ("Neighbor_", "Scan", "Exscan")  # need neighbours, or lower ranks


class Waits(NamedTuple):
    """One entry for each time that a rank waited: from `start_s` on for what rank `cause` did at `until_s`, in a call
    that ended at `end_s`."""

    state: Array  # row of STATES
    name: Array
    rank: Array
    start_s: Array
    until_s: Array
    end_s: Array
    cause: Array
    seconds: Array
    row: Array


def waits(found: Messages, met: Meetings, names: Sequence[str]) -> Waits:
    """Every wait that the messages and collectives of a trace tell of."""
    parts = [*_of_messages(found, names), *_of_collectives(met, names)]
    joined = (np.concatenate([part[i] for part in parts]) for i in range(len(Waits._fields)))
    return Waits(*joined)


def _of_messages(found: Messages, names: Sequence[str]) -> list[Waits]:
    """Receivers and probes that came before the send began; blocking senders that came before the receive was
    posted."""
    blocks = of_name([*names, ""], lambda name: name.removesuffix("_c") in ("MPI_Send", "MPI_Ssend", "MPI_Rsend"))
    taken = found.taken_row >= 0
    early = np.flatnonzero(taken & (found.sent_s > found.waited_s))
    until = np.minimum(found.sent_s, found.taken_s)[early]
    receiver = Waits(
        *(np.zeros(len(early), "i8"), found.taken_name[early], found.dst[early], found.waited_s[early]),
        *(until, found.taken_s[early], found.src[early], until - found.waited_s[early], found.taken_row[early]),
    )
    looked = np.flatnonzero(taken & (found.sent_s > found.probe_s))
    told = np.minimum(found.sent_s, found.probe_end_s)[looked]
    prober = Waits(
        *(np.zeros(len(looked), "i8"), found.probe_name[looked], found.dst[looked], found.probe_s[looked], told),
        *(found.probe_end_s[looked], found.src[looked], told - found.probe_s[looked], found.probe_row[looked]),
    )
    late = taken & (found.posted_s > found.sent_s) & (found.sent_end_s > found.posted_s)
    held = np.flatnonzero(late & blocks[found.sent_name.astype("i8")])
    sender = Waits(
        *(np.ones(len(held), "i8"), found.sent_name[held], found.src[held], found.sent_s[held], found.posted_s[held]),
        *(found.sent_end_s[held], found.dst[held], (found.posted_s - found.sent_s)[held], found.sent_row[held]),
    )
    return [receiver, prober, sender]


def _of_collectives(met: Meetings, names: Sequence[str]) -> list[Waits]:
    """Ranks that came to a blocking collective before all others, or before the root, whichever it needs."""
    direction = np.zeros(len(names), "i8")
    for i, name in enumerate(names):
        kind = _ROOTED.get(name.removeprefix("MPI_").removesuffix("_c"), "")
        direction[i] = 1 if kind in _TO_ALL else 2 if kind in _TO_ONE else 0
    way = direction[met.name] if len(met.name) else met.name
    is_root, until = met.root == met.rank, np.array(met.last_start_s, "f8")
    cause, state = np.array(met.last_rank), np.full(len(way), STATES.index("wait_at_collective"))
    from_root = way == 1
    until[from_root], cause[from_root] = met.root_start_s[from_root], met.root[from_root]
    state[from_root], state[way == 2] = STATES.index("late_root"), STATES.index("early_root")
    waited = (met.request < 0) & np.where(way == 1, ~is_root, (way == 0) | is_root) & ~np.isnan(until)
    of_some = of_name(names, lambda name: name.removeprefix("MPI_").startswith(_OF_SOME))
    if len(met.name):
        waited &= ~(of_some[met.name] & (met.end_s < until))  # it did not need the last
    until = np.minimum(until, met.end_s)
    at = np.flatnonzero(waited & (until > met.start_s))
    told = (state, met.name, met.rank, met.start_s, until, met.end_s, cause, until - met.start_s, met.row)
    return [Waits(*(column[at] for column in told))]


@dataclass(frozen=True)
class CriticalPath:
    """Stretches of ranks, from the last to end back to the start: what would have to be shorter for a shorter run."""

    rank: Array
    start_s: Array
    end_s: Array

    def seconds_of(self, num_ranks: int) -> Array:
        """Seconds on each rank."""
        return np.bincount(self.rank, self.end_s - self.start_s, num_ranks)


def critical_path(found: Waits, first_s: Array, last_s: Array) -> CriticalPath:
    """Walk back from the last to end; at each wait go over to whom was waited for. `first_s`, `last_s`: by rank."""
    order = np.lexsort((found.end_s, found.rank))
    ends, bounds = found.end_s[order], np.searchsorted(found.rank[order], np.arange(len(first_s) + 1))
    rank = int(np.argmax(last_s)) if len(last_s) else 0
    time, stretches = float(last_s[rank]) if len(last_s) else 0.0, []
    for _ in range(len(order) + 1):
        at = int(bounds[rank] + np.searchsorted(ends[bounds[rank] : bounds[rank + 1]], time, side="right")) - 1
        if at < bounds[rank]:
            break
        wait = order[at]
        stretches.append((rank, float(found.until_s[wait]), time))
        rank, time = int(found.cause[wait]), float(found.until_s[wait])
    if len(last_s):
        stretches.append((rank, min(float(first_s[rank]), time), time))
    columns = zip(*stretches[::-1], strict=True) if stretches else ((), (), ())
    told = [np.array(column) for column in columns]
    return CriticalPath(told[0].astype("i8"), told[1].astype("f8"), told[2].astype("f8"))
