"""halo: the Program of a stencil on ranks: blocks of rows, and ghost rows exchanged every so many sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from dovetail.core import PlanError
from dovetail.ir import Kind, Program, Region
from dovetail.ir.terms import each
from dovetail.loops.blocks import Box, Ghosts, Layout, around, boxes, meet, replaced, shifted, volume
from dovetail.loops.checks import WRAPS
from dovetail.loops.ordered import OrderedBuilder
from dovetail.loops.stencil import Event, Stencil, Sweep, events, last_version

Widths = Ghosts
Key = tuple[str, int]  # an array and a version of it


@dataclass(frozen=True)
class Decomposition:
    """How a stencil of these rows (by axis) is run: cut into parts by axis, ghosts exchanged every `sweeps` sweeps, and
    whether what needs no ghosts is computed while they travel."""

    rows: tuple[int, ...]
    boxes: Mapping[str, Box]  # by sweep: what it computes, rows only
    cut: tuple[int, ...]
    steps: int
    sweeps: int = 1
    overlapped: bool = False


class Block(NamedTuple):
    """Sweeps between two exchanges: how far beyond its own rows each part computes, and what it must have received."""

    events: list[Event]
    beyond: list[Widths]
    needs: dict[Key, Widths]


@dataclass
class _Part:
    """One part of the grid, in the memory of a rank."""

    rank: int
    place: tuple[int, ...]
    own: Box
    layouts: dict[str, Layout] = field(default_factory=dict)


def stencil_program(stencil: Stencil, how: Decomposition) -> Program:
    """Every rank has its block of rows of each array as input, and of those that are written as output."""
    ranks = len(boxes(how.rows, how.cut))
    writer = _Writer(stencil, how, ranks, list(range(ranks)))
    for name in stencil.depth:
        writer.enter(name, name)
    writer.run()
    for name in stencil.written:
        writer.leave(name, f"{name}_out")
    return writer.builder.build()


def plain_program(stencil: Stencil, how: Decomposition) -> Program:
    """The same on rank 0 alone, with all arrays sent there and back: what says what is right."""
    own = boxes(how.rows, how.cut)
    whole = Decomposition(how.rows, how.boxes, (1,) * len(how.rows), how.steps)
    writer = _Writer(stencil, whole, len(own), [0], own)
    for name in stencil.depth:
        writer.collect(name)
        writer.enter(name, f"{name}_all")
    writer.run()
    for name in stencil.written:
        writer.leave(name, f"{name}_all")
        writer.distribute(name)
    return writer.builder.build()


def blocks_of(stencil: Stencil, steps: int, sweeps: int) -> Iterator[Block]:
    """The sweeps of a run, so many between two exchanges; the last block may be shorter."""
    all_events = list(events(stencil, steps))
    for start in range(0, len(all_events), sweeps):
        yield _block(all_events[start : start + sweeps], stencil.row_axes)


def _block(some: list[Event], axes: int) -> Block:
    """Backwards from the last sweep, which computes its own rows only."""
    none, needs, beyond = Widths((0,) * axes, (0,) * axes), dict[Key, Widths](), list[Widths]()
    for event in reversed(some):
        wide = needs.pop((event.sweep.target, event.version), none)
        beyond.insert(0, wide)
        for operand, version in zip(event.sweep.operands, event.reads, strict=True):
            low = tuple(width + max(-by, 0) for width, by in zip(wide.low, operand.shift, strict=True))
            high = tuple(width + max(by, 0) for width, by in zip(wide.high, operand.shift, strict=True))
            key = operand.array, version
            needs[key] = _wider(needs.get(key, none), Widths(low, high))
    return Block(some, beyond, needs)


def _wider(one: Widths, other: Widths) -> Widths:
    return Widths(*(tuple(map(max, a, b)) for a, b in zip(one, other, strict=True)))


def reach(sweep: Sweep) -> Widths:
    """How far beyond a row a sweep reads."""
    shifts = [operand.shift for operand in sweep.operands]
    low = tuple(max(0, *(-shift[axis] for shift in shifts)) for axis in range(len(shifts[0])))
    return Widths(low, tuple(max(0, *(shift[axis] for shift in shifts)) for axis in range(len(shifts[0]))))


class _Writer:
    """Writes ops in the order in which each rank would do them alone; what may overlap follows from what they touch."""

    def __init__(
        self, stencil: Stencil, how: Decomposition, ranks: int, owners: Sequence[int], given: Sequence[Box] = ()
    ) -> None:
        self.stencil, self.how, self.axes = stencil, how, stencil.row_axes
        self.builder = b = OrderedBuilder(f"{stencil.name}_{'x'.join(map(str, how.cut))}", ranks)
        self.compute, self.send, self.recv = b.lane("compute", "compute"), b.lane("send", "net"), b.lane("recv", "net")
        self.blocks = list(blocks_of(stencil, how.steps, how.sweeps))
        own = boxes(how.rows, how.cut)
        places = product(*map(range, how.cut))
        self.parts = [_Part(rank, place, box) for rank, place, box in zip(owners, places, own, strict=True)]
        self.at = {part.place: part for part in self.parts}
        self.given, self.gathers = list(given) or own, bool(given)
        self.valid: dict[Key, Widths] = {}
        self.corners = how.sweeps > 1 or any(
            sum(map(bool, operand.shift)) > 1 for sweep in stencil.sweeps for operand in sweep.operands
        )
        for name in stencil.depth:
            self._declare(name)

    def _declare(self, name: str) -> None:
        """The buffers of an array: what is given, its planes, and its result."""
        ghosts = self._ghosts(name)
        for part in self.parts:
            low, high = (
                tuple(g if self._beyond(part, name, axis, side) else 0 for axis, g in enumerate(width))
                for side, width in ((-1, ghosts.low), (1, ghosts.high))
            )
            part.layouts[name] = Layout(part.own, Ghosts(low, high))
        self._check_ghosts(name)
        b, ranks, given = self.builder, self.builder.num_ranks, self.stencil.given[name]
        rows = [volume(box) * given for box in self.given]
        b.buffer(name, "input", rows)
        held = [0] * ranks
        for part in self.parts:
            held[part.rank] = part.layouts[name].slots
        for plane in range(self.stencil.depth[name]):
            b.buffer(plane_name(name, plane), "scratch", held)
        if name in self.stencil.written:
            b.buffer(f"{name}_out", "output", rows)
        if self.gathers:
            b.buffer(f"{name}_all", "scratch", [sum(rows), *[0] * (ranks - 1)])

    def _ghosts(self, name: str) -> Ghosts:
        none = Widths((0,) * self.axes, (0,) * self.axes)
        for block in self.blocks:
            for (array, _), width in block.needs.items():
                none = _wider(none, width) if array == name else none
            for event, width in zip(block.events, block.beyond, strict=True):
                none = _wider(none, width) if event.sweep.target == name else none
        return none

    def _beyond(self, part: _Part, name: str, axis: int, side: int) -> bool:
        """Whether an array goes on beyond this side of a part."""
        return self._neighbour(part, name, axis, side) is not None or self.stencil.boundary[name] in WRAPS

    def _neighbour(self, part: _Part, name: str, axis: int, side: int) -> _Part | None:
        """The part beyond a side: of a periodic array the one at the other end, which may be the part itself."""
        place = list(part.place)
        place[axis] += side
        if self.stencil.boundary[name] == "periodic":
            place[axis] %= self.how.cut[axis]
        return self.at.get(tuple(place))

    def _check_ghosts(self, name: str) -> None:
        """Refuse parts that have fewer rows than others need of them."""
        computed = [self.how.boxes[s.name] for s in self.stencil.sweeps if s.target == name]
        for part in self.parts:
            ghosts = part.layouts[name].ghosts
            for axis in range(self.axes):
                for side, width in ((-1, ghosts.low[axis]), (1, ghosts.high[axis])):
                    other = self._neighbour(part, name, axis, side)
                    if other is None:
                        continue
                    own = other.own
                    if computed and self.stencil.depth[name] > 1:
                        own = meet(own, computed[0])
                    has = own[axis][1] - own[axis][0]
                    if has < width:
                        what = f"part {other.place} has {has} rows along axis {axis}, and the next one needs {width}"
                        hint = "fewer parts along this axis, or fewer sweeps between exchanges"
                        raise PlanError(f"{self.stencil.name} cannot be cut so: {what}", hint=hint)
                if self.stencil.boundary[name] == "reflecting":
                    low, high = part.own[axis]
                    if high - low <= max(ghosts.low[axis], ghosts.high[axis]):
                        what = f"part {part.place} is too narrow along axis {axis} to be mirrored"
                        raise PlanError(f"{self.stencil.name} cannot be cut so: {what}", hint="fewer parts")

    # Arrays come and go

    def enter(self, name: str, source: str) -> None:
        """The versions that are given, into their planes."""
        for part in self.parts:
            layout, plain = part.layouts[name], Layout(part.own, Ghosts((0,) * self.axes, (0,) * self.axes))
            for version in range(self.stencil.given[name]):
                region = _later(plain.region(source, part.own), version * plain.slots)
                self._move(part.rank, name, region, layout.region(self._plane(name, version), part.own), "enter")

    def leave(self, name: str, target: str) -> None:
        """The last versions, as many as were given, out of their planes."""
        last = last_version(self.stencil, name, self.how.steps)
        for part in self.parts:
            layout, plain = part.layouts[name], Layout(part.own, Ghosts((0,) * self.axes, (0,) * self.axes))
            for number in range(given := self.stencil.given[name]):
                version = last - given + 1 + number
                region = _later(plain.region(target, part.own), number * plain.slots)
                self._move(part.rank, name, layout.region(self._plane(name, version), part.own), region, "leave")

    def _move(self, rank: int, name: str, source: Region, target: Region, way: str) -> None:
        about = {"reads": [source], "writes": [target], "line": f"{way} {name}"}
        if any(self.stencil.margins[name]):
            call = self.builder.kernel(f"{way}_{name}", ("each",))
            self.builder.add(Kind.compute, rank, self.compute, call=call, **about)  # type: ignore[arg-type]
        else:
            self.builder.add(Kind.copy, rank, self.compute, **about)  # type: ignore[arg-type]

    def collect(self, name: str) -> None:
        """All ranks' blocks, to rank 0."""
        for rank, (own, version, there) in self._pieces(name):
            here = Region(name, version * volume(own), volume(own))
            if rank == 0:
                self.builder.add(Kind.copy, 0, self.compute, reads=[here], writes=[there])
            else:
                self._message(rank, here, 0, there, f"collect {name}")

    def distribute(self, name: str) -> None:
        """The result, from rank 0 to all ranks."""
        for rank, (own, version, there) in self._pieces(name):
            here = Region(f"{name}_out", version * volume(own), volume(own))
            if rank == 0:
                self.builder.add(Kind.copy, 0, self.compute, reads=[there], writes=[here])
            else:
                self._message(0, there, rank, here, f"distribute {name}")

    def _pieces(self, name: str) -> Iterator[tuple[int, tuple[Box, int, Region]]]:
        """Each rank's box of each version, and where it lies on rank 0."""
        whole = Layout(self.parts[0].own, Ghosts((0,) * self.axes, (0,) * self.axes))
        for rank, own in enumerate(self.given):
            for version in range(self.stencil.given[name]):
                there = _later(whole.region(f"{name}_all", own), version * whole.slots)
                yield rank, (own, version, there)

    # Sweeps

    def run(self) -> None:
        for number, block in enumerate(self.blocks):
            fresh = {key: width for key, width in block.needs.items() if self._is_news(key, width)}
            self._exchange(fresh, f"before sweep {number * self.how.sweeps}")
            for place, (event, beyond) in enumerate(zip(block.events, block.beyond, strict=True)):
                waits = bool(fresh) and place == 0 and self.how.overlapped
                for part in self.parts:
                    self._keep_edge(part, event, beyond)
                    self._sweep(part, event, beyond, waits)
                self.valid[event.sweep.target, event.version] = beyond
                if self.stencil.boundary[event.sweep.target] == "reflecting":
                    for axis in range(self.axes):
                        self._mirror((event.sweep.target, event.version), beyond, axis, swept=True)

    def _is_news(self, key: Key, width: Widths) -> bool:
        known = self.valid.get(key, Widths((0,) * self.axes, (0,) * self.axes))
        return _wider(known, width) != known

    def _keep_edge(self, part: _Part, event: Event, beyond: Widths) -> None:
        """Rows that no sweep computes, for planes that have never had them."""
        name, version = event.sweep.target, event.version
        depth, given = self.stencil.depth[name], self.stencil.given[name]
        if depth == 1 or version >= given + depth - 1:
            return
        layout = part.layouts[name]
        wide = meet(_widened(part.own, beyond), tuple((0, rows) for rows in self.how.rows))
        for box in around(wide, meet(wide, self.how.boxes[event.sweep.name])):
            old, new = (layout.region(self._plane(name, v), box) for v in (version - 1, version))
            self.builder.add(Kind.copy, part.rank, self.compute, reads=[old], writes=[new], line=f"edge of {name}")

    def _sweep(self, part: _Part, event: Event, beyond: Widths, waits: bool) -> None:
        """A sweep over a part; first what needs no ghosts, where the others are `waited` for."""
        for box in self._computed(part, event.sweep, beyond):
            inner = meet(box, self._inner(part, event.sweep)) if waits else box
            for piece in [inner, *around(box, inner)] if volume(inner) else [box]:
                self._compute(part, event, piece)

    def _computed(self, part: _Part, sweep: Sweep, beyond: Widths) -> list[Box]:
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

    def _inner(self, part: _Part, sweep: Sweep) -> Box:
        """Rows that are computed from own rows alone."""
        low, high = reach(sweep)
        found = part.own
        for axis, (begin, end) in enumerate(part.own):
            below, above = (self._comes_from_others(part, sweep, axis, side) for side in (-1, 1))
            found = replaced(found, axis, (begin + low[axis] * below, end - high[axis] * above))
        return found

    def _comes_from_others(self, part: _Part, sweep: Sweep, axis: int, side: int) -> bool:
        others = (self._neighbour(part, operand.array, axis, side) for operand in sweep.operands)
        return any(other is not None and other is not part for other in others)

    def _compute(self, part: _Part, event: Event, box: Box) -> None:
        sweep, reads = event.sweep, list[Region]()
        for operand, version in zip(sweep.operands, event.reads, strict=True):
            layout = part.layouts[operand.array]
            reads.append(layout.region(self._plane(operand.array, version), shifted(box, operand.shift)))
        writes = [part.layouts[sweep.target].region(self._plane(sweep.target, event.version), box)]
        call = self.builder.kernel(sweep.name, each(len(reads)))
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
            other = self._neighbour(part, key[0], axis, side)
            if other is None:
                continue
            box = self._ghost_box(part, key[0], width, axis, side)
            by = other.own[axis][1] - part.own[axis][0] if side < 0 else other.own[axis][0] - part.own[axis][1]
            source = replaced(box, axis, (box[axis][0] + by, box[axis][1] + by))
            plane = self._plane(*key)
            here, there = other.layouts[key[0]].region(plane, source), part.layouts[key[0]].region(plane, box)
            if other is part:
                self.builder.add(Kind.copy, part.rank, self.compute, reads=[here], writes=[there], line=line)
            else:
                self._message(other.rank, here, part.rank, there, line)

    def _ghost_box(self, part: _Part, name: str, width: Widths, axis: int, side: int, swept: bool = False) -> Box:
        """Ghost rows beyond one side; with corners, over the ghosts of the axes before it too, and where these have
        been `swept` here, not sent, over those that others own along the axes after it."""
        box = part.own
        for other in range(self.axes if swept else axis if self.corners else 0):
            if other != axis:
                has = self._beyond if other < axis else self._neighbour
                low, high = (w[other] * bool(has(part, name, other, s)) for w, s in zip(width, (-1, 1), strict=True))
                box = replaced(box, other, (box[other][0] - low, box[other][1] + high))
        begin, end = part.own[axis]
        ghost = (begin - width.low[axis], begin) if side < 0 else (end, end + width.high[axis])
        return replaced(box, axis, ghost)

    def _mirror(self, key: Key, width: Widths, axis: int, swept: bool = False) -> None:
        """Ghosts beyond an end of the grid: row -k is row k."""
        name, version = key
        plane = self._plane(name, version)
        for part in self.parts:
            for side, count in ((-1, width.low[axis]), (1, width.high[axis])):
                if not count or self._neighbour(part, name, axis, side) is not None:
                    continue
                box = self._ghost_box(part, name, width, axis, side, swept)
                edge = 0 if side < 0 else self.how.rows[axis] - 1
                for k in range(1, count + 1):
                    rows = [replaced(box, axis, (at, at + 1)) for at in (edge - side * k, edge + side * k)]
                    source, target = (part.layouts[name].region(plane, each) for each in rows)
                    self.builder.add(Kind.copy, part.rank, self.compute, reads=[source], writes=[target], line="mirror")

    def _message(self, source: int, here: Region, target: int, there: Region, line: str) -> None:
        channel = self.builder.channel(source, target)
        self.builder.add(Kind.send, source, self.send, reads=[here], chan_out=channel, line=line)
        self.builder.add(Kind.recv, target, self.recv, writes=[there], chan_in=channel, line=line)

    def _plane(self, name: str, version: int) -> str:
        return plane_name(name, version % self.stencil.depth[name])


def _widened(box: Box, by: Widths) -> Box:
    return tuple((low - below, high + above) for (low, high), below, above in zip(box, *by, strict=True))


def plane_name(name: str, plane: int) -> str:
    """What the buffer of a plane is called."""
    return f"{name}_level{plane}"


def _later(region: Region, slots: int) -> Region:
    return region._replace(offset=region.offset + slots)
