"""halo_exchange: fill ghost rows before a block of sweeps: by messages from the parts that own them, or by copies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product

from dovetail.ir import Kind
from dovetail.loops.grid.blocks import Box, Range, meet, replaced, volume
from dovetail.stencil.ghosts import runs
from dovetail.stencil.halo_depth import Block, Key, Widths, stays
from dovetail.stencil.storage import Decomposition, Part, Parts
from dovetail.stencil.sweeps import RowSweep, Stencil

Rows = Mapping[tuple[int, int], frozenset[int]]  # ghost rows, by axis and by a part's place along it


class Exchange(Parts):
    """Append ops that fill ghost rows, axis after axis. If corners are read, those of one axis include the ghosts of
    the axes before it."""

    def __init__(
        self, stencil: Stencil, how: Decomposition, ranks: int, owners: Sequence[int], given: Sequence[Box] = ()
    ) -> None:
        super().__init__(stencil, how, ranks, owners, given)
        self.had: dict[Key, Rows] = {}
        self.corners = how.sweeps > 1 or any(
            sum(map(bool, operand.shift)) > 1 for sweep in stencil.sweeps for operand in sweep.operands
        )

    def exchange(self, block: Block, line: str) -> bool:
        """Append the exchange before a block, of all versions that lack ghost rows; return whether there are any."""
        wanted = {key: self._wanted(block, key) for key in block.needs}
        fresh = {key: rows for key, rows in wanted.items() if any(rows[at] - self._had(key, at) for at in rows)}
        for axis in range(self.axes):
            for key, rows in fresh.items():
                parts = [(part, rows[axis, part.place[axis]]) for part in self.parts if not self._is_idle(part)]
                for side in (-1, 1):
                    for part, some in parts:
                        self._pass_on(part, key, some, block.needs[key], axis, side, line)
                for part, some in parts:
                    self._copy(part, key, some, block.needs[key], axis, line)
        self.had |= fresh
        return bool(fresh)

    def swept(self, key: Key, beyond: Widths) -> None:
        """Record which ghost rows are valid after a sweep that computed `beyond` of them."""
        places = product(range(self.axes), self.parts)
        rows = {(axis, part.place[axis]): self._beyond(part, key, beyond, axis) for axis, part in places}
        self.had[key] = {at: frozenset(each) for at, each in rows.items()}

    def mirror(self, part: Part, key: Key, beyond: Widths, slab: Range | None = None) -> None:
        """Append copies of the rows that a sweep of a part computed to their mirror images.

        `slab`: rows of the first axis that were computed; other slabs are mirrored separately.
        """
        if self.stencil.boundary[key[0]] != "reflecting":
            return
        rows = self._beyond(part, key, beyond, 0)
        slabs = [slab]
        if slab:
            once = self.along(part, key[0], 0).once(rows)
            rows = {row for row, same in once.items() if row != same and slab[0] <= same < slab[1]}
            slabs += [each for each, _ in runs((row, row) for row in rows)]
        self._copy(part, key, rows, beyond, 0, "mirror", swept=True)
        for axis, each in product(range(1, self.axes), slabs):
            self._copy(part, key, self._beyond(part, key, beyond, axis), beyond, axis, "mirror", swept=True, slab=each)

    def _beyond(self, part: Part, key: Key, width: Widths, axis: int) -> set[int]:
        along = self.along(part, key[0], axis)
        return along.outside(*along.span(width.low[axis], width.high[axis]))

    def _had(self, key: Key, at: tuple[int, int]) -> frozenset[int]:
        return self.had.get(key, {}).get(at, frozenset())

    def _is_idle(self, part: Part) -> bool:
        """Whether a part computes nothing and need not forward corners."""
        boxes = (self.how.boxes[sweep.name] for sweep in self.stencil.sweeps)
        return not self.corners and not any(volume(meet(part.own, box)) for box in boxes)

    def _wanted(self, block: Block, key: Key) -> Rows:
        """Return the rows of a version that the sweeps of a block read beyond those that each part owns."""
        found = dict[tuple[int, int], frozenset[int]]()
        for part in self.parts:
            for axis, place in enumerate(part.place):
                if (axis, place) not in found:
                    found[axis, place] = frozenset(self._read(block, key, part, axis))
        return found

    def _read(self, block: Block, key: Key, part: Part, axis: int) -> Iterator[int]:
        for event, beyond in zip(block.events, block.beyond, strict=True):
            name = event.sweep.target
            along = self.along(part, name, axis)
            low, high = along.span(beyond.low[axis], beyond.high[axis])
            swept = along.turned(self.how.boxes[event.sweep.name][axis], low, high)
            if key == (name, event.version - 1) and self.keeps(event):
                yield from along.outside(low, high)
            if key == (name, event.version - 1) and stays(self.stencil, self.edged, event):
                yield from along.outside(low, high) - self._overwritten(event.sweep, axis, swept)
            shifts = [
                o.shift[axis] for o, v in zip(event.sweep.operands, event.reads, strict=True) if key == (o.array, v)
            ]
            for by, (first, end) in product(shifts, swept):
                yield from along.outside(first + by, end + by)

    def _overwritten(self, sweep: RowSweep, axis: int, swept: Sequence[Range]) -> set[int]:
        """Return the rows along an axis that a sweep computes as a whole."""
        box = self.how.boxes[sweep.name]
        others = [place for place in range(self.axes) if place != axis]
        if any(box[place] != (0, self.how.rows[place]) for place in others):
            return set()
        return {row for first, end in swept for row in range(first, end)}

    def _pass_on(
        self, part: Part, key: Key, rows: Collection[int], width: Widths, axis: int, side: int, line: str
    ) -> None:
        """Append messages with the rows beyond one side of a part, from the parts that own them."""
        along, plane = self.along(part, key[0], axis), self.plane(*key)
        wanted = {row for row in along.once(rows).values() if (row >= along.own[1] if side > 0 else row < along.own[0])}
        for other, (low, high), by in self._owners(part, key[0], axis, side, wanted):
            for here, there in runs((row, row + by) for row in wanted if low <= row < high):
                box = self._box(part, key[0], width, axis, here)
                source = self.region(other, *key, replaced(box, axis, there))
                self.message(other.rank, source, part.rank, part.layouts[key[0]].region(plane, box), line)

    def _owners(
        self, part: Part, name: str, axis: int, side: int, rows: Collection[int]
    ) -> Iterator[tuple[Part, Range, int]]:
        """Yield the parts beyond one side of a part, nearest first, as far as these rows reach.

        Each with the rows that it owns, counted from this part, and the difference to its own count.
        """
        at, hops = part.own[axis][side > 0], side
        while rows and (at <= max(rows) if side > 0 else at > min(rows)):
            other = self.neighbour(part, name, axis, hops)
            assert other is not None
            low, high = other.own[axis]
            found = (at, at + high - low) if side > 0 else (at - high + low, at)
            yield other, found, low - found[0]
            at, hops = found[side > 0], hops + side

    def _copy(
        self,
        part: Part,
        key: Key,
        rows: Collection[int],
        width: Widths,
        axis: int,
        line: str,
        *,
        swept: bool = False,
        slab: Range | None = None,
    ) -> None:
        """Append copies of rows that repeat others (periodic, reflecting). `slab`: only these of the first axis."""
        pairs = ((row, same) for row, same in self.along(part, key[0], axis).once(rows).items() if row != same)
        for both in runs(pairs):
            boxes = [self._box(part, key[0], width, axis, each, swept) for each in both]
            boxes = [replaced(box, 0, slab) for box in boxes] if slab else boxes
            target, source = (self.region(part, *key, box) for box in boxes)
            self.builder.add(Kind.copy, part.rank, self.compute, reads=[source], writes=[target], line=line)

    def _box(self, part: Part, name: str, width: Widths, axis: int, rows: Range, swept: bool = False) -> Box:
        """Return the box of some ghost rows along an axis.

        With corners, it includes the ghosts along the axes before. If the rows were computed here (`swept`), not sent,
        it also includes the ghosts within the grid along the axes after.
        """
        box = part.own
        for other in range(self.axes if swept else axis if self.corners else 0):
            low, high = self.along(part, name, other).span(width.low[other], width.high[other])
            if other > axis:
                low, high = max(low, 0), min(high, self.how.rows[other])
            box = replaced(box, other, (low, high))
        return replaced(box, axis, rows)
