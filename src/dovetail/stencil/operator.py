"""operator: StencilOperator, a stencil on a grid for a number of steps; its schedules exchange ghost rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from inspect import getdoc
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dovetail.core import OperatorError, PlanError, parse_count
from dovetail.ir import SERIAL, Option, Program, Sample, Schedule, Slot, Space, Workload, dtype_bytes
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.operator import Costs, LibraryCall
from dovetail.ir.registry import class_name
from dovetail.loops.analysis.check_counts import check_count
from dovetail.loops.grid.blocks import Box, Range, cuts, surface
from dovetail.loops.grid.grid_operator import GridOperator
from dovetail.loops.types import DTYPES
from dovetail.stencil.convergence import CHANGE, PART, ChangeKernel, add_changes, change_name
from dovetail.stencil.diagram import space_of
from dovetail.stencil.microbenchmarks import add_moves, add_sweeps
from dovetail.stencil.row_kernels import RowKernel, moving
from dovetail.stencil.stencil_program import plain_program, stencil_program
from dovetail.stencil.storage import Decomposition, far_name, move_name, plane_name
from dovetail.stencil.sweeps import RowSweep, Stencil, stencil_of

if TYPE_CHECKING:
    from dovetail.loops.nest import Nest

OVERLAP, DEEP, WAVEFRONT = "overlap", "deep", "wavefront"
DEPTHS = (1, 2, 4, 8, 16)  # steps between exchanges to try
WAVES = (2, 8, 32)  # steps between exchanges to try with tiles; measuring refines these
TILES = (1, 4, 16, 64, 256)  # rows of a tile to try; measuring refines these
TILE_BYTES = 1 << 16, 1 << 22  # least and most bytes of a tile: overhead dominates smaller ones, no cache holds larger
MODELLED = 64  # steps that are simulated; a longer run is predicted in proportion


@dataclass(frozen=True)
class StencilOperator(GridOperator):
    """A stencil on a grid, for a number of steps; every rank has a block of the grid.

    Parameters
    ----------
    grid : tuple of int, or str
        Points along each axis: (512, 512), or "512x512" as on the command line.
    steps : int
        Iterations of the step loop.
    dtype : str
        Type of the arrays that declare none.
    test : int
        Test for convergence after every `test` steps; 0: never.

    Notes
    -----
    Schedules have the parameters `cut` (parts along each axis), `depth` (steps between exchanges of ghost rows; 0:
    exchange before every sweep), `overlapped` (compute rows that need no ghosts while ghosts travel) and `tile` (rows
    along the first axis that pass through all `depth` steps before the next tile begins).
    """

    name: ClassVar[str] = "stencil"
    families: ClassVar[tuple[str, ...]] = (SERIAL, OVERLAP, DEEP, WAVEFRONT)
    stencil: ClassVar[Stencil]
    asked_options: ClassVar[tuple[str, ...]] = ("cut", "depth", "overlapped", "tile", "shares")
    options: ClassVar[tuple[Option, ...]] = (
        Option("grid", str, "Points by axis, e.g. 4096x4096.", needed=True),
        Option("steps", int, "Steps.", 10, least=0),
        Option("test", int, "Steps between tests of convergence; 0: none.", 0, least=0),
        Option("dtype", str, "Element type.", "float32", choices=DTYPES),
        Option("depth", int, "Steps between exchanges of ghost rows.", least=1, of="schedules"),
        Option(
            "tile",
            int,
            "Rows of a tile, which takes all these steps before the next tile begins.",
            least=1,
            of="schedules",
        ),
    )

    steps: int = 10
    dtype: str = "float32"
    test: int = 0

    def __post_init__(self) -> None:
        if parse_count(self.test, "test") and self.stencil.tested is None:
            hint = "declare an array that it writes with time=True"
            raise OperatorError(f"{self.name} cannot be tested for convergence: no array keeps two levels", hint=hint)
        super().__post_init__()

    @property
    def shape(self) -> Sequence[str | int]:
        return self.stencil.shape

    @property
    def written(self) -> Sequence[str]:
        return self.stencil.written

    @property
    def rows(self) -> tuple[int, ...]:
        """Points along the axes that schedules cut."""
        return self.grid[: self.stencil.row_axes]

    @property
    def width(self) -> int:
        """Points of a row; 0 if a row is one point."""
        return self.grid[-1] if len(self.grid) > 1 else 0

    @property
    def title(self) -> str:
        return f"{self.name} {' × '.join(map(str, self.grid))}, {self.steps} steps, {self.dtype}"

    def resolve(self, facts: Mapping[str, Any], ranks: int) -> tuple[StencilOperator, tuple[str, ...]]:
        self.decomposition(self.serial(ranks), ranks)
        return self, ()

    # Schedules

    def serial(self, ranks: int) -> Schedule:
        """Return the schedule that exchanges, then computes, step by step, cut so that the fewest ghost rows travel."""
        fitting = [cut for cut in cuts(ranks, self.stencil.row_axes) if self._fits(cut)]
        if not fitting:
            rows = " × ".join(map(str, self.rows))
            hint = f"fewer ranks, or a grid of at least {ranks} rows"
            raise OperatorError(f"{ranks} ranks cannot each have rows of {self.title}", found=f"{rows} rows", hint=hint)
        best = min(reversed(fitting), key=lambda cut: surface(self.rows, cut, 2))
        return Schedule.of(SERIAL, cut=best, depth=0)

    def asked(
        self,
        ranks: int,
        cut: Sequence[int] | None = None,
        depth: int = 0,
        overlapped: bool = False,
        tile: int | None = None,
        shares: Sequence[int] | str | None = None,
    ) -> Schedule:
        """Return the schedule with these options: by default cut like the serial one, or into slabs for `shares`."""
        slabs = (ranks, *[1] * (len(self.rows) - 1)) if shares is not None else self.serial(ranks)["cut"]
        own = slabs if cut is None else tuple(cut)
        given = shares if shares is None or isinstance(shares, str) else tuple(map(int, shares))
        return Schedule.of("asked", cut=own, depth=depth, overlapped=overlapped or None, tile=tile, shares=given)

    def _fits(self, cut: Sequence[int]) -> bool:
        """Return whether the grid can be cut this way, by trying one step."""
        try:
            _program(
                self, Schedule.of(OVERLAP, cut=tuple(cut), depth=0).parameters, prod(cut), min(self._steps, 1), False
            )
        except PlanError:
            return False
        return True

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Yield the serial schedule; then every cut with ghosts for some steps, overlapped or not, or tiled."""
        serial = self.serial(costs.ranks)
        yield serial
        for cut in cuts(costs.ranks, self.stencil.row_axes):
            for schedule in self._cut_so(cut, costs.options.get("depth"), costs.options.get("tile")):
                if (
                    schedule["depth"] <= max(self.steps, 1)
                    and schedule != serial
                    and self._allows(schedule, costs.ranks)
                ):
                    yield schedule

    def _cut_so(self, cut: tuple[int, ...], depth: int | None, tile: int | None) -> Iterator[Schedule]:
        """Yield the schedules of one cut, with only this depth and tile if they are given."""
        for steps in (depth,) if depth else (0, *DEPTHS[len(self.stencil.sweeps) == 1 :]):
            for overlapped in () if tile else (None, True):
                yield Schedule.of(DEEP if steps else OVERLAP, cut=cut, depth=steps, overlapped=overlapped)
        for steps in (depth,) if depth else WAVES:
            for rows in (tile,) if tile else self._tiles(cut):
                yield Schedule.of(WAVEFRONT, cut=cut, depth=steps, tile=rows)

    def _tiles(self, cut: Sequence[int]) -> list[int]:
        """Return the tile sizes worth trying: a part has several tiles, and a tile fits in a cache."""
        own = [-(-rows // parts) for rows, parts in zip(self.rows, cut, strict=True)]
        planes = sum(self.stencil.depth[name] * dtype_bytes(self.dtypes[name]) for name in self.nest.arrays)
        row_bytes = planes * max(self.width, 1) * prod(own[1:])
        least, most = TILE_BYTES
        return [rows for rows in TILES if 2 * rows <= own[0] and least <= rows * row_bytes <= most]

    def _allows(self, schedule: Schedule, ranks: int) -> bool:
        try:
            self.prediction_model(schedule, ranks)
        except PlanError:
            return False
        return True

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield schedules with ghosts for a step more or less, or overlap changed; tiled ones halved and doubled."""
        depth, tile = schedule["depth"], schedule.get("tile")
        if tile:
            yield from (*self.scaled(schedule, "depth", self.steps), *self.scaled(schedule, "tile"))
            return
        others = (depth - 1, depth + 1) if depth else ()
        yield from (schedule.with_parameters(depth=other) for other in others if 1 <= other <= self.steps)
        yield schedule.with_parameters(overlapped=None if schedule.get("overlapped") else True)

    def describe(self, schedule: Schedule, ranks: int) -> str:
        parts, depth, tile = " × ".join(map(str, schedule["cut"])), schedule["depth"], schedule.get("tile")
        when = f"ghosts for {depth} step{'s' * (depth > 1)}" if depth else "ghosts before every sweep"
        then = f"then {tile} rows at a time by all of them" if tile else "then all rows"
        return f"{parts} parts, {when}, {'the inner rows meanwhile' if schedule.get('overlapped') else then}"

    # Programs

    def decomposition(
        self, schedule: Schedule, ranks: int, steps: int | None = None, priced: bool = False
    ) -> Decomposition:
        """Return how a schedule cuts the grid. Raises PlanError if the schedule does not fit the grid or `ranks`."""
        cut, depth = schedule.get("cut", ()), schedule.get("depth")
        if len(cut) != len(self.rows) or prod(cut) != ranks or depth is None:
            axes = "the first axis" if len(self.rows) == 1 else f"each of the first {len(self.rows)} axes"
            hint = f"cut: the number of parts along {axes}, {ranks} in all"
            found = str(schedule).removeprefix(", ")
            raise PlanError(f"the schedule does not fit {self.name} on {ranks} ranks", found=found, hint=hint)
        parse_count(depth, "depth"), parse_count(schedule.get("tile", 1), "tile", least=1)
        if any(parts > rows for parts, rows in zip(cut, self.rows, strict=True)):
            found = f"{' × '.join(map(str, self.rows))} rows in {' × '.join(map(str, cut))} parts"
            raise PlanError(
                f"{self.name}: a part would have no rows", found=found, hint="fewer ranks, or a larger grid"
            )
        sweeps = depth * len(self.stencil.sweeps) or 1
        count = self._steps if steps is None else steps
        first = self._first_shares(schedule)
        way = bool(schedule.get("overlapped")), schedule.get("tile") or 0, self.test
        return Decomposition(self.rows, self._boxes(), tuple(cut), count, sweeps, *way, first, priced)

    def _first_shares(self, schedule: Schedule) -> tuple[int, ...]:
        """Return the rows of each part along the first axis if the schedule has `shares`; else ()."""
        found = schedule.get("shares", ())
        if found and (len(found) != schedule["cut"][0] or sum(found) != self.rows[0] or min(found) < 1):
            hint = f"{schedule['cut'][0]} positive numbers with sum {self.rows[0]}"
            raise PlanError(f"invalid shares of {self.rows[0]} rows", found=str(list(found)), hint=hint)
        return tuple(found)

    @property
    def _steps(self) -> int:
        return max(self.stencil.steps.at(self.sizes), 0)

    def _boxes(self) -> dict[str, Box]:
        axes = range(self.stencil.row_axes)
        return {s.name: tuple(self._range(s, axis) for axis in axes) for s in self.stencil.sweeps}

    def _range(self, sweep: RowSweep, axis: int) -> Range:
        """Return the range that a sweep computes along an axis; an empty range within the grid if its loop is empty."""
        size = self.grid[axis]
        low, high = sweep.low[axis].at(self.sizes), sweep.high[axis].at(self.sizes)
        return (low, high) if low < high else (min(max(low, 0), size),) * 2

    def program(self, schedule: Schedule, ranks: int) -> Program:
        return _program(self, schedule.parameters, ranks, None, False)

    def reference(self, schedule: Schedule, ranks: int) -> Program:
        """Return the reference: rank 0 computes everything, from the same blocks of arrays."""
        found = plain_program(self.stencil, self.decomposition(schedule, ranks))
        check_count(self.nest, self.sizes, found, self.workload(found, schedule), {change_name(self.stencil.name)})
        return found

    def space(self, schedule: Schedule, ranks: int) -> Space:
        return space_of(self.stencil, self.decomposition(schedule, ranks))

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, float]:
        """Simulate at most MODELLED steps (in whole blocks), or two blocks if tiled."""
        block = self.test or max(schedule["depth"], 1)
        blocks = 2 if schedule.get("tile") else max(MODELLED // block, 1)
        steps = min(self._steps, blocks * block)
        program = _program(self, schedule.parameters, ranks, steps, True)
        return program, self.workload(program, schedule), self._steps / steps if steps else 1.0

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        slots = {}
        for array in self.nest.arrays:
            for name in {buffer.name for buffer in program.buffers} & self._buffers(array):
                extra = sum(self.stencil.margins[array]) if "_level" in name else 0
                shape = (self.width + extra,) if self.width else ()
                slots[name] = (Slot(shape, self.dtypes[array]),) * program.num_ranks
        slots |= {name: (Slot((), "float64"),) * program.num_ranks for name in (CHANGE, PART)}
        found = Workload(slots, tuple(kernel.form for kernel in self.kernels))
        return self.signed(found)

    def _buffers(self, array: str) -> set[str]:
        planes = (plane_name(array, plane) for plane in range(self.stencil.depth[array]))
        return {array, f"{array}_out", f"{array}_all", *planes}

    @cached_property
    def kernels(self) -> tuple[RowKernel | ChangeKernel, ...]:
        """The kernels: of each sweep, for rows in a cache and for rows in memory; those that copy rows to and from
        planes with margins; and that of tests."""
        found: list[Any] = [self._kernel(sweep) for sweep in self.stencil.sweeps]
        found += [replace(kernel, name=far_name(kernel.name)) for kernel in found]
        for name, margins in self.stencil.margins.items():
            if any(margins):
                about = self.dtypes[name], self.width
                found.append(moving(move_name("enter", name), *about, ((0, 0), margins), self.stencil.boundary[name]))
                found.append(moving(move_name("leave", name), *about, (margins, (0, 0)), None))
        if self.test:
            name = str(self.stencil.tested)
            row = self.dtypes[name], self.width, self.stencil.margins[name]
            found.append(ChangeKernel(change_name(self.stencil.name), *row))
        return tuple(found)

    def _kernel(self, sweep: RowSweep) -> RowKernel:
        low, high = self._range(sweep, -1) if self.width else (0, 0)
        margins = [self.stencil.margins[operand.array] for operand in sweep.operands]
        return RowKernel(
            sweep.name,
            sweep.value,
            sweep.elements,
            self.dtypes,
            self.dtypes[sweep.target],
            self.width,
            low,
            high,
            (*margins, self.stencil.margins[sweep.target]),
            sweep.keeps,
            self.stencil.boundary[sweep.target],
            apart=self.stencil.depth[sweep.target] > 1,
        )

    # Arrays

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return a rank's block of each array that is written, and with tests the change that each test found:
        sqrt(Σ (new - old)²) over all ranks, between the tested step and the one before."""
        found = super().outputs(schedule, ranks)
        tests = ((self._steps // self.test if self.test else 0,),) * ranks
        return [*found, ArraySpec(CHANGE, "float64", tests, within=0, finish=np.sqrt)] if self.test else found

    def block_of(self, name: str, schedule: Schedule, ranks: int, suffix: str) -> ArraySpec:
        """Return the spec of an array's blocks. Levels of time, if the array has several, are its first axis; slots are
        rows.
        """
        boxes = [tuple(slice(*side) for side in box) for box in self.decomposition(schedule, ranks).owned]
        whole, levels, within = self.grid, self.stencil.given[name], int(self.width > 0)
        if levels > 1:
            whole, boxes = (levels, *whole), [(slice(None), *box) for box in boxes]
        return ArraySpec.of_blocks(name, self.dtypes[name], whole, boxes, within=within, suffix=suffix)

    # Benchmarks

    def samples(self, ranks: int) -> Sequence[Sample]:
        """Return benchmarks of each sweep, up to a rank's number of rows: on the same rows again and again and, if
        tiles are tried, on changing rows; and of rows that enter and leave planes with margins."""
        most = -(-prod(self.rows) // ranks)
        near = [Sample(sweep.name, most, partial(add_sweeps, self.stencil, sweep, 0)) for sweep in self.stencil.sweeps]
        if self.test:
            about = self.stencil.name, f"{self.stencil.tested}_level"
            near.append(Sample(change_name(self.stencil.name), most, partial(add_changes, *about)))
        for array in (name for name, margins in self.stencil.margins.items() if any(margins)):
            ways = ("enter", "leave") if array in self.stencil.written else ("enter",)
            near += [Sample(move_name(way, array), most, partial(add_moves, array, way)) for way in ways]
        if len(self._tiles((1,) * len(self.rows))) == 0:
            return near
        first = self.stencil.sweeps[0]
        return [*near, Sample(far_name(first.name), most, partial(add_sweeps, self.stencil, first, most))]

    def library_calls(self, ranks: int) -> Sequence[LibraryCall]:
        return (LibraryCall("all_reduce", 8),) if self.test else ()


def stencil_operator(nest: Nest, name: str = "") -> type[StencilOperator]:
    """Return the class of operators for a nest that is a stencil, named `name` or like the nest.

    Raises OperatorError if the nest is no stencil.
    """
    if others := [name for name in nest.parameters if name != "steps"]:
        raise OperatorError(f"{nest.name} has a parameter '{others[0]}'", hint="a stencil on ranks has `steps` only")
    found, doc = stencil_of(nest), f"{nest.about}\n\n{getdoc(StencilOperator)}"
    body = {"name": name or nest.name, "nest": nest, "stencil": found, "__doc__": doc}
    return type(class_name(nest.name), (StencilOperator,), body)


@lru_cache(maxsize=256)
def _program(
    operator: StencilOperator, parameters: tuple[Any, ...], ranks: int, steps: int | None, priced: bool
) -> Program:
    how = operator.decomposition(Schedule("", parameters), ranks, steps, priced)
    return stencil_program(operator.stencil, how)
