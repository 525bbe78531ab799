"""op_rows: rows of the tables beside the ops (regions read and written, dependencies), by the ops they belong to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def runs(count: Ints) -> tuple[Ints, Ints]:
    """Return each index i `count[i]` times, and for each entry its number within the run.

    >>> [each.tolist() for each in runs(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)


def rows_of(start: Ints, ops: Ints) -> tuple[Ints, Ints]:
    """Return the rows of these ops in a table, and for each row its place in `ops`.

    Op i has rows start[i] to start[i + 1].

    >>> [each.tolist() for each in rows_of(np.array([0, 2, 3]), np.array([1, 0, 1]))]
    [[2, 0, 1, 2], [0, 1, 1, 2]]
    """
    count = np.diff(start)[ops]
    owner = np.repeat(np.arange(len(ops)), count)
    return np.repeat(start[ops] - np.cumsum(count) + count, count) + np.arange(len(owner)), owner
