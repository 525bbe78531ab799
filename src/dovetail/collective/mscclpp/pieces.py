"""pieces: cut packet slots into runs that every op touches as a whole, so that each run can be one op.

An op on packets gives its i-th element to thread i modulo the number of threads. Such ops are therefore ordered element
by element: by the threads that do several of them, and by the flags of the packets that they read. If two ops touch
only parts of each other's chunks, these chunks are cut there, and so are all chunks that move together with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from dovetail.ir import Region


class Span(NamedTuple):
    """A region of one gpu's memory."""

    rank: int
    region: Region


class Pieces:
    """How each region of some sweeps is cut: bit i of a buffer's cuts is set if slot i starts a piece."""

    def __init__(self, sweeps: Sequence[Sequence[Span]]) -> None:
        self._cuts: dict[tuple[int, str], int] = defaultdict(int)
        self._known: dict[Span, list[tuple[int, int]]] = {}
        for sweep in sweeps:
            for span in sweep:
                self._add(span, 1 | 1 << span.region.count)
        self._close([sweep for sweep in sweeps if sweep[0].region.count > 1])

    def of(self, span: Span) -> list[tuple[int, int]]:
        """Return the pieces of a region as (first slot, end), counted from its start."""
        if span not in self._known:
            count = span.region.count
            bounds = [i for i in range(count) if i == 0 or self._within(span) >> i & 1] + [count]
            self._known[span] = list(pairwise(bounds)) if count else [(0, 0)]
        return self._known[span]

    def _close(self, sweeps: Sequence[Sequence[Span]]) -> None:
        """Cut all regions of a sweep alike, until no cut is new."""
        touching: dict[tuple[int, str], set[int]] = defaultdict(set)
        for number, sweep in enumerate(sweeps):
            for span in sweep:
                touching[span.rank, span.region.buffer].add(number)
        work = set(range(len(sweeps)))
        while work:
            changed = set[int]()
            for number in sorted(work):
                cuts = 0
                for span in sweeps[number]:
                    cuts |= self._within(span)
                for span in sweeps[number]:
                    if self._add(span, cuts):
                        changed |= touching[span.rank, span.region.buffer]
            work = changed

    def _within(self, span: Span) -> int:
        return self._cuts[span.rank, span.region.buffer] >> span.region.offset & (1 << span.region.count) - 1

    def _add(self, span: Span, cuts: int) -> bool:
        key, shifted = (span.rank, span.region.buffer), cuts << span.region.offset
        is_new = bool(shifted & ~self._cuts[key])
        self._cuts[key] |= shifted
        return is_new
