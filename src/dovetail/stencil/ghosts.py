"""ghosts: a part's rows along one axis with its ghost rows, and which ghost rows are copies of other rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from typing import NamedTuple

from dovetail.loops.grid.blocks import Range


class Along(NamedTuple):
    """The rows that a part owns along an axis of `size` rows, and the array's boundary: fixed, periodic, reflecting."""

    own: Range
    size: int
    boundary: str | None

    def span(self, low: int, high: int) -> Range:
        """Return the range of own rows with `low` ghosts below and `high` above.

        A fixed array ends at the grid's ends; others go on beyond them. For a reflecting array the range includes the
        rows whose mirror images lie beyond the ends.

        >>> [Along((0, 2), 10, boundary).span(3, 1) for boundary in ("fixed", "periodic", "reflecting")]
        [(0, 3), (-3, 3), (-3, 4)]
        """
        first, last = self.own[0] - low, self.own[1] + high
        if self.boundary == "periodic":
            return first, last
        if self.boundary == "reflecting":
            return min(first, 2 * self.size - 1 - last), max(last, 1 - first)
        return max(first, 0), min(last, self.size)

    def once(self, rows: Collection[int]) -> dict[int, int]:
        """Return, for each ghost row, the row that it is a copy of; the row itself if it is none.

        Rows beyond the end of a periodic array are copies of rows at the other end, row -k of a reflecting array is a
        copy of row k. Copies are chosen so that each row has one source.

        >>> Along((0, 2), 5, "periodic").once([-3, -2, 2, 3]), Along((0, 2), 5, "reflecting").once([-2, 2])
        ({-3: -3, -2: -2, 2: -3, 3: -2}, {-2: 2, 2: 2})
        """
        first = 0
        if self.boundary == "periodic":
            first = max(min((self.own[0], *rows)), self.own[1] - self.size)
        return {row: self._same(row, first) for row in rows}

    def _same(self, row: int, first: int) -> int:
        if first <= row < first + self.size:
            return row
        if self.boundary == "periodic":
            return first + (row - first) % self.size
        return -row if row < 0 else 2 * (self.size - 1) - row

    def turned(self, box: Range, low: int, high: int) -> list[Range]:
        """Return the parts of a box within [low, high); for a periodic array also of its images beyond the ends.

        >>> [Along((0, 5), 5, boundary).turned((1, 4), -3, 3) for boundary in ("fixed", "periodic")]
        [[(1, 3)], [(-3, -1), (1, 3)]]
        """
        turns = range(low // self.size * self.size, high, self.size) if self.boundary == "periodic" else (0,)
        found = [(max(low, box[0] + by), min(high, box[1] + by)) for by in turns]
        return [(first, end) for first, end in found if first < end]

    def outside(self, low: int, high: int) -> set[int]:
        """Return the rows of [low, high) that the part does not own."""
        return {*range(low, min(high, self.own[0])), *range(max(low, self.own[1]), high)}


def runs(pairs: Iterable[tuple[int, int]]) -> list[tuple[Range, Range]]:
    """Return (target row, source row) pairs as pairs of ranges of equal length.

    >>> runs([(5, 2), (4, 1), (-1, 1), (-2, 2)])
    [((-2, -1), (2, 3)), ((-1, 0), (1, 2)), ((4, 6), (1, 3))]
    """
    found = []
    numbered = enumerate(sorted(pairs))
    for _, group in groupby(numbered, lambda each: (each[1][0] - each[0], each[1][1] - each[0])):
        some = [pair for _, pair in group]
        found.append(((some[0][0], some[-1][0] + 1), (some[0][1], some[-1][1] + 1)))
    return found
