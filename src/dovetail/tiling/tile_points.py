"""tile_points: the points of a tile, and which of its neighbours need them: exact counts, tile dependences, messages.

A tile of any shape is a box in the coordinates H'j, where H' is H with rows scaled to primitive integers. Its points
are those of the lattice H'Zⁿ; its Hermite normal form holds their strides (Goumas, Athanasaki, Koziris, TPDS 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from dovetail.core import PlanError
from dovetail.loops.matrices import Matrix, Vector, hermite
from dovetail.tiling.tiling import Tiling

Points = NDArray[np.int64]  # (num_points, num_loops)
MOST_POINTS = 1 << 24  # in a tile whose points are listed


@dataclass(frozen=True, eq=False)
class Message:
    """The message from a tile to one neighbour: the neighbour's offset in tiles, the points that it needs, and the
    number of (point, dependence) pairs.

    Points are offsets in the sending tile. If a dimension is mapped, a neighbour is a processor: its offset along that
    dimension is 0, and a point that several of its tiles need is sent once.
    """

    to: Vector
    points: Points
    num_pairs: int


@dataclass(frozen=True)
class Traffic:
    """What leaves a tile: (point, dependence) pairs, distinct (point, destination)s, distinct points."""

    pairs: int
    values: int
    points: int


def box(tiling: Tiling) -> tuple[Vector, Matrix]:
    """Return the sides of the box that a tile is in the coordinates H'j, and H'.

    >>> box(Tiling(((3, 1), (1, 2)), ((6, 2), (2, 4))))
    ((10, 10), ((2, -1), (-1, 3)))
    """
    common = [gcd(tiling.volume, *row) for row in tiling.normals]
    rows = tuple(tuple(x // by for x in row) for row, by in zip(tiling.normals, common, strict=True))
    return tuple(tiling.volume // by for by in common), rows


def points_in_box(tiling: Tiling) -> Points:
    """Return the points of the tile at the origin in the coordinates H'j, in lexicographic order.

    Raises PlanError if the tile has too many points to list.
    """
    sides, rows = box(tiling)
    basis = hermite(rows)
    _check_size(tiling, sides)
    steps = np.zeros((1, 0), dtype=np.int64)
    found = np.zeros((1, 0), dtype=np.int64)
    for i, side in enumerate(sides):
        stride = basis[i][i]
        shift = steps @ np.array(basis[i][:i], dtype=np.int64)
        here = (shift % stride)[:, None] + np.arange(0, side, stride, dtype=np.int64)
        step = (here - shift[:, None]) // stride
        count = here.shape[1]
        found = np.column_stack([np.repeat(found, count, axis=0), here.ravel()])
        steps = np.column_stack([np.repeat(steps, count, axis=0), step.ravel()])
    return found


def tile_points(tiling: Tiling) -> Points:
    """Return the `volume` points of the tile at the origin, in lexicographic order.

    >>> tile_points(Tiling(((1, 0), (0, 1)), ((2, 1), (0, 2)))).tolist()
    [[0, 0], [1, 0], [1, 1], [2, 1]]
    """
    inside = from_box(tiling, points_in_box(tiling))
    return inside[np.lexsort(inside.T[::-1])]


def from_box(tiling: Tiling, inside: Points) -> Points:
    """Return points of the tile at the origin, given their coordinates H'j."""
    sides, _ = box(tiling)
    scaled = [[entry * (tiling.volume // side) for entry, side in zip(row, sides, strict=True)] for row in tiling.sides]
    return np.asarray(inside @ np.array(scaled, dtype=np.int64).T // tiling.volume)


def destinations(tiling: Tiling) -> tuple[Points, list[Points]]:
    """Return `points_in_box`, and for each dependence an array of the same shape: the offset, in tiles, of the tile
    that needs each point's value."""
    sides, rows = box(tiling)
    inside = points_in_box(tiling)
    shifts = np.array(rows, dtype=np.int64) @ np.array(tiling.deps, dtype=np.int64)
    return inside, [(inside + shift) // np.array(sides) for shift in shifts.T]


def tile_dependences(tiling: Tiling) -> tuple[Vector, ...]:
    """Return the offsets, in tiles, of the neighbours that need values of a tile, in lexicographic order.

    >>> tile_dependences(Tiling(((3, 1), (1, 2)), ((4, 0), (0, 5))))
    ((0, 1), (1, 0), (1, 1))
    """
    _, ends = destinations(tiling)
    found = {tuple(row) for end in ends for row in np.unique(end, axis=0).tolist()}
    return tuple(sorted(found - {(0,) * tiling.num_loops}))


def messages(tiling: Tiling, mapped: int | None = None) -> list[Message]:
    """Return the message to each neighbour. Neighbours are tiles; with `mapped`, all tiles along that dimension are on
    one processor, and neighbours are processors.

    >>> tiling = Tiling(((3, 1), (1, 2)), ((4, 0), (0, 5)))
    >>> [(message.to, len(message.points), message.num_pairs) for message in messages(tiling)]
    [((0, 1), 6, 7), ((1, 0), 12, 15), ((1, 1), 4, 5)]
    >>> [(message.to, len(message.points)) for message in messages(tiling, mapped=0)]
    [((0, 1), 8)]
    """
    inside, ends = destinations(tiling)
    numbers = np.arange(len(inside))
    to = np.concatenate([_processors(end, mapped) for end in ends])
    who = np.tile(numbers, len(ends))
    out = np.any(to != 0, axis=1)
    places, which, pairs = np.unique(to[out], axis=0, return_inverse=True, return_counts=True)
    which = which.ravel()
    points = from_box(tiling, inside)
    found = []
    for k, (place, count) in enumerate(zip(places.tolist(), pairs.tolist(), strict=True)):
        here = points[np.unique(who[out][which == k])]
        found.append(Message(tuple(place), here[np.lexsort(here.T[::-1])], count))
    return found


def traffic(tiling: Tiling, mapped: int | None = None) -> Traffic:
    """Count exactly what leaves a tile of an unbounded space, without what stays on the processor.

    >>> traffic(Tiling(((3, 1), (1, 2)), ((4, 0), (0, 5))))
    Traffic(pairs=27, values=22, points=17)
    """
    _, ends = destinations(tiling)
    to = np.stack([_processors(end, mapped) for end in ends])
    out = np.any(to != 0, axis=2)
    low, high = to.min(axis=(0, 1)), to.max(axis=(0, 1))
    codes = np.zeros(to.shape[:2], dtype=np.int64)
    for i, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        codes = codes * (most - least + 1) + (to[:, :, i] - least)
    codes = np.sort(np.where(out, codes, -1), axis=0)
    fresh = np.ones(codes.shape, dtype=bool)
    fresh[1:] = codes[1:] != codes[:-1]
    return Traffic(int(out.sum()), int((fresh & (codes >= 0)).sum()), int(out.any(axis=0).sum()))


def _processors(tiles: Points, mapped: int | None) -> Points:
    """Offsets in tiles, as offsets in processors: 0 along the mapped dimension."""
    if mapped is None:
        return tiles
    return np.where(np.arange(tiles.shape[1]) == mapped, 0, tiles)


def _check_size(tiling: Tiling, sides: Vector) -> None:
    """Raise PlanError if the points are too many to list, or their coordinates too large for 64 bits."""
    if tiling.volume > MOST_POINTS:
        raise PlanError(
            "this tile is too large to have its points counted one by one",
            found=f"{tiling.volume} points, of at most {MOST_POINTS}",
            hint="take a smaller tile of the same shape",
        )
    largest = max(abs(entry) for matrix in (tiling.sides, tiling.deps) for row in matrix for entry in row)
    reach = max(max(sides), *(abs(entry) for row in tiling.normals for entry in row)) * tiling.num_loops
    if largest * reach * tiling.volume >= 1 << 62:
        raise PlanError(
            "the sides of this tile are too long for their volume",
            found=f"an entry of {largest}, {tiling.volume} points",
            hint="take a basis of shorter sides for the same tiles",
        )
