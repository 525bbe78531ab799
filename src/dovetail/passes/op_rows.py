"""op_rows: rows of the tables beside the ops (regions read and written, dependencies), by the ops they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.build import OP, REGION

Ints = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]
SIDES = ("read", "write")


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
    counts = np.diff(start)
    count = counts[ops]
    if (counts <= 1).all():  # as in most programs, and faster
        owner = np.flatnonzero(count)
        return start[ops[owner]], owner
    owner = np.repeat(np.arange(len(ops)), count)
    return np.repeat(start[ops] - np.cumsum(count) + count, count) + np.arange(len(owner)), owner


def taken(columns: Columns, ops: Ints) -> tuple[dict[str, NDArray[Any]], dict[str, Ints]]:
    """Return the columns of these ops, in this order, without dependencies; and for each region of a side its place in
    `ops`."""
    new, owners = {name: columns[name][ops] for name in OP}, dict[str, Ints]()
    for side in SIDES:
        start = columns[f"{side}_start"]
        row, owners[side] = rows_of(start, ops)
        new[f"{side}_start"] = np.append(0, np.cumsum(np.diff(start)[ops]))
        new |= {f"{side}_{part}": columns[f"{side}_{part}"][row] for part in REGION}
    return new, owners
