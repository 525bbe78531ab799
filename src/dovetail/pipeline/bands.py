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
from dovetail.pipeline.names import skew_name
from dovetail.pipeline.skews import Skew, least_skew, waves
from dovetail.pipeline.sweeps import Inner, Pipelined
from dovetail.pipeline.tile_kernels import TileKernel
from dovetail.pipeline.tiles import Turn

ORDER = (0, 1)  # order of the loops: steps outside, points inside


class Band(NamedTuple):
    """A number of steps, which one rank computes tile by tile."""

    depth: int
    rank: int


MOST_BANDS = 1 << 20  # of a program


@dataclass(frozen=True)
class Line:
    """A sweep over one axis, cut into bands of `depth` steps, each in tiles of `grain` positions.

    Rank r computes bands r, r + ranks, … and holds all positions: a tile reads what the band before left at its
    positions and slightly beyond. `cutting`: the grid as a single part, which describes the arrays.
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
        """The positions that each rank's block contains."""
        return shares(self.cutting.grid[0], self.ranks)

    @cached_property
    def bands(self) -> list[Band]:
        """The bands, in order; the first one is shorter if `depth` does not divide `steps`."""
        count = -(-self.steps // self.depth)
        if count > MOST_BANDS:
            hint = "use deeper bands, or several calls of fewer steps"
            raise PlanError(f"{self.steps} steps would be {count} bands", found=f"depth {self.depth}", hint=hint)
        depths = [self.steps - (count - 1) * self.depth, *[self.depth] * (count - 1)] if count else []
        return [Band(depth, number % self.ranks) for number, depth in enumerate(depths)]

    @property
    def moving(self) -> tuple[str, ...]:
        """The arrays along the axis that the sweep reads or writes; every rank has all of the others."""
        return tuple(name for name in self.sweep.reads if self.cutting.mapped_axis(name) is not None)

    @property
    def skew(self) -> int:
        return skew_of(self.cutting.pipelined)

    def length_of_tiles(self, depth: int) -> int:
        """Return the positions that a band's tiles must cover: more than the sweep has if tiles are skewed."""
        low, high = self.box
        return high - low + self.skew * (depth - 1) if high > low else 0

    @property
    def box(self) -> Range:
        return self.cutting.sweep_box(self.sweep)[0]

    def tiles(self, depth: int) -> Iterator[tuple[int, Skew]]:
        """Yield the first position, in the array's order, that each tile touches, and the tile's extent."""
        (low, high), shift, end = self.box, self.skew * (depth - 1), self.length_of_tiles(depth)
        for start in range(0, end, self.grain):
            beyond = min(start + self.grain, end)
            first, last = max(start - shift, 0), min(beyond, high - low)
            skew = Skew(last - first, start - first, beyond - start)
            yield (low + first if self.sweep.signs[0] > 0 else high - last), skew

    def kinds(self) -> Iterator[tuple[int, Skew]]:
        """Yield (steps, extent) of every kind of tile: first that of benchmarks, with whole rows, then a run's."""
        shift = self.skew * (self.depth - 1)
        yield self.depth, Skew(self.grain + shift, shift, self.grain)
        for depth in dict.fromkeys([self.depth, *(band.depth for band in self.bands[:1])]):
            yield from ((depth, skew) for _, skew in self.tiles(depth))

    def block(self, array: str, rank: int) -> tuple[slice, ...]:
        """Return where a rank's block lies in the whole array."""
        axes = self.cutting.axes(array)
        return tuple(slice(None) if axis is None else slice(*self.owned[rank]) for axis in axes)


def check_line(pipelined: Pipelined) -> None:
    """Raise OperatorError if a nest over one axis cannot run in bands of steps."""
    name = pipelined.name
    if pipelined.steps is None:
        hint = "ranks compute bands of steps: write a loop of steps around the sweep, or call the nest on whole arrays"
        raise OperatorError(f"{name} is no pipeline: its grid has one axis, and it has no loop of steps", hint=hint)
    if len(pipelined.phases) > 1:
        what = "its grid has one axis, and a step has more than one loop or statement beside the loop"
        raise OperatorError(
            f"{name} is no pipeline: {what}", hint="write one loop over the points; it may contain several statements"
        )


@lru_cache(maxsize=256)
def inner_of(pipelined: Pipelined) -> tuple[Inner, ...]:
    """Return all dependences, anti- and output dependences included, with their distances in steps and points."""
    found = dependences(pipelined.nest, pipelined.sweeps[0].statements)
    return tuple(Inner(each.distance, each) for each in found if any(each.distance))


@lru_cache(maxsize=256)
def skew_of(pipelined: Pipelined) -> int:
    """Return how many positions the tiles of a band shift from one step to the next."""
    return least_skew([inner.by for inner in inner_of(pipelined)], ORDER, 1, (1, 1))[0]


class BandKernel(TileKernel):
    """A kernel that computes a tile of a band. Its cost depends on its number of points, in however many steps."""

    def work(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        of_rows = super().work(reads, writes)
        points = of_rows.units * prod(self.sides)
        return of_rows._replace(key=f"{self.label}-{self.mark}:{writes[0].slot.dtype}", units=points)


def kernel_name(sweep: Sweep, depth: int, skew: Skew) -> str:
    """Return the name of the kernel of a tile of a band of `depth` steps."""
    return f"{sweep.name}_band{depth}{skew_name(skew)}"


def kernels_of(line: Line, dtypes: Mapping[str, str], names: Iterable[str]) -> Iterator[BandKernel]:
    """Yield the kernels with these names, of the tiles of a line."""
    wanted = {*names}
    for depth, skew in line.kinds() if wanted else ():
        if (name := kernel_name(line.sweep, depth, skew)) in wanted:
            wanted.remove(name)
            yield _kernel(line.cutting, dtypes, name, depth, skew)
        if not wanted:
            break


def _kernel(cutting: Cutting, dtypes: Mapping[str, str], name: str, depth: int, skew: Skew) -> BandKernel:
    sweep, pipelined = cutting.pipelined.sweeps[0], cutting.pipelined
    inner = inner_of(pipelined)
    weights: Vector = waves([each.by for each in inner], ORDER)
    turns = Turn(sweep.signs[0], 0, weights[1]), Turn(1, skew_of(pipelined), weights[0])
    ways = ways_of_points(inner, ORDER, dtypes)
    places = elements(cutting, sweep, 0, ())
    about = (rows_of(cutting, sweep, 0), (), ((0, depth),), dtypes, turns, skew, 1)
    return BandKernel(name, sweep.name, sweep.statements, places, *about, *ways)
