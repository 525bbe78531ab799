"""Chains of tiles as Programs: each rank has the tiles along one axis, and passes on what the next ranks need of each.

Source: seed 003, "Mapping", "Non-overlapping" and "Overlapping schedule". What one step is, and which of the two is
faster, is left to costs: see `recurrence`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from dovetail.core import PlanError, WishError
from dovetail.ir import Builder, Kind, Program, Region, Slot
from dovetail.ir.types import Mode
from dovetail.loops.matrices import Matrix, Vector, transposed

NON_OVERLAPPING, OVERLAPPING = "non_overlapping", "overlapping"
SLOTS = {NON_OVERLAPPING: 1, OVERLAPPING: 2}  # steps whose messages there is room for


@dataclass(frozen=True)
class Chains:
    """A box of points in tiles. `shape`: points by loop; `mapped`: the loop whose tiles are on one rank, `grain` points
    of it each; `parts`: ranks by loop, in the order of the others. `deps`: columns are dependences, none negative.

    >>> Chains(((1, 0, 0), (0, 1, 0), (0, 0, 1)), (16, 16, 16384), (4, 4), 444).num_tiles
    37
    """

    deps: Matrix
    shape: Vector
    parts: Vector
    grain: int
    mapped: int = -1

    def __post_init__(self) -> None:
        if len(self.deps) != len(self.shape) or len(self.parts) != len(self.shape) - 1:
            found = f"{len(self.deps)} rows of dependences, {len(self.shape)} loops, parts of {len(self.parts)}"
            raise WishError("chains need a row of dependences for each loop, and parts of all but one", found=found)
        wrong = [vector for vector in transposed(self.deps) if min(vector) < 0 or not any(vector)]
        if wrong:
            hint = "skew the loops (`dovetail tile` names a tile that is legal)"
            raise PlanError(f"the dependence {wrong[0]} goes backwards through a side of a rectangular tile", hint=hint)
        if min(self.parts, default=1) < 1 or not max(self.back, 1) <= self.grain <= self.length:
            found = f"{self.grain} of {self.length} points, dependences of {self.back}; parts {self.parts}"
            raise PlanError(
                "a tile must hold its dependences along the mapped loop, and no more than that", found=found
            )
        short = [n // parts < reach for n, parts, reach in zip(self.across, self.parts, self.reach, strict=True)]
        if any(short) or any(n < parts for n, parts in zip(self.across, self.parts, strict=True)):
            found = f"{' x '.join(map(str, self.across))} points in {' x '.join(map(str, self.parts))} parts"
            raise PlanError("a part has fewer points than the next one needs of it", found=found, hint="fewer ranks")

    @property
    def axis(self) -> int:
        """The mapped loop, counted from the first."""
        return self.mapped % len(self.shape)

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    @property
    def across(self) -> Vector:
        """Points of the loops that are not mapped."""
        return _without(self.shape, self.axis)

    @cached_property
    def reach(self) -> Vector:
        """How far dependences go along the loops that are not mapped."""
        return _without(tuple(map(max, self.deps)), self.axis)

    @property
    def back(self) -> int:
        """How far they go along the mapped one."""
        return max(self.deps[self.axis])

    @property
    def num_tiles(self) -> int:
        return -(-self.length // self.grain)

    @property
    def num_ranks(self) -> int:
        return prod(self.parts)

    @cached_property
    def offsets(self) -> tuple[Vector, ...]:
        """Which next ranks need something: 1 for each loop along which they are the next."""
        reached = [_without(vector, self.axis) for vector in transposed(self.deps)]
        all_of_them = product((0, 1), repeat=len(self.parts))
        return tuple(
            f for f in all_of_them if any(f) and any(all(d for d, on in zip(v, f, strict=True) if on) for v in reached)
        )

    def span(self, tile: int) -> tuple[int, int]:
        """First point of a tile along the mapped loop, and their number."""
        low = tile * self.grain
        return low, min(self.grain, self.length - low)

    def place(self, rank: int) -> Vector:
        found = []
        for parts in reversed(self.parts):
            rank, at = divmod(rank, parts)
            found.append(at)
        return tuple(reversed(found))

    def box(self, rank: int) -> tuple[tuple[int, int], ...]:
        """The points of a rank along the loops that are not mapped."""
        at = zip(self.across, self.parts, self.place(rank), strict=True)
        return tuple((n * i // parts, n * (i + 1) // parts) for n, parts, i in at)

    def neighbour(self, rank: int, offset: Vector, way: int) -> int | None:
        """The rank that is next (`way` 1) or before (-1)."""
        place = [at + way * step for at, step in zip(self.place(rank), offset, strict=True)]
        if not all(0 <= at < parts for at, parts in zip(place, self.parts, strict=True)):
            return None
        number = 0
        for at, parts in zip(place, self.parts, strict=True):
            number = number * parts + at
        return number

    def plane(self, rank: int) -> Vector:
        """Points of one position of a rank, with those before it that its own depend on."""
        return tuple(high - low + reach for (low, high), reach in zip(self.box(rank), self.reach, strict=True))

    def face(self, rank: int, offset: Vector) -> Vector:
        """Points of one position that `rank` sends to the ranks at that offset."""
        sides = zip(self.box(rank), self.reach, offset, strict=True)
        return tuple(reach if on else high - low for (low, high), reach, on in sides)

    def slots(self, dtype: str) -> dict[str, tuple[Slot, ...]]:
        """What a slot of each buffer of the Programs is: one position."""
        ranks = range(self.num_ranks)
        planes = tuple(Slot(self.plane(rank), dtype) for rank in ranks)
        found = {"given": planes, "made": planes}
        for f in self.offsets:
            before = (self.neighbour(rank, f, -1) for rank in ranks)
            found[f"from{_name(f)}"] = tuple(
                Slot(self.face(rank if other is None else other, f), dtype)
                for rank, other in zip(ranks, before, strict=True)
            )
            found[f"to{_name(f)}"] = tuple(Slot(self.face(rank, f), dtype) for rank in ranks)
        return found

    # Programs

    def program(self, schedule: str) -> Program:
        """Receive, compute, send. Non-overlapping: one after the other. Overlapping: the next tile's messages come, and
        the last one's go, while a tile is computed."""
        return _Writer(self, schedule).program()

    def plain(self) -> Program:
        """All tiles on rank 0, in turn: what is right."""
        return _plain(self)


def _without(values: Sequence[int], axis: int) -> Vector:
    return tuple(value for k, value in enumerate(values) if k != axis)


def _name(offset: Vector) -> str:
    return "_" + "".join(map(str, offset))


def kernel_name(comes: Sequence[Vector], goes: Sequence[Vector]) -> str:
    """What the kernel of a tile is called, by the offsets of the messages that come and go.

    >>> kernel_name([(1, 0)], [(1, 0), (0, 1)])
    'tile_from_10_to_10_01'
    """
    words = [("from", comes), ("to", goes)]
    return "tile" + "".join(f"_{word}{''.join(map(_name, offsets))}" for word, offsets in words if offsets)


class _Writer:
    """The Program of one schedule."""

    def __init__(self, chains: Chains, schedule: str) -> None:
        if schedule not in SLOTS:
            raise PlanError(f"there is no schedule '{schedule}' of chains", hint=" or ".join(SLOTS))
        self.chains, self.room = chains, SLOTS[schedule]
        self.builder = Builder(f"{schedule}_chains", chains.num_ranks)
        self.compute = self.builder.lane("compute", "compute")
        self.send, self.recv = self.builder.lane("send", "net"), self.builder.lane("recv", "net")
        _declare(self.builder, chains, self.room * min(chains.grain, chains.length))
        self.computed: list[list[int]] = [[] for _ in range(chains.num_ranks)]
        self.sent: list[list[int]] = [[] for _ in range(chains.num_ranks)]  # the last send of each tile

    def program(self) -> Program:
        for tile in range(self.chains.num_tiles):
            for rank in range(self.chains.num_ranks):
                came = [self._receive(rank, tile, f, before) for f, before in linked(self.chains, rank, -1)]
                self._compute(rank, tile, came)
                self._send(rank, tile)
        return self.builder.build()

    def _ring(self, buffer: str, tile: int) -> Region:
        """Where a tile's messages lie."""
        return Region(buffer, tile % self.room * self.chains.grain, self.chains.span(tile)[1])

    def _earlier(self, rows: list[int], tile: int) -> list[int]:
        """What must be over before the place of a tile's messages is used anew."""
        return [rows[tile - self.room]] if tile >= self.room and len(rows) > tile - self.room else []

    def _receive(self, rank: int, tile: int, offset: Vector, before: int) -> int:
        after = self._earlier(self.computed[rank], tile)
        after += self._earlier(self.sent[rank], tile) if self.room == 1 else []
        where, channel = self._ring(f"from{_name(offset)}", tile), self.builder.channel(before, rank)
        line = f"tile {tile} from rank {before}"
        return self.builder.add(Kind.recv, rank, self.recv, writes=[where], chan_in=channel, after=after, line=line)

    def _compute(self, rank: int, tile: int, came: list[int]) -> None:
        comes, goes = ([f for f, _ in linked(self.chains, rank, way)] for way in (-1, 1))
        reads = [*_own(self.chains, tile), *(self._ring(f"from{_name(f)}", tile) for f in comes)]
        low, count = self.chains.span(tile)
        writes = [Region("made", low, count), *(self._ring(f"to{_name(f)}", tile) for f in goes)]
        call = self.builder.kernel(kernel_name(comes, goes), _whole(reads))
        after = [*came, *self._earlier(self.sent[rank], tile)]
        about = {"reads": reads, "writes": writes, "call": call, "after": after, "line": f"tile {tile}"}
        self.computed[rank].append(self.builder.add(Kind.compute, rank, self.compute, **about))  # type: ignore[arg-type]

    def _send(self, rank: int, tile: int) -> None:
        row = -1
        for offset, target in linked(self.chains, rank, 1):
            where, channel = self._ring(f"to{_name(offset)}", tile), self.builder.channel(rank, target)
            after, line = [self.computed[rank][tile]], f"tile {tile} to rank {target}"
            row = self.builder.add(Kind.send, rank, self.send, reads=[where], chan_out=channel, after=after, line=line)
        if row >= 0:
            self.sent[rank].append(row)


def _declare(builder: Builder, chains: Chains, room: int) -> None:
    builder.buffer("given", "input", chains.back + chains.length)
    builder.buffer("made", "output", chains.length)
    for f in chains.offsets:
        builder.buffer(f"from{_name(f)}", "scratch", room)
        builder.buffer(f"to{_name(f)}", "scratch", room)


def linked(chains: Chains, rank: int, way: int) -> Iterator[tuple[Vector, int]]:
    """The offsets at which a rank has a neighbour, and who that is."""
    for f in chains.offsets:
        other = chains.neighbour(rank, f, way)
        if other is not None:
            yield f, other


def _own(chains: Chains, tile: int, given: str = "given", made: str = "made") -> list[Region]:
    """What a tile reads of its own rank: what is given of it, and the positions before it."""
    (low, count), back = chains.span(tile), chains.back
    found = [Region(given, back + low, count)]
    return [*found, Region(made, low - back, back) if tile else Region(given, 0, back)] if back else found


def _whole(reads: Sequence[Region]) -> Sequence[Mode]:
    """A tile's points depend on all that it reads."""
    mode: Mode = "all"
    return (mode,) * len(reads)


def _plain(chains: Chains) -> Program:
    """Inputs go to rank 0, results come from there; faces are what the tiles before left."""
    b, ranks = Builder("plain_chains", chains.num_ranks), range(chains.num_ranks)
    lane, send, recv = b.lane("compute", "compute"), b.lane("send", "net"), b.lane("recv", "net")
    b.buffer("given", "input", chains.back + chains.length)
    b.buffer("made", "output", chains.length)
    everything = 0, chains.back + chains.length
    for rank in ranks:
        b.buffer(f"given{rank}", "scratch", everything[1])
        b.buffer(f"made{rank}", "scratch", chains.length)
        for f, _ in linked(chains, rank, 1):
            b.buffer(f"to{_name(f)}_of{rank}", "scratch", chains.length)
    pairs = [(Region("given", *everything), Region(f"given{rank}", *everything)) for rank in ranks]
    ready, row = [_moved(b, send, recv, rank, 0, *pair) for rank, pair in enumerate(pairs)], -1
    for tile, rank in product(range(chains.num_tiles), ranks):
        low, count = chains.span(tile)
        comes, goes = list(linked(chains, rank, -1)), [f for f, _ in linked(chains, rank, 1)]
        reads = _own(chains, tile, f"given{rank}", f"made{rank}")
        reads += [Region(f"to{_name(f)}_of{before}", low, count) for f, before in comes]
        writes = [Region(f"made{rank}", low, count), *(Region(f"to{_name(f)}_of{rank}", low, count) for f in goes)]
        call = b.kernel(kernel_name([f for f, _ in comes], goes), _whole(reads))
        row = b.add(
            Kind.compute, 0, lane, reads=reads, writes=writes, call=call, after=[ready[rank]] if not tile else []
        )
    for rank in ranks:
        _moved(b, send, recv, 0, rank, Region(f"made{rank}", 0, chains.length), Region("made", 0, chains.length), row)
    return b.build()


def _moved(
    b: Builder, send: int, recv: int, source: int, target: int, here: Region, there: Region, after: int = -1
) -> int:
    """A region of one rank to another, or a copy on the same."""
    waits = [after] if after >= 0 else []
    if source == target:
        return b.add(Kind.copy, source, b.lane("compute", "compute"), reads=[here], writes=[there], after=waits)
    channel = b.channel(source, target)
    b.add(Kind.send, source, send, reads=[here], chan_out=channel, after=waits)
    return b.add(Kind.recv, target, recv, writes=[there], chan_in=channel)
