"""exact_search: all tiles of a small volume that communicate less, by the formula, than a given one.

Tiles may have any directions. With R = V·P⁻¹ (the adjugate of the sides P, up to sign), V_comm is the sum of R·D,
P is legal if the rows of R lie in the tiling cone, and |det R| = V^(n-1). A tile of V_comm below C has rows whose
costs r·Σd add up to less than C: finitely many integer vectors if the dependences span the space. The rows of a tile
also lie in one lattice {r : r·H ≡ 0 (mod V)}, H a Hermite normal form of determinant V. This leaves few sets of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dovetail.loops.matrices import Matrix, adjugate, determinant
from dovetail.tiling.cone import reach_of

_MOST_WORK = 1 << 24  # most (lattice, vector) pairs that are tried
Rows = NDArray[np.int64]


def cheaper_tiles(deps: Matrix, volume: int, most: int) -> Iterator[tuple[int, Matrix]] | None:
    """Yield (V_comm, sides) of tiles with V_comm below `most`, each cheaper than the one before; the last is the best.

    None if there are too many rows to try, or infinitely many.

    >>> list(cheaper_tiles(((3, 1), (1, 2)), 20, 21))
    [(20, ((2, 6), (4, 2)))]
    """
    n = len(deps)
    found = _rows_below(deps, most) if n in (2, 3) else None
    if found is None or len(found[0]) * sum(1 for _ in normal_forms(volume, n)) > _MOST_WORK:
        return None
    return _cheaper(*found, volume, most)


def _rows_below(deps: Matrix, most: int) -> tuple[Rows, Rows] | None:
    """The integer vectors of the cone that may be rows of R, by rising cost, and their costs."""
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
    for form in normal_forms(volume, rows.shape[1]):
        inside = np.all(rows @ np.array(form) % volume == 0, axis=1)
        for cost, sides in _in_lattice(rows[inside], costs[inside], volume, most):
            most = cost
            yield cost, sides


def _in_lattice(rows: Rows, costs: Rows, volume: int, most: int) -> Iterator[tuple[int, Matrix]]:
    n, best = rows.shape[1], [most]
    for first in _starts(costs, n, lambda: best[0]):
        spent, cross = int(costs[list(first)].sum()), _normal(rows[list(first)])
        last = np.arange(first[-1], np.searchsorted(costs, best[0] - spent))
        found = last[np.abs(rows[last] @ cross) == volume ** (n - 1)]
        if len(found):  # the first one costs least
            best[0] = spent + int(costs[found[0]])
            yield best[0], _sides(rows[[*first, int(found[0])]], volume)


def normal_forms(volume: int, n: int) -> Iterator[Matrix]:
    """Yield the Hermite normal forms of determinant `volume`: one for each lattice with cells of that volume.

    >>> [len(list(normal_forms(4, n))) for n in (1, 2, 3)]
    [1, 7, 35]
    """
    if n == 1:
        yield ((volume,),)
        return
    for last in (k for k in range(1, volume + 1) if volume % k == 0):
        for form in normal_forms(volume // last, n - 1):
            for row in product(range(last), repeat=n - 1):
                yield (*((*each, 0) for each in form), (*row, last))


def _starts(costs: Rows, n: int, below: Callable[[], int]) -> Iterator[tuple[int, ...]]:
    """Yield all but the last row of each set, as rising indices, while a set with them may cost less than `below()`."""
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
    """The vector whose scalar product with a last row is the determinant of all rows, up to sign."""
    if len(rows) == 1:
        return np.array([-rows[0, 1], rows[0, 0]])
    return np.asarray(np.cross(rows[0], rows[1]))


def _sides(rows: Rows, volume: int) -> Matrix:
    """The sides P = V·R⁻¹. They are integers because the rows lie in the lattice."""
    whole: Matrix = tuple(tuple(row) for row in rows.tolist())
    size = determinant(whole)
    return tuple(tuple(volume * entry // size for entry in row) for row in adjugate(whole))
