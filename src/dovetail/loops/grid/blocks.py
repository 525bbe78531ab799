"""blocks: which rows of a grid each rank owns, and where they lie in its memory, ghost rows included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from math import prod

import numpy as np

from dovetail.core import OperatorError, parse_count
from dovetail.ir import Region

Range = tuple[int, int]
Box = tuple[Range, ...]


def shares(size: int, parts: int) -> list[Range]:
    """Cut `size` evenly into `parts` ranges, the longer ones first.

    >>> shares(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    each, more = divmod(size, parts)
    ends = list(accumulate([each + (part < more) for part in range(parts)], initial=0))
    return list(pairwise(ends))


def cuts(ranks: int, axes: int) -> list[tuple[int, ...]]:
    """Return every way to cut `axes` axes into `ranks` parts in all.

    >>> cuts(4, 2)
    [(1, 4), (2, 2), (4, 1)]
    """
    counts = [n for n in range(1, ranks + 1) if ranks % n == 0]
    return [cut for cut in product(counts, repeat=axes) if prod(cut) == ranks]


def surface(sizes: Sequence[int], cut: Sequence[int], most: int) -> float:
    """Return the mean number of points at the faces of a part; along each axis up to `most` faces have a neighbour.

    >>> surface((6, 8), (3, 2), 2), surface((6, 8), (3, 2), 1)
    (10.0, 6.0)
    """
    sides = [size / parts for size, parts in zip(sizes, cut, strict=True)]
    return sum(min(parts - 1, most) * prod(sides) / side for side, parts in zip(sides, cut, strict=True))


def boxes(rows: Sequence[int], cut: Sequence[int], first: Sequence[int] = ()) -> list[Box]:
    """Return the box of each part, the last axis varying fastest. `first`: rows of each part along axis 0; default:
    an even cut.

    >>> boxes((6, 2), (2, 1), (4, 2))
    [((0, 4), (0, 2)), ((4, 6), (0, 2))]
    """
    sides = [shares(size, parts) for size, parts in zip(rows, cut, strict=True)]
    if first:
        sides[0] = list(pairwise(accumulate(first, initial=0)))
    return [tuple(box) for box in product(*sides)]


@dataclass(frozen=True)
class Layout:
    """A buffer that holds the rows of a box."""

    held: Box

    @property
    def slots(self) -> int:
        return volume(self.held)

    def region(self, buffer: str, box: Box) -> Region:
        """Return the region of a box's rows. The layout must hold them."""
        if len(box) == 1:
            ((begin, end),), ((left, right),) = box, self.held
            assert left <= begin <= end <= right, (self, box)
            return Region(buffer, begin - left, end - begin)
        (first, last), (begin, end) = box
        (top, bottom), (left, right) = self.held
        assert top <= first <= last <= bottom, (self, box)
        assert left <= begin <= end <= right, (self, box)
        stride = right - left
        offset = (first - top) * stride + begin - left
        if last - first == 1 or end - begin == stride:
            return Region(buffer, offset, (last - first - 1) * stride + end - begin)
        return Region(buffer, offset, end - begin, stride, last - first)


def volume(box: Box) -> int:
    """Return the number of rows in a box; 0 if it is empty."""
    found = 1
    for low, high in box:
        if high <= low:
            return 0
        found *= high - low
    return found


def shifted(box: Box, shift: Sequence[int]) -> Box:
    return tuple([(low + by, high + by) for (low, high), by in zip(box, shift, strict=True)])


def meet(one: Box, other: Box) -> Box:
    """Return the intersection of two boxes; its volume is 0 if they are disjoint."""
    found = []
    for (a, b), (c, d) in zip(one, other, strict=True):
        low, high = a if a > c else c, b if b < d else d
        found.append((low, high if high > low else low))
    return tuple(found)


def replaced(box: Box, axis: int, part: Range) -> Box:
    return (*box[:axis], part, *box[axis + 1 :])


def around(box: Box, inner: Box) -> list[Box]:
    """Return a box without an inner box, as slabs axis by axis; the whole box if the inner one is empty.

    >>> around(((0, 4), (0, 3)), ((1, 4), (1, 2)))
    [((0, 1), (0, 3)), ((1, 4), (0, 1)), ((1, 4), (2, 3))]
    """
    if inner == box:
        return []
    found = []
    for axis, ((low, high), (begin, end)) in enumerate(zip(box, inner if volume(inner) else _none(box), strict=True)):
        found += [replaced(box, axis, (low, begin)), replaced(box, axis, (end, high))]
        box = replaced(box, axis, (begin, end))
    return [each for each in found if volume(each)]


def _none(box: Box) -> Box:
    """The empty box at the beginning of another."""
    return tuple((low, low) for low, _ in box)


def grid_of(given: Sequence[int] | str | int) -> tuple[int, ...]:
    """Return a user's grid as points along each axis. Raises OperatorError if it is none.

    >>> grid_of("301x203"), grid_of([301, 203]), grid_of(512)
    ((301, 203), (301, 203), (512,))
    """
    if not isinstance(given, str):
        if isinstance(given, list | tuple | np.ndarray) and np.ndim(given) == 1 and len(given):
            return tuple(parse_count(each, "points of an axis", least=1) for each in given)
        return (parse_count(given, "a grid of one axis", least=1),)
    try:
        found = tuple(int(word) for word in given.lower().split("x"))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise OperatorError(f"'{given}' is no grid", hint="points by axis, as in 512x512")
    return found


def grid_text(grid: Sequence[int]) -> str:
    """Return the text of a grid in the command line, documents and messages.

    >>> grid_text((301, 203))
    '301x203'
    """
    return "x".join(map(str, grid))
