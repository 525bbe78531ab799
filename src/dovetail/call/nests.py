"""stencils: a stencil or pipeline on the ranks of a communicator, each with its blocks of the arrays, called again and
again."""

from __future__ import annotations

import inspect
import json
import platform
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dovetail.call.nest_operators import operator_of
from dovetail.call.nest_options import points, read_asked
from dovetail.core import DovetailError, OperatorError, ProgramError, parse_count
from dovetail.ir import Program, Schedule, verify
from dovetail.loops import Nest
from dovetail.run.arrays import left_in
from dovetail.run.embedded import STALL_S, Embedded, ranks_of
from dovetail.run.engine import needs_order
from dovetail.run.options import RunOptions
from dovetail.run.world import World
from dovetail.stencil.operator import StencilOperator
from dovetail.store.program_cache import keep_proof, known_of, program_of

if TYPE_CHECKING:
    from dovetail.pipeline.band_operator import BandOperator
    from dovetail.pipeline.operator import PipelineOperator

MEASURED = 4  # runs of a part, of which the fastest tells a rank's speed


class NestOnRanks:
    """What `dovetail.bind` returns: called with this rank's blocks of the arrays, it returns those of the results.

    Planned, proved, compiled and bound once.
    """

    def __init__(self, operator: Any, schedule: Schedule, world: World) -> None:
        self.operator, self.schedule = operator, schedule
        self.program = program_of(operator, schedule, world.size)
        known = known_of(operator, schedule, self.program)
        to_prove = world.rank == 0 and not known.is_proved
        fault = _fault(operator, schedule, self.program) if to_prove else ""
        in_order = needs_order(self.program) if known.in_order is None else known.in_order
        options = RunOptions.of(schedule, stall_s=STALL_S)
        self._embedded = Embedded(self.program, operator.workload(self.program), options, world, in_order)
        self._embedded.bind()  # the other ranks compile while the first one proves
        if fault := world.share(fault):
            raise ProgramError(fault)
        if to_prove:
            keep_proof(operator, schedule, self.program, in_order=in_order)
        self.rank = world.rank

    def __call__(self, *arrays: Any, out: Any = None, allow_nonfinite: bool = False) -> Any:
        """Every rank must call. `out`: a writable array for each result, in any memory layout, which is returned.

        Raises OperatorError, on every rank, where some rank's arrays do not fit."""
        held = self._embedded.call(
            lambda: self.operator.arguments(self.program, self.rank, arrays, out), allow_nonfinite=allow_nonfinite
        )
        return left_in(out, self.operator.result(self.program, self.rank, held))

    def explain(self) -> str:
        """Return the schedule that is bound: its family and parameters, then what it does in words."""
        return f"{self.schedule}: {self.operator.explained(self.schedule, self.program.num_ranks)}"


class PipelineOnRanks(NestOnRanks):
    """A pipeline. `blocks`: where this rank's parts lie in the arrays, by name; `block`: in the one first written."""

    def __init__(self, operator: PipelineOperator, schedule: Schedule, world: World) -> None:
        super().__init__(operator, schedule, world)
        cutting = operator.cutting(schedule["cut"], schedule["mapped"])
        self.blocks = {name: cutting.block(name, world.rank) for name in operator.nest.arrays}
        self.block = self.blocks[operator.pipelined.written[0]]


class LineOnRanks(NestOnRanks):
    """A pipeline over one axis. `blocks`, `block`: as those of any pipeline."""

    def __init__(self, operator: BandOperator, schedule: Schedule, world: World) -> None:
        super().__init__(operator, schedule, world)
        self.blocks = operator.blocks(world.size, world.rank)
        self.block = self.blocks[operator.pipelined.written[0]]


class StencilOnRanks(NestOnRanks):
    """A stencil. `block`: where this rank's part lies in the grid."""

    def __init__(self, operator: StencilOperator, schedule: Schedule, world: World) -> None:
        super().__init__(operator, schedule, world)
        box = operator.decomposition(schedule, world.size).owned[world.rank]
        rest = (slice(None),) if operator.width else ()
        self.block = (*(slice(low, high) for low, high in box), *rest)

    def until(self, *arrays: Any, change: float, calls: int = 1000) -> tuple[Any, int, float]:
        """Called again and again, each time with what came out, until its last step changes the grid by no more than
        `change` (the root of the sum of squares over all ranks), or so many calls were made.

        Returns what came out, the steps that were made, and what the last of them changed. For one that was asked for
        with `test`, the steps of which are a multiple of it. Raises OperatorError, on every rank, where one rank gives
        another `change` or `calls`, or none that can be.
        """
        operator, world = self.operator, self._embedded.world
        assert world is not None
        with world.together():
            change, calls = self._limits(change, calls)
            _check_same(world, f"{operator.name}.until", {"change": change, "calls": calls}, "")
        held = dict(zip(operator.nest.arrays, arrays, strict=False))
        done, changed = 0, float("inf")
        while done < calls and not changed <= change:
            *results, changes = self(*held.values() if done else arrays)
            held |= dict(zip(operator.stencil.written, results, strict=True))
            done, changed = done + 1, float(changes[-1])
        kept = tuple(held[name] for name in operator.stencil.written)
        return kept[0] if len(kept) == 1 else kept, done * operator.steps, changed

    def _limits(self, change: Any, calls: Any) -> tuple[float, int]:
        """Return the limits of `until` as numbers; OperatorError for what is none, or where no step is tested."""
        operator = self.operator
        if not operator.test or operator.steps % operator.test or not operator.steps:
            found = f"steps={operator.steps}, test={operator.test}"
            raise OperatorError(
                f"{operator.name} does not test its last step", found=found, hint="on(…, steps=20, test=20)"
            )
        if isinstance(change, bool) or not isinstance(change, int | float | np.number) or not float(change) >= 0:
            raise OperatorError(
                "change must be a number that is at least 0", found=repr(change)[:80], hint="change=1e-6"
            )
        return float(change), parse_count(calls, "calls")


def nest_on_ranks(nest: Nest, comm: Any, grid: Sequence[int], **asked: Any) -> NestOnRanks:
    """See `dovetail.bind`."""
    world = ranks_of(comm, blas=False)
    with world.together():
        return _on_ranks(nest, world, comm, grid, asked)


def _on_ranks(nest: Nest, world: World, comm: Any, grid: Sequence[int], asked: Mapping[str, Any]) -> NestOnRanks:
    words, read = read_asked(nest, grid, asked)
    _check_same(world, f"{nest.name}, grid {words}", read, str(nest))
    kind: Any = operator_of(nest)
    on_ranks: Any = stencil_on_ranks
    if not issubclass(kind, StencilOperator):
        on_ranks = line_on_ranks if len(kind.pipelined.shape) == 1 else pipeline_on_ranks
    try:
        inspect.signature(on_ranks).bind(nest, comm, words, **read)
    except TypeError as error:
        raise OperatorError(f"{nest.name} on ranks: {error}", hint="see dovetail.bind") from None
    found: NestOnRanks = on_ranks(nest, comm, words, **read)
    return found


def _check_same(world: World, what: str, asked: Mapping[str, Any], nest: str) -> None:
    """OperatorError, on every rank, where they do not all ask for the same: they would wait for one another."""
    own = ", ".join([what, *(f"{name}={value}" for name, value in sorted(asked.items()))])
    every = world.gather([own, nest], STALL_S)
    other = next((rank for rank, each in enumerate(every) if each != every[0]), None)
    found = "" if other is None else f"rank 0 {every[0][0]}; rank {other} {every[other][0]}"
    if found := world.share(found, STALL_S):
        raise OperatorError("ranks do not ask for the same", found=found, hint="the same nest, grid and options on all")


def pipeline_on_ranks(
    nest: Nest,
    comm: Any,
    grid: Sequence[int],
    *,
    steps: int = 1,
    dtype: str = "float64",
    cut: Sequence[int] | None = None,
    mapped: int | None = None,
    grain: int | None = None,
    overlapped: bool | None = None,
) -> PipelineOnRanks:
    """See `dovetail.bind`."""
    world = ranks_of(comm, blas=False)
    kind: Any = operator_of(nest)
    operator: PipelineOperator = kind(points(grid), steps, dtype)
    if all(each is None for each in (cut, mapped, grain, overlapped)):
        return PipelineOnRanks(operator, _schedule(operator, world), world)
    usual = operator.usual(world.size, mapped)
    own = usual["cut"] if cut is None else tuple(cut)
    about = {"cut": own, "overlapped": None if overlapped is False else True}
    about |= {} if grain is None else {"grain": grain}
    return PipelineOnRanks(operator, usual.with_parameters(**about), world)


def line_on_ranks(
    nest: Nest,
    comm: Any,
    grid: Sequence[int],
    *,
    steps: int = 1,
    dtype: str = "float64",
    depth: int | None = None,
    grain: int | None = None,
) -> LineOnRanks:
    """See `dovetail.bind`."""
    world = ranks_of(comm, blas=False)
    kind: Any = operator_of(nest)
    operator: BandOperator = kind(points(grid), steps, dtype)
    asked = {"depth": depth, "grain": grain}
    if depth is None and grain is None:
        return LineOnRanks(operator, _schedule(operator, world), world)
    usual = operator.usual(world.size)
    return LineOnRanks(operator, usual.with_parameters(**{k: v for k, v in asked.items() if v is not None}), world)


def stencil_on_ranks(
    nest: Nest,
    comm: Any,
    grid: Sequence[int],
    *,
    dtype: str = "float32",
    test: int = 0,
    cut: Sequence[int] | None = None,
    depth: int | None = None,
    overlapped: bool | None = None,
    tile: int | None = None,
    shares: Sequence[int] | Literal["measured"] | None = None,
    **parameters: int,
) -> StencilOnRanks:
    """See `dovetail.bind`."""
    world = ranks_of(comm, blas=False)
    kind: Any = operator_of(nest)
    operator: StencilOperator = kind(points(grid), parameters.pop("steps", 0), dtype, test)
    if parameters:
        raise OperatorError(f"{nest.name} has no parameter '{next(iter(parameters))}'", hint="it has steps")
    if all(each is None for each in (cut, depth, overlapped, tile, shares)):
        return StencilOnRanks(operator, _schedule(operator, world), world)
    slabs = (world.size, *[1] * (len(operator.rows) - 1)) if shares is not None else operator.serial(world.size)["cut"]
    own = tuple(cut) if cut is not None else slabs
    asked = Schedule.of("asked", cut=own, depth=0 if depth is None else depth, overlapped=overlapped or None, tile=tile)
    if shares is not None:
        rows = measured_shares(operator, own, world) if shares == "measured" else tuple(map(int, shares))
        asked = asked.with_parameters(shares=rows)
    return StencilOnRanks(operator, asked, world)


def measured_shares(operator: StencilOperator, cut: Sequence[int], world: World) -> tuple[int, ...]:
    """Rows along the first axis in proportion to the speeds of the ranks, each of which computes a part alone."""
    box = operator.decomposition(Schedule.of("even", cut=tuple(cut), depth=0), world.size).owned[world.rank]
    sides = [high - low for low, high in box]
    alone = replace(
        operator, grid="x".join(map(str, [*sides, *([operator.width] if operator.width else [])])), steps=2, test=0
    )
    program = alone.program(alone.serial(1), 1)
    given = [np.ones(shape, dtype) for shape, dtype in alone.shapes()]
    run = Embedded(program, alone.workload(program), RunOptions(), None)
    held, _ = alone.arguments(program, 0, given, None)
    taken = []
    for _ in range(MEASURED):
        world.share(world.gather(None, STALL_S)[:1], STALL_S)
        begin = time.perf_counter()
        run(held, allow_nonfinite=True)
        taken.append(time.perf_counter() - begin)
    speeds = world.gather(sides[0] / min(taken))
    each = world.size // cut[0]  # parts in a slab, which go at the pace of the slowest
    slabs = [min(speeds[place : place + each]) for place in range(0, world.size, each)] if speeds else []
    found: list[int] = json.loads(world.share(json.dumps(proportional(operator.rows[0], slabs)) if speeds else ""))
    return tuple(found)


def proportional(rows: int, speeds: Sequence[float]) -> list[int]:
    """So many rows in proportion to these, at least one each.

    >>> proportional(12, [1.0, 3.0]), proportional(3, [1.0, 1.0, 98.0])
    ([3, 9], [1, 1, 1])
    """
    ends = [round(rows * end / sum(speeds)) for end in accumulate(speeds)]
    found = [high - low for low, high in pairwise([0, *ends])]
    while min(found) < 1 < max(found):
        found[found.index(max(found))] -= 1
        found[found.index(min(found))] += 1
    return found


def _fault(operator: Any, schedule: Schedule, program: Program) -> str:
    """Why a program does not hold, in words; empty where it does. For one rank: all have the same program."""
    try:
        verify(program, against=operator.plain(schedule, program.num_ranks)).raise_if_bad()
    except ProgramError as error:
        return str(error)
    return ""


def _schedule(operator: StencilOperator | PipelineOperator, world: World) -> Schedule:
    """What rank 0 finds in the cache for this operator, on every rank; else the serial schedule, of a pipeline
    tiles."""
    from dovetail.store.tuned_schedules import kept_schedule

    hosts = world.gather(platform.node())
    found, fault = None, ""
    if world.rank == 0:
        try:
            found = kept_schedule(operator, world.library, hosts)
            if found is not None:
                program_of(operator, found, world.size)  # may be no schedule of this operator
        except (DovetailError, KeyError, TypeError, ValueError) as error:
            found, fault = None, str(error) or type(error).__name__
    text, fault = world.share([json.dumps(found.to_json()) if found else "", fault])
    if fault:
        warnings.warn(f"the tuned schedule is left aside: {fault}", RuntimeWarning, stacklevel=5)
    return Schedule.from_json(json.loads(text)) if text else operator.usual(world.size)
