"""blocks: which rows of A each rank multiplies, and how they are cut into steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple


@dataclass(frozen=True)
class Blocks:
    """The rows of A that each rank multiplies.

    Block (q, r) consists of the `counts[q][r]` rows of rank q's A from row `starts[q][r]` on. Rank r multiplies it; the
    result of rank r has blocks (q, r) in the order of q.
    """

    counts: tuple[tuple[int, ...], ...]
    starts: tuple[tuple[int, ...], ...]

    @staticmethod
    def gathered(held: Sequence[int]) -> Blocks:
        """Return the blocks of an all-gather: every rank multiplies all rows of every rank."""
        ranks = len(held)
        return Blocks(tuple((rows,) * ranks for rows in held), ((0,) * ranks,) * ranks)

    @staticmethod
    def exchanged(counts: Sequence[Sequence[int]]) -> Blocks:
        """Return the blocks of an all-to-all: rank q's A has `counts[q][r]` rows for each rank r, in the order of r."""
        rows = tuple(tuple(each) for each in counts)
        return Blocks(rows, tuple(tuple(accumulate(each, initial=0))[:-1] for each in rows))

    @property
    def ranks(self) -> int:
        return len(self.counts)

    @cached_property
    def longest(self) -> int:
        """Rows of the longest block. Tiles are lengths along it."""
        return max(map(max, self.counts), default=0)

    @cached_property
    def alike(self) -> bool:
        """Whether all blocks have equally many rows; then all ranks do the same, up to a rotation of ranks."""
        return len({rows for each in self.counts for rows in each}) == 1

    @cached_property
    def held(self) -> tuple[int, ...]:
        """Rows of A on each rank."""
        ends = ((s + c for s, c in zip(*pair, strict=True)) for pair in zip(self.starts, self.counts, strict=True))
        return tuple(max(each, default=0) for each in ends)

    def rows(self, rank: int) -> int:
        """Return the number of rows that a rank multiplies."""
        return sum(each[rank] for each in self.counts)

    def place(self, q: int, r: int) -> int:
        """Return the row of rank r's result at which block (q, r) begins."""
        return self._places[r][q]

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(accumulate(column, initial=0)) for column in zip(*self.counts, strict=True))


class Part(NamedTuple):
    """The part of a block that travels in one step: rows `first` to `last`, exclusive."""

    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Steps:
    """How blocks are cut into steps: into `tiles` of rows, or into `slices` of K.

    `tiles` are lengths along the longest block; shorter blocks are cut in proportion.

    >>> [Steps((3, 5), 1).part(0, 4, 8), Steps((3, 5), 1).part(1, 4, 8)]
    [Part(first=0, last=1), Part(first=1, last=4)]
    """

    tiles: tuple[int, ...]
    slices: int

    @property
    def count(self) -> int:
        return self.slices if self.slices > 1 else len(self.tiles)

    def part(self, step: int, rows: int, longest: int) -> Part:
        """Return the rows of a block of `rows` rows that travel in a step; all of them if K is cut."""
        if self.slices > 1:
            return Part(0, rows)
        done, last = self._ends[step : step + 2]
        return Part(rows * done // max(longest, 1), rows * last // max(longest, 1))

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.tiles, initial=0))


@dataclass(frozen=True)
class Parts:
    """The parts of every block in every step.

    `without_own`: storage by step has no room for a rank's own block.
    """

    blocks: Blocks
    steps: Steps
    without_own: bool = False

    def __call__(self, q: int, r: int, step: int) -> Part:
        """Return the part of block (q, r) that travels in a step."""
        return self._by_rows[step][self.blocks.counts[q][r]]

    def before(self, q: int, r: int, step: int) -> int:
        """Return the rows stored before that part on rank r, which stores what it receives by step, then by source."""
        return self._coming[r][step][q]

    def made_before(self, q: int, r: int, step: int) -> int:
        """Return the rows stored before that part on rank q, which stores what it sends by step, then by target."""
        return self._going[q][step][r]

    @cached_property
    def _by_rows(self) -> list[dict[int, Part]]:
        found = {0}.union(*self.blocks.counts)
        longest = self.blocks.longest
        return [{rows: self.steps.part(step, rows, longest) for rows in found} for step in range(self.steps.count)]

    @cached_property
    def _coming(self) -> list[list[list[int]]]:
        return [self._laid_out(r, column) for r, column in enumerate(zip(*self.blocks.counts, strict=True))]

    @cached_property
    def _going(self) -> list[list[list[int]]]:
        return [self._laid_out(q, row) for q, row in enumerate(self.blocks.counts)]

    def _laid_out(self, own: int, counts: Sequence[int]) -> list[list[int]]:
        """Return the first row of each part of a rank's blocks, by step and block."""
        counts = [0 if self.without_own and other == own else count for other, count in enumerate(counts)]
        rows = [[by_rows[count].rows for count in counts] for by_rows in self._by_rows]
        firsts = accumulate(map(sum, rows), initial=0)
        return [list(accumulate(each, initial=first)) for each, first in zip(rows, firsts, strict=False)]
