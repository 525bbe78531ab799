"""operator: PipelineOperator, a nest whose iterations depend on one another; its schedules are pipelines of tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import getdoc
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.core import OperatorError, PlanError, parse_count
from dovetail.ir import SERIAL, Option, Program, Sample, Schedule, Space, Workload
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.operator import Costs
from dovetail.ir.registry import class_name
from dovetail.loops.analysis.check_counts import check_count
from dovetail.loops.grid.blocks import cuts, grid_text, surface
from dovetail.loops.grid.grid_operator import GridOperator
from dovetail.loops.types import DTYPES
from dovetail.pipeline.decomposition import Cutting
from dovetail.pipeline.kernel_forms import add_moves, add_tiles, workload_of
from dovetail.pipeline.pipeline_program import How, pipeline_program, plain_program
from dovetail.pipeline.sweeps import Pipelined, Single
from dovetail.pipeline.tile_diagram import space_of_tiles

if TYPE_CHECKING:
    from dovetail.loops.nest import Nest

BLOCKING, OVERLAPPED = "blocking", "overlapped"
LEAST_POINTS = 1 << 10  # fewest points of a tile: overhead dominates smaller ones
SAME = 1.01  # a blocking schedule within this factor of the overlapped one's time counts as equally fast
HIDES_NOTHING = 0.05  # if messages take at most this share of a blocking schedule's time, there is nothing to gain
PIPELINES_ALREADY = "Blocking sends already overlap here: no send waits long enough for overlap to gain."
NOTHING_TO_HIDE = "Do not overlap: nothing to hide. Messages alone would take {share:.1%} of the time."
TILES = 8  # tiles per rank if nothing was tuned
MODELLED = 256  # tiles of a rank that are simulated; a longer run is predicted in proportion


@dataclass(frozen=True)
class PipelineOperator(GridOperator):
    """A nest on a grid, e.g. "1000x1000", whose iterations depend on one another.

    Every rank has a block of the grid, computes it tile by tile, and sends each tile's faces to the next ranks.

    Parameters
    ----------
    grid : tuple of int, or str
        Points along each axis: (1000, 1000), or "1000x1000" as on the command line.
    steps : int
        Iterations of the step loop, if there is one.
    dtype : str
        Type of the arrays that declare none.

    Notes
    -----
    Schedules have the parameters `cut` (parts along each axis), `mapped` (the axis along which one rank's tiles follow
    one another), `grain` (positions of a tile along it) and `overlapped` (messages travel while the next tile is
    computed).
    """

    name: ClassVar[str] = "pipeline"
    families: ClassVar[tuple[str, ...]] = (SERIAL, BLOCKING, OVERLAPPED)
    pipelined: ClassVar[Pipelined]
    asked_options: ClassVar[tuple[str, ...]] = ("cut", "mapped", "grain", "overlapped")
    test: ClassVar[int] = 0  # a pipeline tests no convergence
    options: ClassVar[tuple[Option, ...]] = ()

    def __post_init__(self) -> None:
        if self.steps != 1 and not self.nest.parameters:
            raise OperatorError(f"{self.name} has no steps", found=f"steps={self.steps}", hint="leave `steps` out")
        super().__post_init__()

    @property
    def shape(self) -> Sequence[str | int]:
        return self.pipelined.shape

    @property
    def written(self) -> Sequence[str]:
        return self.pipelined.written

    @property
    def title(self) -> str:
        steps = f", {self.steps} steps" if self.pipelined.steps else ""
        return f"{self.name} {' × '.join(map(str, self.grid))}{steps}, {self.dtypes[self._grid_array]}"

    @property
    def _grid_array(self) -> str:
        return self.pipelined.sweeps[0].targets[0]

    def resolve(self, facts: Mapping[str, Any], ranks: int) -> tuple[PipelineOperator, tuple[str, ...]]:
        self.serial(ranks)
        return self, ()

    # Schedules

    @property
    def mapped(self) -> int:
        """The axis along which one rank's tiles follow one another, unless another is asked for.

        It is the first eligible axis at least half as long as the longest, so that slots lie as the arrays do. Axes
        along which tiles need no skew are preferred.
        """
        mappable = self.pipelined.mappable
        upright = [axis for axis in mappable if axis in self.pipelined.forward]
        lengths = {axis: self.grid[axis] for axis in upright or mappable}
        return next(axis for axis, length in lengths.items() if 2 * length >= max(lengths.values()))

    def serial(self, ranks: int) -> Schedule:
        """Return the schedule with one tile per rank: each rank begins when the one before has finished. It is cut so
        that the fewest elements cross between parts."""
        fitting = list(self._ways(ranks, self.mapped))
        if not fitting:
            found = (
                f"{grid_text(self.grid)} points; axes that can be cut: {self.pipelined.forward}, except {self.mapped}"
            )
            raise OperatorError(
                f"{ranks} ranks cannot each have a part of {self.title}", found=found, hint="fewer ranks"
            )
        best = min(fitting, key=_surface)
        return Schedule.of(SERIAL, cut=best.cut, mapped=best.mapped, grain=best.length_of_tiles)

    def default_schedule(self, ranks: int, mapped: int | None = None) -> Schedule:
        """Return the untuned schedule: overlapped, in so many tiles that the last rank begins early."""
        ways = list(self._ways(ranks, self.mapped if mapped is None else mapped))
        if not ways:
            self.serial(ranks)
            raise PlanError(
                f"{self.name} cannot be mapped along axis {mapped}", hint="map another axis, or use fewer ranks"
            )
        best = min(ways, key=_surface)
        grain = max(-(-best.length_of_tiles // (TILES * ranks)), self._grains(best)[-1])
        return Schedule.of(OVERLAPPED, cut=best.cut, mapped=best.mapped, grain=grain, overlapped=True)

    def asked(
        self,
        ranks: int,
        cut: Sequence[int] | None = None,
        mapped: int | None = None,
        grain: int | None = None,
        overlapped: bool = True,
    ) -> Schedule:
        usual = self.default_schedule(ranks, mapped)
        own = usual["cut"] if cut is None else tuple(cut)
        return usual.with_parameters(cut=own, overlapped=overlapped or None, grain=grain or usual["grain"])

    def _tiles(self, schedule: Schedule) -> int:
        return -(-self._cutting_of(schedule).length_of_tiles // int(schedule["grain"]))

    def _cutting_of(self, schedule: Schedule) -> Cutting:
        return self.cutting(schedule["cut"], schedule["mapped"])

    def _ways(self, ranks: int, mapped: int) -> Iterator[Cutting]:
        """Yield every way to cut the axes that can be cut and are not mapped."""
        others = [axis for axis in self.pipelined.forward if axis != mapped]
        for parts in cuts(ranks, len(others)):
            by_axis = dict(zip(others, parts, strict=True))
            cut = tuple(by_axis.get(axis, 1) for axis in range(len(self.pipelined.shape)))
            try:
                yield self.cutting(cut, mapped)
            except PlanError:
                continue

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Yield the serial schedule; then every cut in tiles of every grain, blocking and overlapped."""
        serial = self.serial(costs.ranks)
        yield serial
        for cutting in self._ways(costs.ranks, self.mapped):
            asked = costs.options.get("grain")
            for grain in (asked,) if asked else self._grains(cutting):
                yield from self._of_grain(costs, cutting.cut, cutting.mapped, grain)

    def _of_grain(self, costs: Costs, cut: tuple[int, ...], mapped: int, grain: int) -> Iterator[Schedule]:
        """Yield the overlapped and, on several ranks, the blocking schedule. Yields only the blocking one, with a note,
        if it is predicted to be as fast and the user did not ask for overlap."""
        over = Schedule.of(OVERLAPPED, cut=cut, mapped=mapped, grain=grain, overlapped=True)
        why = self._why_blocking(costs, over) if costs.ranks > 1 else ""
        if not why or costs.family == OVERLAPPED:
            yield over
        if costs.ranks > 1:
            yield replace(self._blocking(over), notes=(why,) if why else ())

    @staticmethod
    def _blocking(over: Schedule) -> Schedule:
        return over.with_parameters(overlapped=None).as_of(BLOCKING)

    def _why_blocking(self, costs: Costs, over: Schedule) -> str:
        """Return why a blocking schedule is as fast as an overlapped one; "" if it is slower, or that is not known."""
        blocking_s = costs.predicted_s(self._blocking(over))
        if not costs.knows_messages() or blocking_s > SAME * costs.predicted_s(over):
            return ""
        share = costs.messages_s(self, self._blocking(over)) / blocking_s
        return NOTHING_TO_HIDE.format(share=share) if share <= HIDES_NOTHING else PIPELINES_ALREADY

    def _grains(self, cutting: Cutting) -> list[int]:
        """Return the whole length, half of it, and so on, down to tiles of too few points."""
        length = cutting.length_of_tiles
        points = prod(cutting.grid) // (max(cutting.grid[cutting.mapped], 1) * cutting.num_parts)
        least = min(max(LEAST_POINTS // max(points, 1), 1), length)
        if any(any(cutting.skew(sweep)) for sweep in self.pipelined.sweeps):
            least = max(least, -(-length // MODELLED))  # the first skewed tiles do not represent the others
        return [max(each, least) for each in halvings(length, least)]

    def refine(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        """Yield grains around the best of each family: an integer search in steps of a quarter, an eighth, …"""
        if costs.options.get("grain"):
            return
        known = {each.parameters for each in ranked}
        for best in (next((r for r in ranked if r.family == family), None) for family in (BLOCKING, OVERLAPPED)):
            if best is not None:
                length, grain = self._cutting_of(best).length_of_tiles, best["grain"]
                step = max(grain >> (turn + 2), 1)
                for other in sorted({grain - step, grain + step, -(-length // -(-length // grain))}):
                    if 1 <= other <= length and best.with_parameters(grain=other).parameters not in known:
                        yield from self._of_grain(costs, best["cut"], best["mapped"], other)

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield schedules with tiles half and twice as long, and blocking instead of overlapped or the reverse."""
        for other in self.scaled(schedule, "grain", self._cutting_of(schedule).length_of_tiles):
            yield replace(other, family=self._family(schedule))
        other_way = schedule.with_parameters(overlapped=None if schedule.get("overlapped") else True)
        yield replace(other_way, family=self._family(other_way))

    @staticmethod
    def _family(schedule: Schedule) -> str:
        return OVERLAPPED if schedule.get("overlapped") else BLOCKING

    def describe(self, schedule: Schedule, ranks: int) -> str:
        tiles, parts = self._tiles(schedule), " × ".join(map(str, schedule["cut"]))
        if tiles == 1:
            return f"{parts} parts, one after the other"
        how = "messages meanwhile" if schedule.get("overlapped") else "receive, compute, send"
        along = f"along axis {schedule['mapped']}{self._skew_text(schedule)}"
        return f"{parts} parts, {tiles} tiles of {schedule['grain']} {along}, {how}"

    def _skew_text(self, schedule: Schedule) -> str:
        """Return the skew of tiles as text; "" if there is none."""
        cutting = self._cutting_of(schedule)
        most = [max(factors) for factors in zip(*map(cutting.skew, self.pipelined.sweeps), strict=True)]
        words = [f"{by} along axis {axis}" for axis, by in enumerate(most) if by]
        return f", skewed by {' and '.join(words)}" if words else ""

    # Programs

    def cutting(self, cut: tuple[int, ...], mapped: int) -> Cutting:
        """Return the decomposition of the grid. Raises PlanError if the nest does not allow it."""
        return _cutting(self, cut, mapped)

    def how(self, schedule: Schedule, ranks: int, steps: int | None = None, most_tiles: int | None = None) -> How:
        """Return how a schedule runs. Raises PlanError if the schedule is not for `ranks` ranks."""
        cut, mapped, grain = (schedule.get(name) for name in ("cut", "mapped", "grain"))
        fits = cut and None not in (mapped, grain) and len(cut) == len(self.grid) and prod(cut) == ranks
        if not fits:
            raise PlanError(f"the schedule does not fit {self.name} on {ranks} ranks", found=str(schedule))
        parse_count(grain, "grain", least=1)
        count = self._steps if steps is None else steps
        return How(self.cutting(cut, mapped), count, grain, bool(schedule.get("overlapped")), most_tiles)

    @property
    def _steps(self) -> int:
        loop = self.pipelined.steps
        return 1 if loop is None else max((loop.high - loop.low).at(self.sizes), 0)

    def program(self, schedule: Schedule, ranks: int) -> Program:
        return _program(self.how(schedule, ranks))

    def reference(self, schedule: Schedule, ranks: int) -> Program:
        """Return the reference: the same tiles, all on rank 0."""
        how = self.how(schedule, ranks)
        found, apart = plain_program(how), {p.statement.name for p in self.pipelined.phases if isinstance(p, Single)}
        check_count(self.nest, how.cutting.values, found, self.workload(found, schedule), apart)
        return found

    def space(self, schedule: Schedule, ranks: int) -> Space | None:
        how = self.how(schedule, ranks)
        return space_of_tiles(how.cutting, how.grain, how.overlapped)

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, float]:
        """Simulate at most MODELLED tiles of a rank: those of some steps, or of a part of one step."""
        tiles = self._tiles(schedule)
        steps = min(self._steps, max(MODELLED // tiles, 1))
        how = self.how(schedule, ranks, steps, MODELLED if tiles > MODELLED else None)
        how = how._replace(move=steps == self._steps)
        program = _program(how)
        return program, self.workload(program, schedule), max(self._steps, 1) / max(steps, 1) / how.share

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        found = workload_of(self._cutting_of(schedule), self.dtypes, program, schedule["grain"])
        return self.signed(found)

    # Arrays

    def block_of(self, name: str, schedule: Schedule, ranks: int, suffix: str) -> ArraySpec:
        """Return the spec of an array's blocks; slots are positions of the mapped axis."""
        whole = self.cutting((1,) * len(self.grid), self.mapped).shape(name, 0)
        axis, boxes = self._slot_axis(name, schedule), self._boxes(name, schedule, ranks)
        within = len(whole) - (axis is not None)
        return ArraySpec.of_blocks(name, self.dtypes[name], whole, boxes, within=within, axis=axis or 0, suffix=suffix)

    def _slot_axis(self, name: str, schedule: Schedule) -> int | None:
        """Return the axis of an array along which slots follow one another; None if the whole array is one slot."""
        return self._cutting_of(schedule).mapped_axis(name)

    def _boxes(self, name: str, schedule: Schedule, ranks: int) -> list[tuple[slice, ...]]:
        """Return where each rank's block of an array lies in the whole array."""
        cutting = self._cutting_of(schedule)
        return [cutting.block(name, rank) for rank in range(ranks)]

    # Benchmarks

    def samples(self, ranks: int) -> Sequence[Sample]:
        """Return benchmarks of a tile of each sweep, and of copies of arrays into slots with room for faces."""
        found = []
        for cutting in self._ways(ranks, self.mapped):
            tiles = partial(_tiles_of, cutting)
            for sweep in cutting.pipelined.sweeps:
                low, high = cutting.sweep_box(sweep)[cutting.mapped]
                if high > low:
                    found.append(Sample(sweep.name, high - low, partial(add_tiles, cutting, sweep), tiles))
            for name in self.nest.arrays:
                if any(cutting.is_padded(name, part) for part in range(ranks)):
                    moves = partial(add_moves, cutting, name)
                    found.append(Sample(f"moves of {name}", cutting.length(name), moves, tiles))
        return found


def _surface(cutting: Cutting) -> float:
    """What a part sends on at a position."""
    return surface(cutting.grid, cutting.cut, 1)


def halvings(most: int, least: int) -> list[int]:
    """Return `most`, half of it (rounded up), and so on, until a number is at most `least` (≥ 1).

    >>> halvings(20, 4)
    [20, 10, 5, 3]
    """
    found = [most]
    while found[-1] > least:
        found.append(-(-found[-1] // 2))
    return found


def pipeline_operator(
    kind: type[PipelineOperator], nest: Nest, found: Pipelined, name: str = "", about: str = ""
) -> type[PipelineOperator]:
    """Return the class of operators, derived from `kind`, for a nest that is the pipeline `found`.

    Its name is the nest's unless `name` is given.
    """
    if others := [each for each in nest.parameters if each != "steps"]:
        raise OperatorError(f"{nest.name} has a parameter '{others[0]}'", hint="a pipeline on ranks has `steps` only")
    options = [
        Option("grid", str, "Points by axis, e.g. 1000x1000.", needed=True),
        Option("steps", int, "Steps.", 1, least=0),
        Option("dtype", str, "Element type.", "float64", choices=DTYPES),
        Option("grain", int, "Positions of a tile.", least=1, of="schedules"),
        *kind.options,
    ]
    unneeded = {"steps"} - {*nest.parameters} | {"dtype"} - {"dtype" for a in nest.arrays.values() if a.dtype is None}
    needed = [option for option in options if option.name not in unneeded]
    body = {"name": name or nest.name, "nest": nest, "pipelined": found, "options": tuple(needed)}
    return type(class_name(nest.name), (kind,), body | {"__doc__": f"{about}\n\n{getdoc(kind)}"})


def _tiles_of(cutting: Cutting, grain: int) -> Schedule:
    return Schedule.of(BLOCKING, cut=cutting.cut, mapped=cutting.mapped, grain=grain)


@lru_cache(maxsize=256)
def _cutting(operator: PipelineOperator, cut: tuple[int, ...], mapped: int) -> Cutting:
    return Cutting(operator.pipelined, tuple(sorted(operator.sizes.items())), operator.grid, cut, mapped)


@lru_cache(maxsize=64)
def _program(how: How) -> Program:
    return pipeline_program(how)
