"""bands: a sweep over one axis, repeated every step, cut into bands of steps, which ranks compute in skewed tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from dovetail.core import OperatorError, PlanError
from dovetail.ir import Operand, Work
from dovetail.loops.analysis.dependences import dependences
from dovetail.loops.analysis.sweeps import Sweep
from dovetail.loops.grid.blocks import Range, shares
from dovetail.loops.matrices import Vector
from dovetail.pipeline.decomposition import Cutting
from dovetail.pipeline.kernel_forms import elements, rows_of, ways_of_points
from dovetail.pipeline.names import lean_name
from dovetail.pipeline.skews import Lean, least_lean, waves
from dovetail.pipeline.sweeps import Inner, Pipelined
from dovetail.pipeline.tile_kernels import TileKernel
from dovetail.pipeline.tiles import Turn

ORDER = (0, 1)  # steps around points


class Band(NamedTuple):
    """So many steps, which one rank does tile by tile."""

    depth: int
    rank: int


MOST_BANDS = 1 << 20  # of a program


@dataclass(frozen=True)
class Line:
    """`depth` steps at a time on one rank after the other, round and round, in tiles of `grain` positions.

    Rank r does the bands r, r + ranks, …, and holds all positions meanwhile: a tile of a band needs what the last band
    has left at its positions, and a little beyond. `cutting`: of one part, for what is known of arrays.
    """

    cutting: Cutting
    ranks: int
    steps: int
    depth: int
    grain: int

    def __post_init__(self) -> None:
        if self.cutting.grid[0] < self.ranks:
            found = f"{self.cutting.grid[0]} points on {self.ranks} ranks"
            name = self.cutting.pipelined.name
            raise PlanError(f"{name}: a part would have no points", found=found, hint="fewer ranks, or a larger grid")

    @property
    def sweep(self) -> Sweep:
        return self.cutting.pipelined.sweeps[0]

    @cached_property
    def owned(self) -> list[Range]:
        """The positions of each rank's blocks."""
        return shares(self.cutting.grid[0], self.ranks)

    @cached_property
    def bands(self) -> list[Band]:
        """In turn; the first one is short where they do not divide evenly."""
        count = -(-self.steps // self.depth)
        if count > MOST_BANDS:
            hint = "fewer steps, and several calls, or deeper bands"
            raise PlanError(f"{self.steps} steps would be {count} bands", found=f"depth {self.depth}", hint=hint)
        depths = [self.steps - (count - 1) * self.depth, *[self.depth] * (count - 1)] if count else []
        return [Band(depth, number % self.ranks) for number, depth in enumerate(depths)]

    @property
    def moving(self) -> tuple[str, ...]:
        """The arrays that go along the axis and are touched; of others every rank has its own."""
        return tuple(name for name in self.sweep.reads if self.cutting.mapped_axis(name) is not None)

    @property
    def lean(self) -> int:
        return lean_of(self.cutting.pipelined)

    def length_of_tiles(self, depth: int) -> int:
        """Positions of a band as its tiles count them."""
        low, high = self.box
        return high - low + self.lean * (depth - 1) if high > low else 0

    @property
    def box(self) -> Range:
        return self.cutting.sweep_box(self.sweep)[0]

    def tiles(self, depth: int) -> Iterator[tuple[int, Lean]]:
        """The first position that each touches, in the order of the array, and what it has there."""
        (low, high), leaning, end = self.box, self.lean * (depth - 1), self.length_of_tiles(depth)
        for start in range(0, end, self.grain):
            beyond = min(start + self.grain, end)
            first, last = max(start - leaning, 0), min(beyond, high - low)
            lean = Lean(last - first, start - first, beyond - start)
            yield (low + first if self.sweep.signs[0] > 0 else high - last), lean

    def kinds(self) -> Iterator[tuple[int, Lean]]:
        """Steps and lean of every tile: first of whole rows, as it is measured, then of those of a run."""
        leaning = self.lean * (self.depth - 1)
        yield self.depth, Lean(self.grain + leaning, leaning, self.grain)
        for depth in dict.fromkeys([self.depth, *(band.depth for band in self.bands[:1])]):
            yield from ((depth, lean) for _, lean in self.tiles(depth))

    def block(self, array: str, rank: int) -> tuple[slice, ...]:
        """Where a rank's block lies in the whole array."""
        axes = self.cutting.axes(array)
        return tuple(slice(None) if axis is None else slice(*self.owned[rank]) for axis in axes)


def check_line(pipelined: Pipelined) -> None:
    """OperatorError where a nest over one axis cannot be run in bands of steps."""
    name = pipelined.name
    if pipelined.steps is None:
        hint = "ranks take bands of steps, so write a loop of steps around it, or call it on whole arrays"
        raise OperatorError(f"{name} is no pipeline: its grid has one axis, and it has no loop of steps", hint=hint)
    if len(pipelined.phases) > 1:
        what = "its grid has one axis, and a step has more than one loop or statement beside the loop"
        raise OperatorError(
            f"{name} is no pipeline: {what}", hint="one loop over the points, which may do several things"
        )


@lru_cache(maxsize=256)
def inner_of(pipelined: Pipelined) -> tuple[Inner, ...]:
    """All dependences, those of memory too, by steps and points."""
    found = dependences(pipelined.nest, pipelined.sweeps[0].statements)
    return tuple(Inner(each.distance, each) for each in found if any(each.distance))


@lru_cache(maxsize=256)
def lean_of(pipelined: Pipelined) -> int:
    """How far tiles of a band lean for each step."""
    return least_lean([inner.by for inner in inner_of(pipelined)], ORDER, 1, (1, 1))[0]


class BandKernel(TileKernel):
    """A tile of a band. Its cost goes by points, however many steps they are of."""

    def work(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        of_rows = super().work(reads, writes)
        points = of_rows.units * prod(self.sides)
        return of_rows._replace(key=f"{self.label}-{self.mark}:{writes[0].slot.dtype}", units=points)


def kernel_name(sweep: Sweep, depth: int, lean: Lean) -> str:
    """The name of the kernel of a tile of a band of `depth` steps."""
    return f"{sweep.name}_band{depth}{lean_name(lean)}"


def kernels_of(line: Line, dtypes: Mapping[str, str], names: Iterable[str]) -> Iterator[BandKernel]:
    """The kernels of these names, of the tiles of a line."""
    wanted = {*names}
    for depth, lean in line.kinds() if wanted else ():
        if (name := kernel_name(line.sweep, depth, lean)) in wanted:
            wanted.remove(name)
            yield _kernel(line.cutting, dtypes, name, depth, lean)
        if not wanted:
            break


def _kernel(cutting: Cutting, dtypes: Mapping[str, str], name: str, depth: int, lean: Lean) -> BandKernel:
    sweep, pipelined = cutting.pipelined.sweeps[0], cutting.pipelined
    inner = inner_of(pipelined)
    weights: Vector = waves([each.by for each in inner], ORDER)
    turns = Turn(sweep.signs[0], 0, weights[1]), Turn(1, lean_of(pipelined), weights[0])
    ways = ways_of_points(inner, ORDER, dtypes)
    places = elements(cutting, sweep, 0, ())
    about = (rows_of(cutting, sweep, 0), (), ((0, depth),), dtypes, turns, lean, 1)
    return BandKernel(name, sweep.name, sweep.statements, places, *about, *ways)
