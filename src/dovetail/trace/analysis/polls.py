"""polls: attribute unsuccessful tests of a request (MPI_Test…) to the wait that a later test ended."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.wait_rows import Waits

Array = NDArray[Any]
POLLS = ("MPI_Test", "MPI_Testall", "MPI_Testany", "MPI_Testsome")
PROBES = ("MPI_Iprobe", "MPI_Improbe")
LOOKS = (*POLLS, *PROBES, "MPI_Request_get_status")  # calls that say whether something is there, without waiting
_USED = ("rank", "thread", "name", "start_s", "end_s", "pause_s")


class Polls(NamedTuple):
    """One entry per interval of consecutive polls; `pause_s`: total seconds between the calls of an interval."""

    rank: Array
    thread: Array
    name: Array
    start_s: Array
    end_s: Array
    pause_s: Array

    @classmethod
    def of(cls, columns: dict[str, Array], is_poll: Array) -> Polls:
        """Return the polls among some rows. `is_poll`: for each name, whether it is a poll."""
        at = np.flatnonzero((columns["part"] == 0) & is_poll[columns["name"]])
        return cls(*(columns[name][at] for name in _USED))

    @classmethod
    def joined(cls, parts: list[Polls]) -> Polls:
        """Concatenate the columns of several parts."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def before(self, found: Waits) -> tuple[Array, Array]:
        """Return polls, and for each the wait that it belongs to.

        A wait ends in a successful poll. The unsuccessful polls before it with the same thread and name belong to the
        wait, too, if they began after the request.
        """
        none = np.zeros(0, "i8")
        asks = np.flatnonzero(np.isin(found.name, self.name))
        if not len(self.rank) or not len(asks):
            return none, none
        last = asks[np.argsort(-found.until_s[asks], kind="stable")]  # of one call's waits, the longest comes first
        count = len(self.rank)
        sides = ((getattr(self, name), getattr(found, name)[last]) for name in ("start_s", "name", "thread", "rank"))
        keys = [np.concatenate(side) for side in sides]
        is_wait = np.arange(count + len(last)) >= count
        order = np.lexsort((is_wait, *keys))
        place = np.where(is_wait[order], np.arange(len(order)), len(order))
        follows = np.minimum.accumulate(place[::-1])[::-1]
        here = np.flatnonzero(~is_wait[order] & (follows < len(order)))
        poll, wait = order[here], last[order[follows[here]] - count]
        alike = (self.start_s[poll] <= found.start_s[wait]) & (self.start_s[poll] >= found.since_s[wait])
        for mine, theirs in ((self.rank, found.rank), (self.thread, found.thread), (self.name, found.name)):
            alike &= mine[poll] == theirs[wait]
        return poll[alike], wait[alike]
