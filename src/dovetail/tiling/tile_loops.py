"""tile_loops: tiled iteration in plain Python: tiles, and the points of each, in lexicographic order.

It is the reference for the generated C of `tile_code`, and computes bounds without islpy.
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
    """Yield every tile that has points in the space, with these points. Each point of the space occurs once.

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
    """Return bounds on the coordinates of all tiles: H times the bounding box of the space, by interval arithmetic."""
    found = []
    for normal in tiling.normals:
        ends = [sorted((entry * low, entry * high)) for entry, (low, high) in zip(normal, space.ranges, strict=True)]
        found.append((sum(low for low, _ in ends) // tiling.volume, sum(high for _, high in ends) // tiling.volume))
    return found
