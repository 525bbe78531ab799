"""alike: which rows of some columns are equal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def alike(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first of each set of rows that are equal in all columns, and for each row the number of its set.

    >>> first, which = alike([np.array([1, 3, 1]), np.array([2, 4, 2])])
    >>> len(first), bool(which[0] == which[2] != which[1])
    (2, True)
    """
    mixed = np.zeros(len(columns[0]), np.int64)  # one number for each row: sums of products, which wrap around
    for column, factor in zip(columns, _factors(len(columns)), strict=True):
        mixed += column * factor
    _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
    if any(bool((column[first][which] != column).any()) for column in columns):  # by chance two rows have one number
        _, first, which = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), which.astype(np.int64).ravel()


@cache
def _factors(count: int) -> Ints:
    """So many odd numbers, drawn at random."""
    return np.random.default_rng(0).integers(1 << 62, size=count) | 1
