"""tile_loops: tiled iteration in plain Python: tiles in lexicographic order, the points of each in lexicographic order.

This is the reference for the generated C of `tile_code`: own integer arithmetic, no library of sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from dovetail.loops.matrices import Vector
from dovetail.tiling.spaces import Space, check_loops
from dovetail.tiling.tile_points import Points, tile_points
from dovetail.tiling.tiling import Tiling


def tiles(tiling: Tiling, space: Space) -> Iterator[tuple[Vector, Points]]:
    """Every tile that has a point in the space, with these points; each point of the space comes once.

    >>> tiling = Tiling(((1, 0), (0, 1)), ((2, 1), (0, 2)))
    >>> [(tile, points.tolist()) for tile, points in tiles(tiling, Space.parse("2x2"))]
    [((-1, 0), [[0, 1]]), ((0, 0), [[0, 0], [1, 0], [1, 1]])]
    """
    check_loops(tiling, space)
    offsets = tile_points(tiling)
    for tile in product(*(range(low, high + 1) for low, high in candidates(tiling, space))):
        points = offsets + np.array(tiling.origin(tile), dtype=np.int64)
        inside = points[space.holds(points)]
        if len(inside):
            yield tile, inside


def candidates(tiling: Tiling, space: Space) -> list[tuple[int, int]]:
    """Ranges that the coordinates of all tiles lie in: H times the box round the space, by interval arithmetic."""
    found = []
    for normal in tiling.normals:
        ends = [sorted((entry * low, entry * high)) for entry, (low, high) in zip(normal, space.ranges, strict=True)]
        found.append((sum(low for low, _ in ends) // tiling.volume, sum(high for _, high in ends) // tiling.volume))
    return found
