"""band_operator: the operator of a sweep over one axis, repeated every step; its schedules are bands of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import ClassVar

from dovetail.core import PlanError, parse_count
from dovetail.ir import SERIAL, Builder, Kind, Option, Program, Region, Sample, Schedule, Slot, Space, Workload
from dovetail.ir.operator import Costs
from dovetail.loops.analysis.check_counts import check_count
from dovetail.pipeline.band_diagram import space_of_bands
from dovetail.pipeline.band_program import held_name, line_program, own_name, plain_program, received_name
from dovetail.pipeline.bands import Line, kernel_name, kernels_of
from dovetail.pipeline.names import whole
from dovetail.pipeline.operator import LEAST_POINTS, TILES, PipelineOperator, halvings
from dovetail.pipeline.skews import Skew

BANDS = "bands"
USUAL_DEPTH, LEAST_DEPTH = 64, 8  # steps of a band: if nothing was tuned, and the least that is tried
SAMPLE_DEPTH = 16  # steps of a benchmarked tile; its cost depends on its number of points
MODELLED = 4  # rounds of bands that a prediction simulates; longer runs are extrapolated


class BandOperator(PipelineOperator):
    """A sweep over a grid of one axis, e.g. "1000000", in every step.

    Ranks compute bands of steps in rotation, tile by tile, and send each tile's results to the next rank.

    Schedules have the parameters `depth` (steps of a band) and `grain` (positions of a tile).
    """

    asked_options: ClassVar[tuple[str, ...]] = ("depth", "grain")
    families: ClassVar[tuple[str, ...]] = (SERIAL, BANDS)
    options: ClassVar[tuple[Option, ...]] = (Option("depth", int, "Steps of a band.", least=1, of="schedules"),)

    # Schedules

    def serial(self, ranks: int) -> Schedule:
        """Return the schedule with one band and tile per rank: each rank begins when the one before has finished."""
        depth = max(-(-self._steps // ranks), 1)
        return self._schedule(SERIAL, depth, self._line(ranks, depth, 1).length_of_tiles(depth))

    def default_schedule(self, ranks: int, mapped: int | None = None) -> Schedule:
        """Return the untuned schedule: equally many bands per rank, in so many tiles that all ranks begin early."""
        rounds = max(-(-self._steps // (ranks * USUAL_DEPTH)), 1)
        depth = max(-(-self._steps // (ranks * rounds)), 1)
        length = self._line(ranks, depth, 1).length_of_tiles(depth)
        return self._schedule(BANDS, depth, max(-(-length // (TILES * ranks)), self._least(depth)))

    def _schedule(self, family: str, depth: int, grain: int) -> Schedule:
        return Schedule.of(family, depth=depth, grain=max(grain, 1))

    def _least(self, depth: int) -> int:
        """Return the shortest tile that is tried."""
        return max(LEAST_POINTS // depth, 1)

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Yield the serial schedule; then bands of ever fewer steps, each in tiles of ever fewer positions."""
        yield self.serial(costs.ranks)
        deepest = max(-(-self._steps // costs.ranks), 1)
        for depth in (asked,) if (asked := costs.options.get("depth")) else halvings(deepest, LEAST_DEPTH):
            length = self._line(costs.ranks, depth, 1).length_of_tiles(depth)
            least = max(self._least(depth), length // (TILES * TILES * costs.ranks))
            for grain in (asked,) if (asked := costs.options.get("grain")) else halvings(-(-length // 2), least):
                yield self._schedule(BANDS, depth, grain)

    def refine(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        return iter(())

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield schedules with tiles, or bands, half and twice as long."""
        for name, most in (("grain", self.grid[0]), ("depth", self._steps)):
            yield from (other.as_of(BANDS) for other in self.scaled(schedule, name, most))

    def describe(self, schedule: Schedule, ranks: int) -> str:
        line = self.line(schedule, ranks)
        tiles = -(-line.length_of_tiles(line.depth) // line.grain)
        skewed = f", skewed by {line.skew}" if line.skew else ""
        return f"{len(line.bands)} bands of {line.depth} steps in turn, {tiles} tiles of {line.grain}{skewed}"

    # Programs

    def _line(self, ranks: int, depth: int, grain: int, steps: int | None = None) -> Line:
        return Line(self.cutting((1,), 0), ranks, self._steps if steps is None else steps, depth, grain)

    def line(self, schedule: Schedule, ranks: int) -> Line:
        """Return how a schedule cuts the sweep into bands and tiles. Raises PlanError if it does not fit."""
        depth, grain = schedule.get("depth"), schedule.get("grain")
        if depth is None or grain is None:
            raise PlanError(
                f"the schedule does not fit {self.name}", found=str(schedule), hint="give a depth and a grain"
            )
        return self._line(ranks, parse_count(depth, "depth", least=1), parse_count(grain, "grain", least=1))

    def program(self, schedule: Schedule, ranks: int) -> Program:
        return _program(self.line(schedule, ranks))

    def reference(self, schedule: Schedule, ranks: int) -> Program:
        line = self.line(schedule, ranks)
        found = plain_program(line)
        check_count(self.nest, line.cutting.values, found, self.workload(found, schedule))
        return found

    def space(self, schedule: Schedule, ranks: int) -> Space | None:
        return space_of_bands(self.line(schedule, ranks))

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, float]:
        """Simulate at most MODELLED rounds of bands."""
        depth = int(schedule["depth"])
        steps = min(self._steps, MODELLED * ranks * depth)
        program = _program(self._line(ranks, depth, int(schedule["grain"]), steps))
        return program, self.workload(program, schedule), max(self._steps, 1) / max(steps, 1)

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        cutting, slots = self.cutting((1,), 0), dict[str, tuple[Slot, ...]]()
        for array, dtype in self.dtypes.items():
            names = [array, f"{array}_out", held_name(array), received_name(array)]
            names += [own_name(array, rank) for rank in range(program.num_ranks)]
            slot = (Slot(cutting.own_plane(array, 0), dtype),) * program.num_ranks
            slots |= dict.fromkeys(names, slot)
        known = {buffer.name for buffer in program.buffers}
        wanted = (kernel.name for kernel in program.kernels)
        kernels = kernels_of(self.line(schedule, program.num_ranks), self.dtypes, wanted)
        found = Workload({n: s for n, s in slots.items() if n in known}, tuple(kernel.form for kernel in kernels))
        return self.signed(found)

    # Arrays

    def _slot_axis(self, name: str, schedule: Schedule) -> int | None:
        return self.cutting((1,), 0).mapped_axis(name)

    def asked(self, ranks: int, depth: int | None = None, grain: int | None = None) -> Schedule:  # type: ignore[override]
        """Return the default schedule with these options."""
        usual = self.default_schedule(ranks)
        return usual.with_parameters(depth=depth or usual["depth"], grain=grain or usual["grain"])

    def _boxes(self, name: str, schedule: Schedule, ranks: int) -> list[tuple[slice, ...]]:
        line = self._line(ranks, 1, 1)
        return [line.block(name, rank) for rank in range(ranks)]

    # Benchmarks

    def samples(self, ranks: int) -> Sequence[Sample]:
        """Return benchmarks of tiles of some steps, by number of points."""
        line = self._line(ranks, 1, 1)
        low, high = line.box
        depth = min(SAMPLE_DEPTH, max(self._steps, 1), max((high - low) // max(2 * line.skew, 1), 1))
        width = high - low - line.skew * (depth - 1)
        if width < 1:
            return []
        add = _TilesAlone(line, depth, width)
        tiles: Callable[[int], Schedule] = lambda points: self._schedule(BANDS, depth, add.of(points))  # noqa: E731
        return [Sample(line.sweep.name, depth * width, add, tiles)]


class _TilesAlone:
    """Append tiles of given numbers of points to a program, on every rank."""

    def __init__(self, line: Line, depth: int, most: int) -> None:
        self.line, self.depth, self.most = line, depth, most

    def of(self, points: int) -> int:
        """Return the positions of a tile of `points` points."""
        return min(max(points // self.depth, 1), self.most)

    def __call__(self, b: Builder, ranks: int, amounts: Sequence[int]) -> dict[int, list[int]]:
        cutting, sweep = self.line.cutting, self.line.sweep
        lane, found = b.lane("compute", "compute"), dict[int, list[int]]()
        for array in sweep.reads:
            moves = array in self.line.moving
            b.buffer(held_name(array) if moves else array, "scratch" if moves else "input", cutting.length(array))
        shift = self.line.skew * (self.depth - 1)
        for rank, amount in product(range(ranks), amounts):
            width = self.of(amount)
            skew, low = Skew(width + shift, shift, width), self.line.box[0]
            reads = []
            for array in sweep.reads:
                first, end = cutting.span(sweep, array, (low, low + skew.length))
                reads.append(Region(held_name(array) if array in self.line.moving else array, first, end - first))
            writes = [Region(held_name(array), low, skew.length) for array in sweep.reads if array in sweep.targets]
            call = b.kernel(kernel_name(sweep, self.depth, skew), whole(len(reads)))
            row = b.add(Kind.compute, rank, lane, call=call, reads=reads, writes=writes)
            found.setdefault(rank, []).append(row)
        return found


@lru_cache(maxsize=64)
def _program(line: Line) -> Program:
    return line_program(line)
