"""halo: the Program of a stencil on ranks: blocks of rows, and ghost rows exchanged every so many sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import lcm
from typing import NamedTuple

from dovetail.core import PlanError
from dovetail.ir import Kind, Program, Region
from dovetail.ir.terms import each
from dovetail.loops.blocks import Box, around, meet, replaced, shifted, volume
from dovetail.loops.convergence import Tests
from dovetail.loops.needs import Block, Key, Widths, lags, reach, wider
from dovetail.loops.parts import Decomposition, Part, Parts, far_name
from dovetail.loops.repeated import repeated
from dovetail.loops.stencil import Event, Stencil, Sweep


class Computed(NamedTuple):
    """What a part computes at once: the box of an event."""

    part: Part
    event: Event
    box: Box


def stencil_program(stencil: Stencil, how: Decomposition) -> Program:
    """Every rank has its block of rows of each array as input, and of those that are written as output."""

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
    """Steps after which planes, exchanges and tests come round again."""
    return lcm(*stencil.depth.values(), max(how.sweeps // len(stencil.sweeps), 1), how.test or 1)


def pieces_of(stencil: Stencil, how: Decomposition) -> list[Computed]:
    """All that is computed, in order."""
    writer = _Writer(stencil, how, ranks := len(how.owned), list(range(ranks)))
    writer.run()
    return writer.computed


def plain_program(stencil: Stencil, how: Decomposition) -> Program:
    """The same on rank 0 alone, with all arrays sent there and back: what says what is right."""
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


class _Writer(Parts):
    """What is computed and exchanged; what may overlap follows from what ops touch."""

    def __init__(
        self, stencil: Stencil, how: Decomposition, ranks: int, owners: Sequence[int], given: Sequence[Box] = ()
    ) -> None:
        super().__init__(stencil, how, ranks, owners, given)
        if how.tile and "reflecting" in stencil.boundary.values():
            what = f"{stencil.name} cannot be tiled: its ends are mirrored after each sweep"
            raise PlanError(what, hint="no tile, or another boundary")
        self.tests = Tests(self) if how.test else None
        self.valid: dict[Key, Widths] = {}
        self.computed: list[Computed] = []
        self.corners = how.sweeps > 1 or any(
            sum(map(bool, operand.shift)) > 1 for sweep in stencil.sweeps for operand in sweep.operands
        )

    # Sweeps

    def run(self) -> None:
        for number, block in enumerate(self.blocks):
            fresh = {key: width for key, width in block.needs.items() if self._is_news(key, width)}
            self._exchange(fresh, f"before sweep {number * self.how.sweeps}")
            for event, beyond in zip(block.events, block.beyond, strict=True):
                for part in self.parts:
                    self._keep_edge(part, event, beyond)
            if self.how.tile:
                self._in_tiles(block)
            else:
                self._in_turn(block, waits=bool(fresh) and self.how.overlapped)
            last = [event.version for event in block.events if event.sweep.target == self.stencil.tested]
            if self.tests and last:
                self.tests.after(last[-1])

    def _in_turn(self, block: Block, waits: bool) -> None:
        """One sweep after the other; the first `waits` for ghosts only where it needs them."""
        for place, (event, beyond) in enumerate(zip(block.events, block.beyond, strict=True)):
            for part in self.parts:
                self._sweep(part, event, beyond, waits and place == 0)
            self.valid[event.sweep.target, event.version] = beyond
            if self.stencil.boundary[event.sweep.target] == "reflecting":
                for axis in range(self.axes):
                    self._mirror((event.sweep.target, event.version), beyond, axis, swept=True)

    def _in_tiles(self, block: Block) -> None:
        """Tile after tile of rows along the first axis, each by all sweeps; later sweeps lag behind (see `lags`)."""
        behind = lags(block.events, self.stencil.depth)
        for part in self.parts:
            sides = zip(block.events, block.beyond, strict=True)
            computed = [self._computed(part, event.sweep, beyond) for event, beyond in sides]
            all_boxes = [(lag, box[0]) for lag, found in zip(behind, computed, strict=True) for box in found]
            first = min((low + lag for lag, (low, _) in all_boxes), default=0)
            last = max((high + lag for lag, (_, high) in all_boxes), default=0)
            for start in range(first, last, self.how.tile):
                for event, lag, found in zip(block.events, behind, computed, strict=True):
                    for box in found:
                        slab = replaced(box, 0, (start - lag, start - lag + self.how.tile))
                        if volume(piece := meet(box, slab)):
                            self._compute(part, event, piece, far=self.how.priced and event is block.events[0])
        for event, beyond in zip(block.events, block.beyond, strict=True):
            self.valid[event.sweep.target, event.version] = beyond

    def _is_news(self, key: Key, width: Widths) -> bool:
        known = self.valid.get(key, Widths((0,) * self.axes, (0,) * self.axes))
        return wider(known, width) != known

    def _keep_edge(self, part: Part, event: Event, beyond: Widths) -> None:
        """Rows that no sweep computes, for planes that have never had them."""
        name, version = event.sweep.target, event.version
        depth, given = self.stencil.depth[name], self.stencil.given[name]
        if depth == 1 or version >= given + depth - 1:
            return
        layout = part.layouts[name]
        wide = meet(_widened(part.own, beyond), tuple((0, rows) for rows in self.how.rows))
        for box in around(wide, meet(wide, self.how.boxes[event.sweep.name])):
            old, new = (layout.region(self.plane(name, v), box) for v in (version - 1, version))
            self.builder.add(Kind.copy, part.rank, self.compute, reads=[old], writes=[new], line=f"edge of {name}")

    def _sweep(self, part: Part, event: Event, beyond: Widths, waits: bool) -> None:
        """A sweep over a part; first what needs no ghosts, where the others are `waited` for."""
        for box in self._computed(part, event.sweep, beyond):
            inner = meet(box, self._inner(part, event.sweep)) if waits else box
            for piece in [inner, *around(box, inner)] if volume(inner) else [box]:
                self._compute(part, event, piece)

    def _computed(self, part: Part, sweep: Sweep, beyond: Widths) -> list[Box]:
        """Own rows and as many beyond, of those that are computed at all: beyond the ends of a periodic grid, too."""
        wide, box = _widened(part.own, beyond), self.how.boxes[sweep.name]
        if self.stencil.boundary[sweep.target] != "periodic":
            found = [box]
        elif box == tuple((0, rows) for rows in self.how.rows):
            found = [wide]
        else:
            turns = product((-1, 0, 1), repeat=self.axes)
            found = [shifted(box, [t * rows for t, rows in zip(turn, self.how.rows, strict=True)]) for turn in turns]
        return [each for each in (meet(wide, one) for one in found) if volume(each)]

    def _inner(self, part: Part, sweep: Sweep) -> Box:
        """Rows that are computed from own rows alone."""
        low, high = reach(sweep)
        found = part.own
        for axis, (begin, end) in enumerate(part.own):
            below, above = (self._comes_from_others(part, sweep, axis, side) for side in (-1, 1))
            found = replaced(found, axis, (begin + low[axis] * below, end - high[axis] * above))
        return found

    def _comes_from_others(self, part: Part, sweep: Sweep, axis: int, side: int) -> bool:
        others = (self.neighbour(part, operand.array, axis, side) for operand in sweep.operands)
        return any(other is not None and other is not part for other in others)

    def _compute(self, part: Part, event: Event, box: Box, far: bool = False) -> None:
        self.computed.append(Computed(part, event, box))
        sweep, reads = event.sweep, list[Region]()
        for operand, version in zip(sweep.operands, event.reads, strict=True):
            layout = part.layouts[operand.array]
            reads.append(layout.region(self.plane(operand.array, version), shifted(box, operand.shift)))
        writes = [part.layouts[sweep.target].region(self.plane(sweep.target, event.version), box)]
        call = self.builder.kernel(far_name(sweep.name) if far else sweep.name, each(len(reads)))
        about = f"{sweep.target} version {event.version}"
        self.builder.add(Kind.compute, part.rank, self.compute, reads=reads, writes=writes, call=call, line=about)

    # Ghost rows

    def _exchange(self, wanted: Mapping[Key, Widths], line: str) -> None:
        for axis in range(self.axes):
            for key, width in wanted.items():
                for side in (-1, 1):
                    if (width.low, width.high)[side > 0][axis]:
                        self._pass_on(key, width, axis, side, line)
                if self.stencil.boundary[key[0]] == "reflecting":
                    self._mirror(key, width, axis)
        self.valid |= wanted

    def _pass_on(self, key: Key, width: Widths, axis: int, side: int, line: str) -> None:
        """The ghosts beyond one side of every part, from the part that owns them."""
        for part in self.parts:
            other = self.neighbour(part, key[0], axis, side)
            if other is None:
                continue
            box = self._ghost_box(part, key[0], width, axis, side)
            by = other.own[axis][1] - part.own[axis][0] if side < 0 else other.own[axis][0] - part.own[axis][1]
            source = replaced(box, axis, (box[axis][0] + by, box[axis][1] + by))
            plane = self.plane(*key)
            here, there = other.layouts[key[0]].region(plane, source), part.layouts[key[0]].region(plane, box)
            if other is part:
                self.builder.add(Kind.copy, part.rank, self.compute, reads=[here], writes=[there], line=line)
            else:
                self.message(other.rank, here, part.rank, there, line)

    def _ghost_box(self, part: Part, name: str, width: Widths, axis: int, side: int, swept: bool = False) -> Box:
        """Ghost rows beyond one side; with corners, over the ghosts of the axes before it too, and where these have
        been `swept` here, not sent, over those that others own along the axes after it."""
        box = part.own
        for other in range(self.axes if swept else axis if self.corners else 0):
            if other != axis:
                has = self.beyond if other < axis else self.neighbour
                low, high = (w[other] * bool(has(part, name, other, s)) for w, s in zip(width, (-1, 1), strict=True))
                box = replaced(box, other, (box[other][0] - low, box[other][1] + high))
        begin, end = part.own[axis]
        ghost = (begin - width.low[axis], begin) if side < 0 else (end, end + width.high[axis])
        return replaced(box, axis, ghost)

    def _mirror(self, key: Key, width: Widths, axis: int, swept: bool = False) -> None:
        """Ghosts beyond an end of the grid: row -k is row k."""
        name, version = key
        plane = self.plane(name, version)
        for part in self.parts:
            for side, count in ((-1, width.low[axis]), (1, width.high[axis])):
                if not count or self.neighbour(part, name, axis, side) is not None:
                    continue
                box = self._ghost_box(part, name, width, axis, side, swept)
                edge = 0 if side < 0 else self.how.rows[axis] - 1
                for k in range(1, count + 1):
                    rows = [replaced(box, axis, (at, at + 1)) for at in (edge - side * k, edge + side * k)]
                    source, target = (part.layouts[name].region(plane, each) for each in rows)
                    self.builder.add(Kind.copy, part.rank, self.compute, reads=[source], writes=[target], line="mirror")


def _widened(box: Box, by: Widths) -> Box:
    return tuple((low - below, high + above) for (low, high), below, above in zip(box, *by, strict=True))
