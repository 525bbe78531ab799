"""unique_rows: find equal rows of a table that is given by its columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def unique_rows(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return (first, which): the index of the first row of each set of equal rows, and the number of each row's set.

    >>> first, which = unique_rows([np.array([1, 3, 1]), np.array([2, 4, 2])])
    >>> len(first), bool(which[0] == which[2] != which[1])
    (2, True)
    """
    hashes = np.zeros(len(columns[0]), np.int64)  # of each row: Σ column · factor, modulo 2^64
    for column, factor in zip(columns, _factors(len(columns)), strict=True):
        hashes += column * factor
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    if any(bool((column[first][which] != column).any()) for column in columns):  # different rows with equal hashes
        _, first, which = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), which.astype(np.int64).ravel()


@cache
def _factors(count: int) -> Ints:
    """Return `count` random odd numbers."""
    return np.random.default_rng(0).integers(1 << 62, size=count) | 1
