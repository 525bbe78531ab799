"""skews: skewed tiles, for loop nests whose upright tiles would depend on each other: skew factors and points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from operator import mul
from typing import NamedTuple

import numpy as np

from dovetail.loops.grid.blocks import Range
from dovetail.loops.matrices import Vector, dot


def least_skew(deps: Sequence[Vector], order: Sequence[int], mapped: int, cut: Vector) -> Vector:
    """Return the skew factor of each axis: positions along the axis `mapped` per point along that axis.

    With these factors, no dependence points to a tile that is computed later: they are the row of H for the tiles along
    the mapped axis, less 1 at that axis, and HD ≥ 0. Tiles are skewed along axes before the mapped one in `order`, as
    little as possible; along axes that are not cut only if they must be. A solution always exists, because every
    dependence is positive along its first nonzero axis.

    >>> nine_points = ((0, 1), (1, -1), (1, 0), (1, 1))
    >>> least_skew(nine_points, (0, 1), 1, (2, 1)), least_skew(nine_points, (0, 1), 0, (1, 2))
    ((1, 0), (0, 0))
    >>> least_skew(((1, 1, -2), (0, 1, 0)), (0, 1, 2), 2, (1, 2, 1))
    (0, 2, 0)
    >>> least_skew(((0, 1, -2), (1, -3, 0)), (0, 1, 2), 2, (2, 1, 1))
    (6, 2, 0)
    """
    most = max((-vector[mapped] for vector in deps), default=0)
    if most <= 0:
        return (0,) * len(order)
    before = order[: order.index(mapped)]
    ranges = [range(most + 1) if axis in before else (0,) for axis in range(len(order))]
    fitting = [skew for skew in product(*ranges) if all(dot(skew, v) + v[mapped] >= 0 for v in deps)]
    uncut = tuple(int(parts == 1) for parts in cut)
    if fitting:
        return min(fitting, key=lambda skew: (sum(map(mul, skew, uncut)), sum(skew), skew))
    return _some_skew(deps, before, mapped)


def _some_skew(deps: Sequence[Vector], before: Sequence[int], mapped: int) -> Vector:
    """Return valid skew factors, not the least: each axis satisfies the dependences whose first nonzero axis it is."""
    skew = [0] * len(deps[0])
    for axis in reversed(before):
        outer = before[: before.index(axis)]
        for vector in deps:
            if vector[axis] > 0 and not any(vector[other] for other in outer):
                short = -(sum(map(mul, skew, vector)) - skew[axis] * vector[axis] + vector[mapped])
                skew[axis] = max(skew[axis], -(-short // vector[axis]))
    return tuple(skew)


def waves(deps: Iterable[Vector], order: Sequence[int]) -> Vector:
    """Return a weight for each axis so that every dependence has a weighted sum of at least 1. Points of equal weighted
    sums may be computed at the same time.

    >>> waves([(0, 1), (1, 0)], (0, 1)), waves([(0, 1), (1, -2)], (0, 1))
    ((1, 1), (3, 1))
    """
    weights = [0] * len(order)
    for axis in reversed(order):
        weights[axis] = 1
        inner = order[order.index(axis) :]
        for vector in deps:
            if vector[axis] > 0 and not any(vector[other] for other in order[: order.index(axis)]):
                rest = sum(weights[other] * vector[other] for other in inner[1:])
                weights[axis] = max(weights[axis], -((rest - 1) // vector[axis]))
    return tuple(weights)


def lag_of_rows(deps: Iterable[Vector], order: Sequence[int]) -> int:
    """Return how many points the second of two adjacent rows (of the two innermost loops of `order`) must stay behind
    the first if both are computed together.

    >>> lag_of_rows([(0, 1), (1, -1), (1, 0), (1, 1)], (0, 1)), lag_of_rows([(0, 1), (2, -1)], (0, 1))
    (2, 0)
    """
    rows, points = order[-2:]
    pairs = [(v[rows], v[points]) for v in deps if not any(v[axis] for axis in order[:-2])]
    return max((1 - along for row, along in pairs if row == 1), default=0)


class Skew(NamedTuple):
    """Extent of a skewed tile on a part, along the mapped axis in the direction of its loop.

    The tile covers `length` positions. Its first row is the `width` positions from `start` on; a later row begins
    earlier by its skew. Rows are clipped to the `length` positions. An upright tile has all positions in every row.
    """

    length: int
    start: int
    width: int

    def row(self, by: int) -> Range:
        """Return the positions (first, end) of the row that is skewed by `by`.

        >>> [Skew(5, 2, 3).row(by) for by in range(4)]
        [(2, 5), (1, 4), (0, 3), (0, 2)]
        """
        return max(0, self.start - by), min(self.length, self.start + self.width - by)


def mean_row(skew: Skew, factors: Sequence[tuple[int, int]]) -> float:
    """Return the mean number of positions per row. `factors`: (skew per row, number of rows) for each other axis.

    >>> mean_row(Skew(5, 2, 3), [(1, 4)])
    2.75
    """
    shifts = np.zeros(1, np.int64)
    for factor, rows in factors:
        shifts = np.add.outer(shifts, factor * np.arange(rows)).ravel() if factor else shifts
    low = np.maximum(skew.start - shifts, 0)
    high = np.minimum(skew.start + skew.width - shifts, skew.length)
    return float(np.maximum(high - low, 0).mean())


class Need(NamedTuple):
    """A read of elements `ahead` positions further, by rows that are skewed by `least` to `most`."""

    ahead: int
    least: int
    most: int


def span_of(skew: Skew, needs: Sequence[Need], sign: int) -> Range | None:
    """Return the range of positions of a face that a tile reads, counted from the tile's first position in the array's
    direction; None if it reads none.

    >>> span_of(Skew(5, 0, 5), [Need(-1, 0, 0), Need(1, 0, 0)], 1), span_of(Skew(5, 2, 3), [Need(1, 2, 2)], 1)
    ((-1, 6), (1, 4))
    """
    found = []
    for need in needs:
        low, high = max(0, skew.start - need.most), min(skew.length, skew.start + skew.width - need.least)
        if low < high:
            found.append((low, high) if sign > 0 else (skew.length - high, skew.length - low))
            found[-1] = found[-1][0] + need.ahead, found[-1][1] + need.ahead
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None
