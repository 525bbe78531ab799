"""stencil_program: the program of a stencil: each rank computes a block of rows and exchanges ghost rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import lcm
from typing import NamedTuple

from dovetail.ir import Kind, Program, Region
from dovetail.ir.proof.terms import each
from dovetail.loops.grid.blocks import Box, Range, around, meet, replaced, shifted, volume
from dovetail.loops.grid.repeat_steps import repeated
from dovetail.stencil.convergence import Tests
from dovetail.stencil.halo_depth import Block, Widths, lags, reach
from dovetail.stencil.halo_exchange import Exchange
from dovetail.stencil.storage import Decomposition, Part, far_name
from dovetail.stencil.sweeps import Event, RowSweep, Stencil


class Computed(NamedTuple):
    """A box that a part computes at once, in one sweep of one version."""

    part: Part
    event: Event
    box: Box


def stencil_program(stencil: Stencil, how: Decomposition) -> Program:
    """Return the program. Each rank has a block of every array as input, of every written array as output."""

    def make(steps: int) -> Program:
        ranks = len(how.owned)
        writer = _Writer(stencil, replace(how, steps=steps), ranks, list(range(ranks)))
        for name in stencil.depth:
            writer.enter(name, name)
        writer.run()
        for name in stencil.written:
            writer.leave(name, f"{name}_out")
        return writer.builder.build()

    return repeated(make, how.steps, _period(stencil, how))


def _period(stencil: Stencil, how: Decomposition) -> int:
    """Return after how many steps planes, exchanges and tests repeat."""
    return lcm(*stencil.depth.values(), max(how.sweeps // len(stencil.sweeps), 1), how.test or 1)


def pieces_of(stencil: Stencil, how: Decomposition) -> list[Computed]:
    """Return all boxes that are computed, in order."""
    writer = _Writer(stencil, how, ranks := len(how.owned), list(range(ranks)))
    writer.run()
    return writer.computed


def plain_program(stencil: Stencil, how: Decomposition) -> Program:
    """Return the reference program: rank 0 collects all blocks, computes everything, and distributes the results."""
    own = how.owned
    whole = Decomposition(how.rows, how.boxes, (1,) * len(how.rows), how.steps, test=how.test)

    def make(steps: int) -> Program:
        writer = _Writer(stencil, replace(whole, steps=steps), len(own), [0], own)
        for name in stencil.depth:
            writer.collect(name)
            writer.enter(name, f"{name}_all")
        writer.run()
        for name in stencil.written:
            writer.leave(name, f"{name}_all")
            writer.distribute(name)
        return writer.builder.build()

    return repeated(make, how.steps, _period(stencil, whole))


class _Writer(Exchange):
    """Append sweeps and exchanges. What may overlap follows from the slots that ops touch."""

    def __init__(
        self, stencil: Stencil, how: Decomposition, ranks: int, owners: Sequence[int], given: Sequence[Box] = ()
    ) -> None:
        super().__init__(stencil, how, ranks, owners, given)
        self.tests = Tests(self) if how.test else None
        self.computed: list[Computed] = []

    # Sweeps

    def run(self) -> None:
        for number, block in enumerate(self.blocks):
            comes = self.exchange(block, f"before sweep {number * self.how.sweeps}")
            if self.how.tile:
                self._in_tiles(block)
            else:
                self._sweep_by_sweep(block, waits=comes and self.how.overlapped)
            last = [event.version for event in block.events if event.sweep.target == self.stencil.tested]
            if self.tests and last:
                self.tests.after(last[-1])

    def _sweep_by_sweep(self, block: Block, waits: bool) -> None:
        """Append one sweep after another. If the first `waits` for ghosts, only its outer rows do."""
        for place, (event, beyond) in enumerate(zip(block.events, block.beyond, strict=True)):
            for part in self.parts:
                for box in self._edges(part, event, beyond):
                    self._keep(part, event, box)
            for part in self.parts:
                self._sweep(part, event, beyond, waits and place == 0)
            for part in self.parts:
                self.mirror(part, (event.sweep.target, event.version), beyond)
            self.swept((event.sweep.target, event.version), beyond)

    def _in_tiles(self, block: Block) -> None:
        """Append one tile of rows (along the first axis) after another, each by all sweeps, which lag (see `lags`)."""
        mirrored = [name for name, boundary in self.stencil.boundary.items() if boundary == "reflecting"]
        behind = lags(block.events, self.stencil.depth, mirrored)
        for part in self.parts:
            work = [
                (event, beyond, lag, [*self._edges(part, event, beyond)], self._computed(part, event.sweep, beyond))
                for event, beyond, lag in zip(block.events, block.beyond, behind, strict=True)
            ]
            boxes = [(box[0], lag) for _, _, lag, edges, swept in work for box in (*edges, *swept)]
            first = min((low + lag for (low, _), lag in boxes), default=0)
            last = max((high + lag for (_, high), lag in boxes), default=0)
            for start in range(first, last, self.how.tile):
                for event, beyond, lag, edges, swept in work:
                    slab, far = (start - lag, start - lag + self.how.tile), event is block.events[0]
                    pieces = _within(slab, edges), _within(slab, swept)
                    self._tile(part, event, beyond, *pieces, far=self.how.priced and far)
        for event, beyond in zip(block.events, block.beyond, strict=True):
            self.swept((event.sweep.target, event.version), beyond)

    def _tile(
        self, part: Part, event: Event, beyond: Widths, edges: Iterable[Box], swept: Iterable[Box], far: bool
    ) -> None:
        """Append what one sweep does in a tile."""
        for piece in edges:
            self._keep(part, event, piece)
        for piece in swept:
            self._compute(part, event, piece, far)
            self.mirror(part, (event.sweep.target, event.version), beyond, piece[0])

    def _edges(self, part: Part, event: Event, beyond: Widths) -> Iterator[Box]:
        """Yield the rows that a sweep does not compute and must copy, as the plane may not hold them."""
        name, grid = event.sweep.target, tuple((0, rows) for rows in self.how.rows)
        wide = self.wide(part, name, beyond)
        for turn in self._turns(name, wide) if self.keeps(event) else ():
            here, swept = (meet(wide, shifted(box, turn)) for box in (grid, self.how.boxes[event.sweep.name]))
            yield from around(here, swept)

    def _keep(self, part: Part, event: Event, box: Box) -> None:
        name = event.sweep.target
        old, new = (self.region(part, name, event.version - back, box) for back in (1, 0))
        self.builder.add(Kind.copy, part.rank, self.compute, reads=[old], writes=[new], line=f"edge of {name}")

    def _sweep(self, part: Part, event: Event, beyond: Widths, waits: bool) -> None:
        """Append a sweep over a part. If it `waits` for ghosts, the rows that need none come first."""
        for box in self._computed(part, event.sweep, beyond):
            inner = meet(box, self._inner(part, event.sweep)) if waits else box
            for piece in [inner, *around(box, inner)] if volume(inner) else [box]:
                self._compute(part, event, piece)

    def _computed(self, part: Part, sweep: RowSweep, beyond: Widths) -> list[Box]:
        """Return the boxes that a sweep computes of a part: own rows and those `beyond`, also past periodic ends."""
        wide, box = self.wide(part, sweep.target, beyond), self.how.boxes[sweep.name]
        if sweep.name not in self.edged and self.stencil.boundary[sweep.target] == "periodic":
            return [wide]
        found = (meet(wide, shifted(box, turn)) for turn in self._turns(sweep.target, wide))
        return [each for each in found if volume(each)]

    def _turns(self, name: str, wide: Box) -> Iterator[tuple[int, ...]]:
        """Yield the shifts by which images of the grid meet a box: (0, …), and for periodic arrays those past ends."""
        sides = zip(wide, self.how.rows, strict=True)
        around_ends = self.stencil.boundary[name] == "periodic"
        yield from product(*(range(low // n * n, high, n) if around_ends else (0,) for (low, high), n in sides))

    def _inner(self, part: Part, sweep: RowSweep) -> Box:
        """Return the rows that are computed from own rows alone."""
        low, high = reach(sweep)
        found = part.own
        for axis, (begin, end) in enumerate(part.own):
            below, above = (self._comes_from_others(part, sweep, axis, side) for side in (-1, 1))
            found = replaced(found, axis, (begin + low[axis] * below, end - high[axis] * above))
        return found

    def _comes_from_others(self, part: Part, sweep: RowSweep, axis: int, side: int) -> bool:
        others = (self.neighbour(part, operand.array, axis, side) for operand in sweep.operands)
        return any(other is not None and other is not part for other in others)

    def _compute(self, part: Part, event: Event, box: Box, far: bool = False) -> None:
        self.computed.append(Computed(part, event, box))
        inner = self._as_given(part, event, box)
        for piece in [inner, *around(box, inner)] if volume(inner) else [box]:
            self._compute_piece(part, event, piece, far)

    def _as_given(self, part: Part, event: Event, box: Box) -> Box:
        """Return the rows of a box that can be computed directly from the user's arrays."""
        for operand, version in zip(event.sweep.operands, event.reads, strict=True):
            if self.is_given(operand.array, version):
                box = meet(box, shifted(part.own, [-by for by in operand.shift]))
        return box

    def _compute_piece(self, part: Part, event: Event, box: Box, far: bool) -> None:
        sweep, reads = event.sweep, list[Region]()
        for operand, version in zip(sweep.operands, event.reads, strict=True):
            reads.append(self.region(part, operand.array, version, shifted(box, operand.shift)))
        writes = [self.region(part, sweep.target, event.version, box)]
        call = self.builder.kernel(far_name(sweep.name) if far else sweep.name, each(len(reads)))
        about = f"{sweep.target} version {event.version}"
        self.builder.add(Kind.compute, part.rank, self.compute, reads=reads, writes=writes, call=call, line=about)


def _within(slab: Range, boxes: Iterable[Box]) -> Iterator[Box]:
    """Yield the parts of boxes within some rows of the first axis."""
    yield from (piece for box in boxes if volume(piece := meet(box, replaced(box, 0, slab))))
