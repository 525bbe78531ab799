"""lags: how far computations must stay behind one another."""

from __future__ import annotations

from collections.abc import Iterable

Lag = tuple[int, int, int]  # a computation, one that needs it, and how far the second must stay behind the first


def least_lags(count: int, lags: Iterable[Lag]) -> list[int] | None:
    """Return how far each of `count` computations is behind where it could be first, by the longest path.

    None where computations would have to stay behind themselves.

    >>> least_lags(3, [(0, 1, 2), (1, 2, 1), (0, 2, 1)]), least_lags(2, [(0, 1, 1), (1, 0, 0)])
    ([0, 2, 3], None)
    """
    found, edges = [0] * count, list(lags)
    for _ in range(count + 1):
        before = list(found)
        for first, second, by in edges:
            found[second] = max(found[second], found[first] + by)
        if found == before:
            return found
    return None
