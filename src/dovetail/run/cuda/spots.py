"""spots: places of a region's bytes in device memory, and how a device copies from one place to another."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from dovetail.ir import Program, Region, Workload
from dovetail.run.arrays import numpy_dtype, workload_slots
from dovetail.run.engine import DTYPES

Action = tuple[Any, ...]  # the name of a command's action, and its arguments; () for none


class Rows(NamedTuple):
    """`height` rows of `width` bytes, `pitch` bytes apart."""

    address: int
    width: int
    height: int
    pitch: int


class Spot(NamedTuple):
    """The place of bytes: in the form of kernels, and as evenly spaced rows (None: they are not)."""

    place: tuple[int, int, int, int, int, int, int]  # address, starts, bytes of a slot, offset, count, stride, blocks
    rows: Rows | None
    num_bytes: int

    @classmethod
    def at(cls, address: int, num_bytes: int) -> Spot:
        """Return the Spot of contiguous bytes."""
        return cls((address, 0, num_bytes, 0, 1, 1, 1), Rows(address, num_bytes, 1, num_bytes), num_bytes)

    @classmethod
    def of(cls, program: Program, workload: Workload, rank: int, region: Region, base: int, starts_at: int) -> Spot:
        """Return the Spot of a region of a buffer at address `base`; `starts_at`: address of the table of its slots."""
        slot = workload_slots(workload, region.buffer, program.num_ranks)[rank]
        size = prod(slot.shape) * numpy_dtype(slot.dtype).itemsize
        shape = (region.offset, region.count, region.stride, region.blocks)
        starts = workload.starts(region.buffer, rank)
        if starts is not None:
            total = int(np.diff(starts)[region.slots()].sum()) * size
            whole = region.blocks == 1 or region.stride == region.count
            rows = Rows(base + int(starts[region.offset]) * size, total, 1, total) if whole else None
            return cls((base, starts_at, size, *shape), rows, total)
        width, height, pitch = region.count * size, region.blocks, region.stride * size
        total = width * height
        if height == 1 or pitch == width:
            width, height, pitch = total, 1, total
        return cls((base, 0, size, *shape), Rows(base + region.offset * size, width, height, pitch), total)

    def matrix(self, columns: int, size: int) -> tuple[int, int] | None:
        """Return (address, row stride in elements of `size` bytes) of these bytes as a matrix of `columns` columns;
        None if the stride varies.

        >>> Spot((0, 0, 8, 0, 1, 4, 3), Rows(0, 8, 3, 32), 24).matrix(2, 4)
        (0, 8)
        """
        if self.rows is None:
            return None
        address, width, height, pitch = self.rows
        if height == 1:
            return address, columns
        return (address, pitch // size) if width == columns * size and pitch % size == 0 else None


def copied(to: Spot, source: Spot) -> Action:
    """Return the action that copies all bytes: by rows, which a copy engine can do, or by a kernel."""
    if to.num_bytes == 0:
        return ()
    if to.rows and source.rows and (both := alike(to.rows, source.rows)):
        a, b = both
        return "copy", (a.address, b.address, a.width, a.height, a.pitch, b.pitch)
    return "move", (to.place, source.place, None, DTYPES.index(element_of(to, source)), 0)


def alike(a: Rows, b: Rows) -> tuple[Rows, Rows] | None:
    """Return both as rows of equal width; None if that is impossible.

    >>> alike(Rows(0, 12, 1, 12), Rows(100, 4, 3, 8))
    (Rows(address=0, width=4, height=3, pitch=4), Rows(address=100, width=4, height=3, pitch=8))
    """
    if (a.width, a.height) == (b.width, b.height):
        return a, b
    if a.height == 1:
        return Rows(a.address, b.width, b.height, b.width), b
    if b.height == 1:
        return a, Rows(b.address, a.width, a.height, a.width)
    return None


def element_of(*spots: Spot) -> str:
    """Return the widest unsigned integer type whose size divides all segments."""
    every = 8
    for spot in spots:
        address, _, slot = spot.place[:3]
        while (address | slot) % every:
            every //= 2
    return f"uint{8 * every}"
