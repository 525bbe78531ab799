"""storage: the buffers of a stencil's parts: planes, ghost rows, and how the user's arrays enter and leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from dovetail.core import PlanError
from dovetail.ir import Kind, Region
from dovetail.loops.grid.blocks import Box, Layout, around, boxes, meet, volume
from dovetail.loops.grid.ordered_builder import OrderedBuilder
from dovetail.stencil.ghosts import Along
from dovetail.stencil.halo_depth import Widths, blocks_of, keeps, wider
from dovetail.stencil.sweeps import Event, Stencil, last_version


@dataclass(frozen=True)
class Decomposition:
    """How a stencil on a grid is decomposed and run.

    Parameters
    ----------
    rows : tuple of int
        Rows of the grid, by axis.
    boxes : mapping
        The rows that each sweep computes, by the sweep's name.
    cut : tuple of int
        Number of parts along each axis.
    steps : int
        Steps of the run.
    sweeps : int
        Sweeps between two exchanges of ghost rows.
    overlapped : bool
        Whether rows that need no ghosts are computed while ghosts travel.
    tile : int
        Rows along the first axis that pass through all sweeps of a block together; 0: each sweep takes all rows.
    test : int
        Steps between tests of convergence; 0: none (see `convergence`).
    shares : tuple of int
        Rows of each part along the first axis; empty: equal parts.
    priced : bool
        For predictions: the first sweep of a tile calls the kernel whose cost is that of rows in memory.
    """

    rows: tuple[int, ...]
    boxes: Mapping[str, Box]
    cut: tuple[int, ...]
    steps: int
    sweeps: int = 1
    overlapped: bool = False
    tile: int = 0
    test: int = 0
    shares: tuple[int, ...] = ()
    priced: bool = False

    @property
    def owned(self) -> list[Box]:
        """The box that each part owns."""
        return boxes(self.rows, self.cut, self.shares)


@dataclass
class Part:
    """A part of the grid. `place`: its index along each axis; `own`: its box; `layouts`: how it holds each array."""

    rank: int
    place: tuple[int, ...]
    own: Box
    layouts: dict[str, Layout] = field(default_factory=dict)


class Parts:
    """The parts of the grid and their buffers, and a builder that gets each rank's ops in sequential order.

    `given`: the box of each rank's arrays, if they are gathered on rank 0.
    """

    def __init__(
        self, stencil: Stencil, how: Decomposition, ranks: int, owners: Sequence[int], given: Sequence[Box] = ()
    ) -> None:
        self.stencil, self.how, self.axes = stencil, how, stencil.row_axes
        self.builder = b = OrderedBuilder(f"{stencil.name}_{'x'.join(map(str, how.cut))}", ranks)
        self.compute, self.send, self.recv = b.lane("compute", "compute"), b.lane("send", "net"), b.lane("recv", "net")
        self.edged = {name for name, box in how.boxes.items() if box != tuple((0, rows) for rows in how.rows)}
        self.blocks = list(blocks_of(stencil, how.steps, how.sweeps, how.test, self.edged))
        self._check_ends()
        own = how.owned
        places = product(*map(range, how.cut))
        self.parts = [Part(rank, place, box) for rank, place, box in zip(owners, places, own, strict=True)]
        self.at = {part.place: part for part in self.parts}
        self.given, self.gathers = list(given) or own, bool(given)
        self.direct = set() if self.gathers else {n for n, depth in stencil.depth.items() if depth > 1} - self._padded()
        self.leaving = self._unread()
        self._entered: dict[tuple[int, str, int], list[Box]] = {}
        for name in stencil.depth:
            self._declare(name)

    def _check_ends(self) -> None:
        """Raise PlanError if ghost rows of a periodic array beyond the grid's ends would be computed from a reflecting
        array, which is mirrored there."""
        boundary = self.stencil.boundary
        for block in self.blocks:
            for event, beyond in zip(block.events, block.beyond, strict=True):
                name, wide = event.sweep.target, any(beyond.low) or any(beyond.high)
                source = next((o.array for o in event.sweep.operands if boundary[o.array] == "reflecting"), None)
                if wide and source and boundary[name] == "periodic":
                    what = f"ghost rows of {name} go around the ends, but those of {source} are mirrored there"
                    hint = "use depth=0, which exchanges ghost rows before every sweep"
                    raise PlanError(f"{self.stencil.name} cannot be cut like this: {what}", hint=hint)

    def _padded(self) -> set[str]:
        """Return the arrays whose rows have margins in planes."""
        return {name for name, margins in self.stencil.margins.items() if any(margins)}

    def _unread(self) -> dict[str, int]:
        """Return the final version of each array, if no sweep reads it and its rows have no margins in planes. Such
        versions are computed straight into the result."""
        events = (event for block in self.blocks for event in block.events)
        read = {(o.array, version) for e in events for o, version in zip(e.sweep.operands, e.reads, strict=True)}
        last = {name: last_version(self.stencil, name, self.how.steps) for name in self.stencil.written}
        fits = ((name, v) for name, v in last.items() if name in self.direct and v >= self.stencil.given[name])
        return {name: version for name, version in fits if (name, version) not in read}

    def _declare(self, name: str) -> None:
        """Declare the buffers of an array: the user's array, its planes, and its result."""
        most = self._most(name)
        for part in self.parts:
            part.layouts[name] = Layout(self.wide(part, name, most))
        self._check_mirrors(name)
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

    def _most(self, name: str) -> Widths:
        """Return the most ghosts of an array that any block needs or computes."""
        found = Widths((0,) * self.axes, (0,) * self.axes)
        for block in self.blocks:
            for (array, _), width in block.needs.items():
                found = wider(found, width) if array == name else found
            for event, width in zip(block.events, block.beyond, strict=True):
                found = wider(found, width) if event.sweep.target == name else found
        return found

    def keeps(self, event: Event) -> bool:
        return keeps(self.stencil, self.edged, event, self.leaving)

    def neighbour(self, part: Part, name: str, axis: int, hops: int) -> Part | None:
        """The part `hops` parts further along an axis; a periodic array wraps around."""
        place = list(part.place)
        place[axis] += hops
        if self.stencil.boundary[name] == "periodic":
            place[axis] %= self.how.cut[axis]
        return self.at.get(tuple(place))

    def along(self, part: Part, name: str, axis: int) -> Along:
        return Along(part.own[axis], self.how.rows[axis], self.stencil.boundary[name])

    def wide(self, part: Part, name: str, width: Widths) -> Box:
        """Return the rows that a part holds with `width` ghosts on either side of each axis."""
        return tuple(self.along(part, name, axis).span(*each) for axis, each in enumerate(zip(*width, strict=True)))

    def _check_mirrors(self, name: str) -> None:
        """Raise PlanError for parts so narrow that ghost rows are mirror images of rows that they do not hold."""
        if self.stencil.boundary[name] != "reflecting":
            return
        swept = {w for b in self.blocks for e, w in zip(b.events, b.beyond, strict=True) if e.sweep.target == name}
        for part, (axis, rows) in product(self.parts, enumerate(self.how.rows)):
            first, last = part.layouts[name].held[axis]
            low, high = part.own[axis]
            widths = ((w.low[axis], w.high[axis]) for w in swept)
            if first <= -rows or last >= 2 * rows:
                what = f"along axis {axis} {max(-first, last - rows)} rows would be mirrored, of {rows}"
            elif any(self.along(part, name, axis).span(*each) != (low - each[0], high + each[1]) for each in widths):
                what = f"part {part.place} is too narrow along axis {axis} to be mirrored"
            else:
                continue
            hint = "use fewer sweeps between exchanges, or fewer parts"
            raise PlanError(f"{self.stencil.name} cannot be cut like this: {what}", hint=hint)

    # Copies between the user's arrays and planes

    def is_given(self, name: str, version: int) -> bool:
        """Return whether rows of a version are read directly from the user's array."""
        return name in self.direct and version < self.stencil.given[name]

    def region(self, part: Part, name: str, version: int, box: Box) -> Region:
        """Return the region of some rows of a version: in the user's array, in the result, or in a plane.

        Rows of the user's array that are read together with ghosts are first copied to the plane.
        """
        given = self.is_given(name, version)
        if given and meet(box, part.own) == box:
            return _later(Layout(part.own).region(name, box), version * volume(part.own))
        if self.leaving.get(name) == version:
            return _later(
                Layout(part.own).region(f"{name}_out", box), (self.stencil.given[name] - 1) * volume(part.own)
            )
        if given:
            self._enter(part, name, version, meet(box, part.own))
        return self._in_plane(part, name, version, box)

    def _enter(self, part: Part, name: str, version: int, box: Box) -> None:
        """Append copies of the user's rows to their plane, each row once."""
        entered = self._entered.setdefault((part.rank, name, version), [])
        fresh = [box] if volume(box) else []
        for other in entered:
            if any(volume(meet(each, other)) for each in fresh):
                fresh = [piece for each in fresh for piece in around(each, meet(each, other))]
        for each in fresh:
            source, target = self.region(part, name, version, each), self._in_plane(part, name, version, each)
            self._move(part.rank, name, source, target, "enter")
        entered += fresh

    def _in_plane(self, part: Part, name: str, version: int, box: Box) -> Region:
        return part.layouts[name].region(self.plane(name, version), box)

    def enter(self, name: str, source: str) -> None:
        """Append copies of the user's versions into their planes, unless sweeps read them directly."""
        for part in self.parts if name not in self.direct else ():
            outside = Layout(part.own)
            for version in range(self.stencil.given[name]):
                region = _later(outside.region(source, part.own), version * outside.slots)
                self._move(part.rank, name, region, self._in_plane(part, name, version, part.own), "enter")

    def leave(self, name: str, target: str) -> None:
        """Append copies of the last versions, as many as the user gave, unless they were computed in the result."""
        last, given = last_version(self.stencil, name, self.how.steps), self.stencil.given[name]
        for part in self.parts:
            outside = Layout(part.own)
            for number in range(given - (name in self.leaving)):
                here = self.region(part, name, last - given + 1 + number, part.own)
                there = _later(outside.region(target, part.own), number * outside.slots)
                self._move(part.rank, name, here, there, "leave")

    def _move(self, rank: int, name: str, source: Region, target: Region, way: str) -> None:
        about = {"reads": [source], "writes": [target], "line": f"{way} {name}"}
        if any(self.stencil.margins[name]):
            call = self.builder.kernel(move_name(way, name), ("each",))
            self.builder.add(Kind.compute, rank, self.compute, call=call, **about)  # type: ignore[arg-type]
        else:
            self.builder.add(Kind.copy, rank, self.compute, **about)  # type: ignore[arg-type]

    def collect(self, name: str) -> None:
        """Send all ranks' blocks to rank 0."""
        for rank, (own, version, there) in self._pieces(name):
            here = Region(name, version * volume(own), volume(own))
            if rank == 0:
                self.builder.add(Kind.copy, 0, self.compute, reads=[here], writes=[there])
            else:
                self.message(rank, here, 0, there, f"collect {name}")

    def distribute(self, name: str) -> None:
        """Send the result from rank 0 to all ranks."""
        for rank, (own, version, there) in self._pieces(name):
            here = Region(f"{name}_out", version * volume(own), volume(own))
            if rank == 0:
                self.builder.add(Kind.copy, 0, self.compute, reads=[there], writes=[here])
            else:
                self.message(0, there, rank, here, f"distribute {name}")

    def _pieces(self, name: str) -> Iterator[tuple[int, tuple[Box, int, Region]]]:
        """Yield each rank's box of each version, and where it lies on rank 0."""
        whole = Layout(self.parts[0].own)
        for rank, own in enumerate(self.given):
            for version in range(self.stencil.given[name]):
                there = _later(whole.region(f"{name}_all", own), version * whole.slots)
                yield rank, (own, version, there)

    def message(self, source: int, here: Region, target: int, there: Region, line: str) -> None:
        channel = self.builder.channel(source, target)
        self.builder.add(Kind.send, source, self.send, reads=[here], chan_out=channel, line=line)
        self.builder.add(Kind.recv, target, self.recv, writes=[there], chan_in=channel, line=line)

    def plane(self, name: str, version: int) -> str:
        return plane_name(name, version % self.stencil.depth[name])


def far_name(sweep: str) -> str:
    """Return the name of a sweep's kernel for rows that come from memory, not from a cache."""
    return f"{sweep}_far"


def move_name(way: str, array: str) -> str:
    """Return the name of the kernel that copies rows into planes with margins ("enter"), or out of them ("leave")."""
    return f"{way}_{array}"


def plane_name(name: str, plane: int) -> str:
    """Return the name of a plane's buffer."""
    return f"{name}_level{plane}"


def _later(region: Region, slots: int) -> Region:
    return region._replace(offset=region.offset + slots)
