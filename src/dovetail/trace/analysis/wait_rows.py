"""wait_rows: waits as columns: rank, call, start, end, and the rank that caused the wait."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Waits(NamedTuple):
    """One entry per interval in which a rank waited.

    The rank waited from `start_s` to `until_s`, when rank `cause` did what it waited for, in a call that ended at
    `end_s`. `since_s`: when the request that it waited for began.
    """

    state: Array  # index into `dovetail.trace.analysis.waits.STATES`
    name: Array
    rank: Array
    thread: Array
    start_s: Array
    until_s: Array
    end_s: Array
    cause: Array
    since_s: Array

    def at(self, chosen: Array) -> Waits:
        """Return the chosen rows (indices or a mask)."""
        return Waits(*(column[chosen] for column in self))


def joined(*parts: Waits) -> Waits:
    """Concatenate the rows of several parts."""
    return Waits(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
