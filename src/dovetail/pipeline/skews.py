"""skews: how far tiles must lean where upright tiles would depend on one another, and which points they have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from operator import mul
from typing import NamedTuple

import numpy as np

from dovetail.loops.blocks import Range
from dovetail.loops.matrices import Vector, dot


def least_lean(deps: Sequence[Vector], order: Sequence[int], mapped: int, cut: Vector) -> Vector:
    """By how many positions of the axis `mapped` a tile must lean for each point along the other axes, so that no
    dependence goes back into a tile that is computed later.

    It is the row of H that belongs to the tiles of that axis, less 1 there: with it HD ≥ 0. Tiles lean along axes that
    `order` has before the mapped one; along axes in one part only if they must; and then as little as they can. Some
    lean does always, for every dependence goes on along the first axis on which it goes at all.

    >>> nine_points = ((0, 1), (1, -1), (1, 0), (1, 1))
    >>> least_lean(nine_points, (0, 1), 1, (2, 1)), least_lean(nine_points, (0, 1), 0, (1, 2))
    ((1, 0), (0, 0))
    >>> least_lean(((1, 1, -2), (0, 1, 0)), (0, 1, 2), 2, (1, 2, 1))
    (0, 2, 0)
    >>> least_lean(((0, 1, -2), (1, -3, 0)), (0, 1, 2), 2, (2, 1, 1))
    (6, 2, 0)
    """
    most = max((-vector[mapped] for vector in deps), default=0)
    if most <= 0:
        return (0,) * len(order)
    before = order[: order.index(mapped)]
    ranges = [range(most + 1) if axis in before else (0,) for axis in range(len(order))]
    fitting = [lean for lean in product(*ranges) if all(dot(lean, v) + v[mapped] >= 0 for v in deps)]
    uncut = tuple(int(parts == 1) for parts in cut)
    if fitting:
        return min(fitting, key=lambda lean: (sum(map(mul, lean, uncut)), sum(lean), lean))
    return _some_lean(deps, before, mapped)


def _some_lean(deps: Sequence[Vector], before: Sequence[int], mapped: int) -> Vector:
    """Along one axis after the other, the innermost first, as far as those dependences ask that go along it first."""
    lean = [0] * len(deps[0])
    for axis in reversed(before):
        outer = before[: before.index(axis)]
        for vector in deps:
            if vector[axis] > 0 and not any(vector[other] for other in outer):
                short = -(sum(map(mul, lean, vector)) - lean[axis] * vector[axis] + vector[mapped])
                lean[axis] = max(lean[axis], -(-short // vector[axis]))
    return tuple(lean)


def waves(deps: Iterable[Vector], order: Sequence[int]) -> Vector:
    """A weight for each axis, by which every dependence goes on by 1 at least: points of one sum may be computed at
    once.

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
    """How many points behind the first of two rows, the two innermost loops of `order`, the second can be computed
    beside it.

    >>> lag_of_rows([(0, 1), (1, -1), (1, 0), (1, 1)], (0, 1)), lag_of_rows([(0, 1), (2, -1)], (0, 1))
    (2, 0)
    """
    rows, points = order[-2:]
    pairs = [(v[rows], v[points]) for v in deps if not any(v[axis] for axis in order[:-2])]
    return max((1 - along for row, along in pairs if row == 1), default=0)


class Lean(NamedTuple):
    """A tile on a part, along the mapped axis as its loop goes: it has points at `length` positions; its first row has
    `width` from `start`, of which only those are computed that are among the `length`, and so has each later row, as
    many positions before as it leans. An upright tile has all of them in every row."""

    length: int
    start: int
    width: int

    def row(self, lean: int) -> Range:
        """The positions of the row that leans so far.

        >>> [Lean(5, 2, 3).row(lean) for lean in range(4)]
        [(2, 5), (1, 4), (0, 3), (0, 2)]
        """
        return max(0, self.start - lean), min(self.length, self.start + self.width - lean)


def mean_row(lean: Lean, leaning: Sequence[tuple[int, int]]) -> float:
    """Positions that a row of a tile has on average, of as many rows each way, leaning by so much each.

    >>> mean_row(Lean(5, 2, 3), [(1, 4)])
    2.75
    """
    leans = np.zeros(1, np.int64)
    for factor, rows in leaning:
        leans = np.add.outer(leans, factor * np.arange(rows)).ravel() if factor else leans
    low = np.maximum(lean.start - leans, 0)
    high = np.minimum(lean.start + lean.width - leans, lean.length)
    return float(np.maximum(high - low, 0).mean())


class Need(NamedTuple):
    """Elements that rows read: `ahead` positions on; `least`, `most`: how far the first and last of these rows lean."""

    ahead: int
    least: int
    most: int


def span_of(lean: Lean, needs: Sequence[Need], sign: int) -> Range | None:
    """From the first to beyond the last position of a face that a tile reads, counted from the first position that it
    touches, as the array lies; None where it reads none.

    >>> span_of(Lean(5, 0, 5), [Need(-1, 0, 0), Need(1, 0, 0)], 1), span_of(Lean(5, 2, 3), [Need(1, 2, 2)], 1)
    ((-1, 6), (1, 4))
    """
    found = []
    for need in needs:
        low, high = max(0, lean.start - need.most), min(lean.length, lean.start + lean.width - need.least)
        if low < high:
            found.append((low, high) if sign > 0 else (lean.length - high, lean.length - low))
            found[-1] = found[-1][0] + need.ahead, found[-1][1] + need.ahead
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None
