"""cone: the tiling cone {h : hD ≥ 0}, which holds the rows of H of every legal tile: extreme rays, integer vectors.

Source: for a given volume, a tile whose rows of H all lie on extreme rays of the cone has the least V_comm, because
V_comm and det H are linear in each row (Boulet et al. 1994; Xue, JPDC 1997; Hodzic and Shang 1998).
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from dovetail.loops.matrices import Matrix, Vector, dot, normal_to, primitive, rank, transposed

_MOST_BOX = 1 << 20  # integer vectors that are tested for being in the cone


def cone_rays(deps: Matrix) -> list[Vector]:
    """Return the extreme rays of the tiling cone, as primitive vectors; none if the dependences do not span the space.

    >>> cone_rays(((3, 1), (1, 2)))
    [(-1, 3), (2, -1)]
    >>> cone_rays(((1, 1, 1), (-1, 0, 1)))
    [(1, -1), (1, 1)]
    """
    vectors = list(dict.fromkeys(transposed(deps)))
    if rank(vectors) < len(deps):
        return []
    found = set()
    for some in combinations(vectors, len(deps) - 1):
        normal = normal_to(some)
        sides = [dot(normal, vector) for vector in vectors]
        if any(normal) and (min(sides) >= 0 or max(sides) <= 0):
            sign = 1 if min(sides) >= 0 else -1
            found.add(primitive(tuple(sign * entry for entry in normal)))
    return sorted(found)


def skewing(deps: Matrix) -> Matrix:
    """Return a unimodular T with TD ≥ 0: a skewing of the loops that makes tiles along the axes legal.

    >>> skewing(((1, 1, 1), (-1, 0, 1)))
    ((1, 0), (1, 1))
    """
    n, vectors = len(deps), transposed(deps)
    rows: list[Vector] = []
    for k in range(n):
        past = [sum(dot(row, vector) for row in rows) for vector in vectors]
        times = max([0, *(-(vector[k] // before) for vector, before in zip(vectors, past, strict=True) if before)])
        unit = tuple(int(i == k) for i in range(n))
        rows.append(tuple(one + times * sum(row[i] for row in rows) for i, one in enumerate(unit)))
    return tuple(rows)


def generators(deps: Matrix) -> list[Vector]:
    """Return the rows of H to try first: extreme rays, rows of `skewing`, and vectors orthogonal to all dependences.

    >>> generators(((3,), (1,)))
    [(1, 0), (0, 1), (-1, 3), (1, -3)]
    """
    return list(dict.fromkeys([*cone_rays(deps), *skewing(deps), *_free(deps)]))


def vectors_in_cone(deps: Matrix, most_cost: int, limit: int) -> tuple[list[Vector], bool]:
    """Return primitive integer vectors h of the cone by rising cost h·Σd, and whether all up to `most_cost` are there.

    They include all `generators`, and of the other vectors the `limit` cheapest.
    """
    always = generators(deps)
    total = tuple(map(sum, deps))
    reach, whole = reach_of(deps, total, most_cost)
    axes = [np.arange(-r, r + 1) for r in reach]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(deps))
    cost = grid @ np.array(total)
    inside = (cost <= most_cost) & (np.gcd.reduce(grid, axis=1) == 1)
    grid, cost = grid[inside], cost[inside]
    kept = np.all(grid @ np.array(deps) >= 0, axis=1)
    grid, cost = grid[kept], cost[kept]
    cheap = grid[np.lexsort([*grid.T[::-1], cost])]
    found = list(dict.fromkeys([*always, *map(tuple, cheap[:limit].tolist())]))
    found.sort(key=lambda vector: (dot(vector, total), vector))
    return found, whole and len(cheap) <= limit


def reach_of(deps: Matrix, total: Vector, most_cost: int) -> tuple[list[int], bool]:
    """Return bounds on the absolute entries of vectors that cost at most `most_cost`, and whether they are not cut."""
    rays = cone_rays(deps)
    if not rays:
        return [2] * len(deps), False
    reach = [max(abs(ray[i]) * most_cost // dot(ray, total) for ray in rays) for i in range(len(deps))]
    whole = int(np.prod([2.0 * r + 1 for r in reach])) <= _MOST_BOX
    most = int((_MOST_BOX ** (1 / len(deps)) - 1) / 2)
    return (reach if whole else [min(r, most) for r in reach]), whole


def _free(deps: Matrix) -> list[Vector]:
    """Vectors orthogonal to all dependences, with both signs: normals of faces that no dependence crosses."""
    n, vectors = len(deps), list(transposed(deps))
    missing = n - rank(vectors)
    if not missing:
        return []
    axes = [tuple(int(i == k) for i in range(n)) for k in range(n)]
    normals = (normal_to(some) for some in combinations([*dict.fromkeys(vectors), *axes], n - 1))
    free = {primitive(h) for h in normals if any(h) and not any(dot(h, vector) for vector in vectors)}
    return sorted({tuple(sign * entry for entry in h) for sign, h in product((1, -1), free)})


def edges_of(rows: Matrix) -> Matrix:
    """Return the primitive edges (columns) of a tile whose faces are normal to these rows, each pointing inwards.

    >>> edges_of(((2, -1), (-1, 3)))
    ((3, 1), (1, 2))
    """
    columns = []
    for k, row in enumerate(rows):
        edge = normal_to([other for i, other in enumerate(rows) if i != k])
        sign = 1 if dot(edge, row) > 0 else -1
        columns.append(primitive(tuple(sign * entry for entry in edge)))
    return transposed(tuple(columns))


def determinants(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the exact determinants of square matrices of small integers, shape (…, n, n)."""
    n = rows.shape[-1]
    if n == 1:
        return np.asarray(rows[..., 0, 0])
    found = np.zeros(rows.shape[:-2], dtype=np.int64)
    for k in range(n):
        rest = np.delete(rows[..., 1:, :], k, axis=-1)
        found += (-1) ** k * rows[..., 0, k] * determinants(rest)
    return found
