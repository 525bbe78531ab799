"""symmetry: a group of renumberings of ranks and slots, under which the ops of one rank describe those of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.core import ProgramError
from dovetail.ir.types import Region

Ints = NDArray[np.int64]
Layout = tuple[tuple[int, int], ...]
FIXED = -1  # in a Layout: a digit that no renumbering changes


class Shape(NamedTuple):
    """How a region lies in its buffer's digits: per digit, whether it has one value; and the digits that vary.

    `varying`: (axis, number of values) of each digit with several values, outermost first; neighbours of axis FIXED are
    multiplied.
    """

    single: tuple[bool, ...]
    varying: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Symmetry:
    """The group Z_a x Z_b x ... of `axes` (a, b, ...): its elements are the ranks, numbered with the last axis fastest.

    Element g renumbers rank r as r + g, digit by digit modulo the axes. Slots of a buffer are numbers in the digits of
    its Layout: pairs (size, axis). Element g adds its digit of that axis; the digits of axis `FIXED` stay. Axes of size
    2 make r + g an exclusive or.

    Parameters
    ----------
    axes : tuple of int
        Sizes of the cyclic groups.
    layouts : dict
        Buffer name -> Layout.

    >>> ring = Symmetry((4,), {"input": ((4, 0),)})
    >>> int(ring.plus(3, 2)), ring.image("input", [0, 3], 1).tolist()
    (1, [1, 0])
    """

    axes: tuple[int, ...]
    layouts: dict[str, Layout]
    _shapes: dict[tuple[Any, ...], Shape] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, layout in self.layouts.items():
            for size, axis in layout:
                if axis != FIXED and not (0 <= axis < len(self.axes) and size == self.axes[axis]):
                    found, hint = f"a digit of size {size} for axis {axis}", f"axes are {self.axes}"
                    raise ProgramError(f"the layout of buffer '{name}' has no such axis", found=found, hint=hint)

    @cached_property
    def num_ranks(self) -> int:
        return prod(self.axes)

    def digits(self, ranks: ArrayLike) -> Ints:
        """Return the digits of ranks, along a new last axis."""
        return np.stack(np.unravel_index(np.asarray(ranks, np.int64), self.axes), axis=-1).astype(np.int64)

    def plus(self, ranks: ArrayLike, by: ArrayLike, sign: int = 1) -> Ints:
        """Return ranks + by (or - by, if `sign` is -1), digit by digit."""
        total = (self.digits(ranks) + sign * self.digits(by)) % np.array(self.axes)
        return np.asarray(np.ravel_multi_index(tuple(np.moveaxis(total, -1, 0)), self.axes), np.int64)

    def slots(self, buffer: str) -> int:
        """Return the number of slots that the buffer's layout describes."""
        return prod(size for size, _ in self.layouts[buffer])

    def image(self, buffer: str, slots: ArrayLike, by: ArrayLike, single: tuple[bool, ...] | None = None) -> Ints:
        """Return the numbers that element `by` gives to slots; both broadcast. `single`: move only these digits."""
        layout, moved = self.layouts[buffer], self.digits(by)
        found = np.asarray(slots, np.int64)
        if not layout:
            return np.broadcast_to(found, np.broadcast_shapes(found.shape, moved.shape[:-1])).copy()
        places = np.unravel_index(found, tuple(size for size, _ in layout))
        total: Any = 0
        for number, (place, (size, axis)) in enumerate(zip(places, layout, strict=True)):
            moves = axis != FIXED and (single is None or single[number])
            total = total * size + ((place + moved[..., axis]) % size if moves else place)
        return np.asarray(total, np.int64)

    def shape(self, region: Region) -> Shape | None:
        """Return a region's Shape; None unless it lies in its buffer, and all its images are regions of the same count,
        stride and blocks.

        Each digit that some element moves must have either one value in the region, or all of its values; and the
        region must be the product of its digits' values.
        """
        layout = self.layouts[region.buffer]
        if region.offset + region.count + region.stride * max(region.blocks - 1, 0) > self.slots(region.buffer):
            return None
        if region.count * region.blocks == 1:
            return Shape((True,) * len(layout), ())
        if region not in self._shapes:
            found = self._find_shape(region, layout)
            if found is None:
                return None
            self._shapes[region] = found
        return self._shapes[region]

    def _find_shape(self, region: Region, layout: Layout) -> Shape | None:
        slots = region.slots()
        if not len(slots) or np.any(np.diff(slots) <= 0) or not layout:
            return None
        counts = [len(np.unique(place)) for place in np.unravel_index(slots, tuple(size for size, _ in layout))]
        whole = all(n in (1, size) for n, (size, axis) in zip(counts, layout, strict=True) if axis != FIXED)
        if not whole or prod(counts) != len(slots):
            return None
        varying: list[tuple[int, int]] = []
        for n, (_, axis) in zip(counts, layout, strict=True):
            if n > 1 and axis == FIXED and varying and varying[-1][0] == FIXED:
                varying[-1] = FIXED, varying[-1][1] * n
            elif n > 1:
                varying.append((axis, n))
        return Shape(tuple(n == 1 for n in counts), tuple(varying))
