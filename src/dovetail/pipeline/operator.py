"""operator: PipelineOperator, a nest whose iterations depend on one another; its schedules are pipelines of tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
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
LEAST_POINTS = 1 << 10  # of a tile: smaller ones are all start-up
SAME = 1.01  # of the time of the overlapped: a blocking schedule that takes no more pipelines by itself
HIDES_NOTHING = 0.05  # of the time of a blocking schedule: messages that take no more leave nothing to gain
PIPELINES_ALREADY = "Blocking sends pipeline already here: no send waits long enough for messages meanwhile to gain."
NOTHING_TO_HIDE = "Do not overlap: nothing to hide. Messages alone would take {share:.1%} of the time."
TILES = 8  # for each rank, where nothing was tuned
MODELLED = 256  # tiles of a rank in a prediction; longer runs go on as they began


@dataclass(frozen=True)
class PipelineOperator(GridOperator):
    """A nest on a grid, e.g. "1000x1000", whose iterations need one another: every rank has a block of the grid, and
    passes on what the next ones need of it, tile by tile.

    Parameters
    ----------
    grid : tuple of int, or str
        Points along each axis: (1000, 1000), or "1000x1000" as on the command line.
    steps : int
        Iterations of the step loop, if there is one.
    dtype : str
        Of the arrays that have none of their own.

    Notes
    -----
    Schedules have the parameters `cut` (parts by axis), `mapped` (the axis whose tiles are on one rank), `grain`
    (positions of it that are a tile) and `overlapped` (messages travel while the next tile is computed).
    """

    name: ClassVar[str] = "pipeline"
    families: ClassVar[tuple[str, ...]] = (SERIAL, BLOCKING, OVERLAPPED)
    pipelined: ClassVar[Pipelined]
    asked_options: ClassVar[tuple[str, ...]] = ("cut", "mapped", "grain", "overlapped")
    test: ClassVar[int] = 0  # a pipeline tests no convergence
    options: ClassVar[tuple[Option, ...]] = ()

    def __post_init__(self) -> None:
        if self.steps != 1 and not self.nest.parameters:
            raise OperatorError(f"{self.name} has no steps", found=f"steps={self.steps}", hint="leave them out")
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

    def fingerprint(self) -> str:
        """The nest's own text and arrays, which do not follow from its name."""
        return f"{self.nest}\n{self.nest.arrays}"

    def resolve(self, facts: Mapping[str, Any], ranks: int) -> tuple[PipelineOperator, tuple[str, ...]]:
        self.serial(ranks)
        return self, ()

    # Schedules

    @property
    def mapped(self) -> int:
        """The axis whose tiles are on one rank, unless another is asked for: the first that may be and is not far
        shorter than the longest, since slots then lie as the arrays do; of upright tiles, if there are any."""
        mappable = self.pipelined.mappable
        upright = [axis for axis in mappable if axis in self.pipelined.forward]
        lengths = {axis: self.grid[axis] for axis in upright or mappable}
        return next(axis for axis, length in lengths.items() if 2 * length >= max(lengths.values()))

    def serial(self, ranks: int) -> Schedule:
        """One tile a rank: each begins when the one before has done all its work. Cut so that the least crosses."""
        fitting = list(self._ways(ranks, self.mapped))
        if not fitting:
            found = f"{grid_text(self.grid)} points; cut may be axes {self.pipelined.forward}, but {self.mapped}"
            raise OperatorError(
                f"{ranks} ranks cannot each have a part of {self.title}", found=found, hint="fewer ranks"
            )
        best = min(fitting, key=_surface)
        return Schedule.of(SERIAL, cut=best.cut, mapped=best.mapped, grain=best.length_of_tiles)

    def default_schedule(self, ranks: int, mapped: int | None = None) -> Schedule:
        """The schedule used if nothing was tuned: overlapped, in enough tiles that the last rank begins early."""
        ways = list(self._ways(ranks, self.mapped if mapped is None else mapped))
        if not ways:
            self.serial(ranks)
            raise PlanError(f"{self.name} cannot be mapped along axis {mapped}", hint="another, or fewer ranks")
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
        """Return the default schedule with these options."""
        usual = self.default_schedule(ranks, mapped)
        own = usual["cut"] if cut is None else tuple(cut)
        return usual.with_parameters(cut=own, overlapped=overlapped or None, grain=grain or usual["grain"])

    def _tiles(self, schedule: Schedule) -> int:
        return -(-self._cutting_of(schedule).length_of_tiles // int(schedule["grain"]))

    def _cutting_of(self, schedule: Schedule) -> Cutting:
        return self.cutting(schedule["cut"], schedule["mapped"])

    def _ways(self, ranks: int, mapped: int) -> Iterator[Cutting]:
        """Every way to cut the axes that may be and are not mapped."""
        others = [axis for axis in self.pipelined.forward if axis != mapped]
        for parts in cuts(ranks, len(others)):
            by_axis = dict(zip(others, parts, strict=True))
            cut = tuple(by_axis.get(axis, 1) for axis in range(len(self.pipelined.shape)))
            try:
                yield self.cutting(cut, mapped)
            except PlanError:
                continue

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Serial; then every cut, in tiles of twice as many positions each, blocking and overlapped."""
        serial = self.serial(costs.ranks)
        yield serial
        for cutting in self._ways(costs.ranks, self.mapped):
            asked = costs.options.get("grain")
            for grain in (asked,) if asked else self._grains(cutting):
                yield from self._of_grain(costs, cutting.cut, cutting.mapped, grain)

    def _of_grain(self, costs: Costs, cut: tuple[int, ...], mapped: int, grain: int) -> Iterator[Schedule]:
        """The overlapped and, on several ranks, the blocking schedule. Only the blocking one, with a note, if it is
        predicted to be as good and the user did not ask for overlap."""
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
        """Why a blocking schedule is as good as an overlapped one, in words; empty where it is not, or not known."""
        blocking_s = costs.predicted_s(self._blocking(over))
        if not costs.knows_messages() or blocking_s > SAME * costs.predicted_s(over):
            return ""
        share = costs.messages_s(self, self._blocking(over)) / blocking_s
        return NOTHING_TO_HIDE.format(share=share) if share <= HIDES_NOTHING else PIPELINES_ALREADY

    def _grains(self, cutting: Cutting) -> list[int]:
        """Halves of the whole, down to tiles of too few points."""
        length = cutting.length_of_tiles
        points = prod(cutting.grid) // (max(cutting.grid[cutting.mapped], 1) * cutting.num_parts)
        least = min(max(LEAST_POINTS // max(points, 1), 1), length)
        if any(any(cutting.lean(sweep)) for sweep in self.pipelined.sweeps):
            least = max(least, -(-length // MODELLED))  # the first of such tiles do not stand for the others
        return [max(each, least) for each in halvings(length, least)]

    def refine(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        """Grains around the best of each family: an integer search in steps of a half, a quarter, an eighth…"""
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
        """Tiles half and twice as long, and blocking or overlapped."""
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
        along = f"along axis {schedule['mapped']}{self._leaning(schedule)}"
        return f"{parts} parts, {tiles} tiles of {schedule['grain']} {along}, {how}"

    def _leaning(self, schedule: Schedule) -> str:
        """How tiles lean, in words; nothing where they do not."""
        cutting = self._cutting_of(schedule)
        most = [max(factors) for factors in zip(*map(cutting.lean, self.pipelined.sweeps), strict=True)]
        words = [f"{by} along axis {axis}" for axis, by in enumerate(most) if by]
        return f", leaning by {' and '.join(words)}" if words else ""

    # Programs

    def cutting(self, cut: tuple[int, ...], mapped: int) -> Cutting:
        """PlanError where the nest cannot be cut so."""
        return _cutting(self, cut, mapped)

    def how(self, schedule: Schedule, ranks: int, steps: int | None = None, most_tiles: int | None = None) -> How:
        """How a schedule runs it. PlanError if the schedule is not for `ranks` ranks."""
        cut, mapped, grain = (schedule.get(name) for name in ("cut", "mapped", "grain"))
        fits = cut and None not in (mapped, grain) and len(cut) == len(self.grid) and prod(cut) == ranks
        if not fits:
            raise PlanError(f"the schedule is none of {self.name} on {ranks} ranks", found=str(schedule))
        parse_count(grain, "grain", least=1)
        count = self._steps if steps is None else steps
        return How(self.cutting(cut, mapped), count, grain, bool(schedule.get("overlapped")), most_tiles)

    @property
    def _steps(self) -> int:
        """Iterations of the step loop."""
        loop = self.pipelined.steps
        return 1 if loop is None else max((loop.high - loop.low).at(self.sizes), 0)

    def program(self, schedule: Schedule, ranks: int) -> Program:
        return _program(self.how(schedule, ranks))

    def reference(self, schedule: Schedule, ranks: int) -> Program:
        """The same tiles, all on rank 0: what `verify(…, against=)` takes for right."""
        how = self.how(schedule, ranks)
        found, apart = plain_program(how), {p.statement.name for p in self.pipelined.phases if isinstance(p, Single)}
        check_count(self.nest, how.cutting.values, found, self.workload(found, schedule), apart)
        return found

    def space(self, schedule: Schedule, ranks: int) -> Space | None:
        how = self.how(schedule, ranks)
        return space_of_tiles(how.cutting, how.grain, how.overlapped)

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, float]:
        """No more than MODELLED tiles a rank: of some steps, or of a part of one."""
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
        """Slots are positions of the mapped axis."""
        whole = self.cutting((1,) * len(self.grid), self.mapped).shape(name, 0)
        axis, boxes = self._slot_axis(name, schedule), self._boxes(name, schedule, ranks)
        within = len(whole) - (axis is not None)
        return ArraySpec.of_blocks(name, self.dtypes[name], whole, boxes, within=within, axis=axis or 0, suffix=suffix)

    def _slot_axis(self, name: str, schedule: Schedule) -> int | None:
        """The axis of an array along which slots follow one another; None where all of it is one slot."""
        return self._cutting_of(schedule).mapped_axis(name)

    def _boxes(self, name: str, schedule: Schedule, ranks: int) -> list[tuple[slice, ...]]:
        """Where each rank's block of an array lies in the whole."""
        cutting = self._cutting_of(schedule)
        return [cutting.block(name, rank) for rank in range(ranks)]

    # What must be measured

    def samples(self, ranks: int) -> Sequence[Sample]:
        """A tile of each sweep, and what moves arrays to and from slots that have room for faces."""
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
    """`most`, half of it, rounded up, and so on, as far as the first that is no more than `least`, of 1 or more.

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
    """The class of such operators for a nest that is the pipeline `found`, by its name unless another is given."""
    if strange := [each for each in nest.parameters if each != "steps"]:
        raise OperatorError(f"{nest.name} has a parameter '{strange[0]}'", hint="a pipeline on ranks has `steps` only")
    options = [
        Option("grid", str, "Points by axis, e.g. 1000x1000.", needed=True),
        Option("steps", int, "Steps.", 1, least=0),
        Option("dtype", str, "Element type.", "float64", choices=DTYPES),
        Option("grain", int, "Positions of a tile.", least=1, of="schedules"),
        *kind.options,
    ]
    unneeded = {"steps"} - {*nest.parameters} | {"dtype"} - {"dtype" for a in nest.arrays.values() if a.dtype is None}
    kept = [option for option in options if option.name not in unneeded]
    body = {"name": name or nest.name, "nest": nest, "pipelined": found, "options": tuple(kept)}
    return type(class_name(nest.name), (kind,), body | {"__doc__": f"{about}\n\n{(kind.__doc__ or '').strip()}"})


def _tiles_of(cutting: Cutting, grain: int) -> Schedule:
    """The schedule in tiles of `grain` positions."""
    return Schedule.of(BLOCKING, cut=cutting.cut, mapped=cutting.mapped, grain=grain)


@lru_cache(maxsize=256)
def _cutting(operator: PipelineOperator, cut: tuple[int, ...], mapped: int) -> Cutting:
    return Cutting(operator.pipelined, tuple(sorted(operator.sizes.items())), operator.grid, cut, mapped)


@lru_cache(maxsize=64)
def _program(how: How) -> Program:
    return pipeline_program(how)
