"""Every tile of a small volume that communicates less than a given one, by the formula: no set of directions is assumed.

With R = V·P⁻¹ (the adjugate of the sides P, up to its sign), V_comm is the sum of R·D, P is legal where the rows of R lie
in the tiling cone, and |det R| = V^(n-1). A tile of V_comm below C has rows whose costs r·Σd add up to less than C. Where
the dependences span the space, these are finitely many whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dovetail.loops.matrices import Matrix, adjugate, determinant
from dovetail.loops.tiling_cone import reach_of

_MOST_ROWS = {2: 1 << 13, 3: 320}  # vectors, by dimension, whose sets are all looked at
Rows = NDArray[np.int64]


def cheaper_tiles(deps: Matrix, volume: int, most: int) -> Iterator[tuple[int, Matrix]] | None:
    """Tiles with V_comm below `most`, each cheaper than the one before, with their V_comm; the last is the least of all.

    None where there are too many rows to look at, or nothing bounds them.

    >>> list(cheaper_tiles(((3, 1), (1, 2)), 20, 21))
    [(20, ((2, 6), (4, 2)))]
    """
    n = len(deps)
    if n not in _MOST_ROWS:
        return None
    found = _rows_below(deps, most)
    if found is None or len(found[0]) > _MOST_ROWS[n]:
        return None
    return _cheaper(*found, volume, most)


def _rows_below(deps: Matrix, most: int) -> tuple[Rows, Rows] | None:
    """The whole vectors of the cone that a row of R may be, by rising cost, and these costs."""
    total = tuple(map(sum, deps))
    reach, is_whole = reach_of(deps, total, most)
    if not is_whole:
        return None
    axes = [np.arange(-r, r + 1) for r in reach]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(deps))
    costs = grid @ np.array(total)
    inside = np.all(grid @ np.array(deps) >= 0, axis=1) & np.any(grid, axis=1) & (costs < most)
    grid, costs = grid[inside], costs[inside]
    order = np.argsort(costs, kind="stable")
    return grid[order], costs[order]


def _cheaper(rows: Rows, costs: Rows, volume: int, most: int) -> Iterator[tuple[int, Matrix]]:
    n = rows.shape[1]
    for first in _starts(costs, n, lambda: most):
        spent, cross = int(costs[list(first)].sum()), _normal(rows[list(first)])
        last = np.arange(first[-1], np.searchsorted(costs, most - spent))
        for k in last[np.abs(rows[last] @ cross) == volume ** (n - 1)].tolist():
            sides = _sides(rows[[*first, k]], volume)
            if sides is not None:
                most = spent + int(costs[k])
                yield most, sides
                break  # the rest cost as much, or more


def _starts(costs: Rows, n: int, below: Callable[[], int]) -> Iterator[tuple[int, ...]]:
    """All but the last row of each set, as places in rising order, while a set with them may be cheap enough."""
    for i in range(len(costs)):
        if n * costs[i] >= below():
            return
        if n == 2:
            yield (i,)
            continue
        for k in range(i, len(costs)):
            if costs[i] + 2 * costs[k] >= below():
                break
            yield i, k


def _normal(rows: Rows) -> Rows:
    """What a further row's scalar product with is the determinant of all, up to its sign."""
    if len(rows) == 1:
        return np.array([-rows[0, 1], rows[0, 0]])
    return np.asarray(np.cross(rows[0], rows[1]))


def _sides(rows: Rows, volume: int) -> Matrix | None:
    """The sides P = V·R⁻¹, where they are whole: of two dimensions they always are."""
    whole: Matrix = tuple(tuple(row) for row in rows.tolist())
    size = determinant(whole)
    entries = [[volume * entry for entry in row] for row in adjugate(whole)]
    if any(entry % size for row in entries for entry in row):
        return None
    return tuple(tuple(entry // size for entry in row) for row in entries)
