"""regions: cut regions into pieces, so that source and destination of a message correspond slot for slot."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from math import lcm

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Region

Bounds = tuple[int, ...]


def split(total: int, parts: int) -> tuple[int, ...]:
    """Split `total` into `parts` sizes that differ by at most 1, larger ones first; sizes may be 0.

    >>> split(8, 3), split(1, 3)
    ((3, 3, 2), (1, 0, 0))
    """
    size, larger = divmod(total, parts)
    return tuple(size + (part < larger) for part in range(parts))


def bounds(num_slots: int, parts: int, unit: int = 1) -> Bounds:
    """Return the bounds of `parts` even pieces of `num_slots` slots, each a multiple of `unit`.

    >>> bounds(10, 3), bounds(8, 3, unit=4)
    ((0, 4, 7, 10), (0, 4, 8, 8))
    """
    return (0, *(unit * units for units in accumulate(split(num_slots // unit, parts))))


def round_units(
    slots: NDArray[np.int64], pieces: NDArray[np.int64], most: NDArray[np.int64] | int
) -> NDArray[np.int64]:
    """Return for each message the largest power of two of which all its pieces, of at most `most` slots, can be
    multiples. (Proofs are faster if the bounds of pieces have a large common divisor.)

    >>> round_units(np.array([24, 24, 10]), np.array([3, 3, 3]), 8), round_units(np.array([24]), np.array([5]), 6)
    (array([8, 8, 2]), array([2]))
    """
    unit = np.ones_like(slots)
    for power in 1 << np.arange(1, int(np.max(most, initial=1)).bit_length()):
        fits = (slots % power == 0) & (-(-(slots // power) // pieces) * power <= most)
        unit[fits] = power
    return unit


def common_unit(regions: Iterable[Region]) -> int:
    """Return the number of slots of which all cuts of these regions must be multiples: whole blocks of strided ones.

    >>> common_unit([Region("x", 0, 24), Region("y", 0, 4, stride=9, blocks=6)])
    4
    """
    return lcm(*(region.count for region in regions if region.blocks > 1 and region.count > 0))


def cut(region: Region, start: int, stop: int) -> Region:
    """Return slots `start` to `stop` of `region`, counted in the region's own order, as a region.

    >>> print(cut(Region("x", 8, 16), 4, 6), cut(Region("y", 0, 4, stride=9, blocks=6), 8, 16))
    x[12:14] y[18:22; 2 x 9]
    """
    if region.blocks == 1:
        return Region(region.buffer, region.offset + start, stop - start)
    first, last = start // region.count, stop // region.count
    assert (start, stop) == (first * region.count, last * region.count), "cut inside a block"
    offset = region.offset + first * region.stride
    if last - first == 1:
        return Region(region.buffer, offset, region.count)
    return region._replace(offset=offset, blocks=last - first)


def apart(one: Region, other: Region) -> bool:
    """Return whether the spans of two regions share no slot (interleaved strided regions count as sharing)."""
    return one.buffer != other.buffer or _end(one) <= other.offset or _end(other) <= one.offset


def _end(region: Region) -> int:
    return region.offset + region.stride * (region.blocks - 1) + region.count
