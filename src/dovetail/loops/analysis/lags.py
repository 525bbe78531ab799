"""lags: the least lags that keep every computation behind those that it needs."""

from __future__ import annotations

from collections.abc import Iterable

Lag = tuple[int, int, int]  # a computation, one that needs it, and how far the second must stay behind the first


def least_lags(count: int, lags: Iterable[Lag]) -> list[int] | None:
    """Return the least lag of each of `count` computations: the longest path to it.

    None if a computation would have to lag behind itself.

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
