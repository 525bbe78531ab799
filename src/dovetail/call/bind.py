"""bind: bind an operator, or a loop nest on a grid, to the ranks of a communicator, to be called many times."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate, pairwise
from textwrap import shorten
from typing import Any, Never

import numpy as np
from numpy.typing import DTypeLike

from dovetail.call.bound import Bound, bind_on, check_same
from dovetail.call.nest_operators import operator_of
from dovetail.call.nest_options import read_options
from dovetail.core import OperatorError, did_you_mean, parse_count
from dovetail.ir import Operator, Schedule
from dovetail.ir.registry import checked_operator
from dovetail.ir.signature import Signature
from dovetail.loops import Nest
from dovetail.loops.grid.blocks import grid_text
from dovetail.pipeline.operator import PipelineOperator
from dovetail.run.options import RunOptions
from dovetail.run.ranks.embedded import STALL_S, Embedded, ranks_of
from dovetail.run.ranks.world import World
from dovetail.stencil.operator import StencilOperator

MEASURED = 4  # timed runs of a rank's part; the fastest one gives the rank's speed


class BoundNest(Bound):
    """A loop nest bound to ranks; its arrays are cut into one block per rank."""

    operator: StencilOperator | PipelineOperator

    @property
    def blocks(self) -> Mapping[str, tuple[slice, ...]]:
        """Return this rank's slices of each whole array, by array name."""
        return self.signature.blocks(self.rank)

    @property
    def block(self) -> tuple[slice, ...]:
        """Return this rank's slices of the grid."""
        return self.blocks[self.operator.written[0]][-len(self.operator.grid) :]

    def until(self, *arrays: Any, change: float, calls: int = 1000) -> tuple[Any, int, float]:
        """Call repeatedly, feeding results back as inputs, until a step changes the grid by at most `change`.

        Parameters
        ----------
        *arrays
            This rank's blocks, as in a call.
        change : float
            The loop ends once `sqrt(Σ (new - old)²)`, over the grid points of all ranks, is at most `change`.
        calls : int
            The largest number of calls.

        Returns
        -------
        results, steps, changed
            This rank's results, the number of steps made, and the change that the last step made.

        Raises
        ------
        OperatorError
            On every rank, if `change` or `calls` is invalid on some rank or differs between ranks, or if the stencil
            was bound with steps that are no multiple of `test` (or without `test`).
        """
        operator, world = self.operator, self.embedded.world
        assert world is not None
        with world.together():
            change, calls = self._limits(change, calls)
            check_same(world, f"{operator.name}.until", {"change": change, "calls": calls}, "")
        held = dict(zip(operator.nest.arrays, arrays, strict=False))
        done, changed = 0, float("inf")
        while done < calls and not changed <= change:
            *results, changes = self(*held.values() if done else arrays)
            held |= dict(zip(operator.written, results, strict=True))
            done, changed = done + 1, float(changes[-1])
        kept = tuple(held[name] for name in operator.written)
        return kept[0] if len(kept) == 1 else kept, done * operator.steps, changed

    def _limits(self, change: Any, calls: Any) -> tuple[float, int]:
        """Return the limits of `until` as numbers. Raise OperatorError if one is no number, or no step is tested."""
        steps, test = self.operator.steps, self.operator.test
        if not test or steps % test or not steps:
            what = f"{self.operator.name} does not test its last step"
            raise OperatorError(what, found=f"steps={steps}, test={test}", hint="bind(…, steps=20, test=20)")
        if isinstance(change, bool) or not isinstance(change, int | float | np.number) or not float(change) >= 0:
            raise OperatorError(
                "change must be a number that is at least 0", found=repr(change)[:80], hint="change=1e-6"
            )
        return float(change), parse_count(calls, "calls")


def bind(
    what: Operator | Nest,
    comm: Any = None,
    grid: Sequence[int] | str | None = None,
    *,
    schedule: Schedule | None = None,
    steps: int | None = None,
    dtype: DTypeLike | None = None,
    test: int | None = None,
    cut: Sequence[int] | None = None,
    depth: int | None = None,
    overlapped: bool | None = None,
    tile: int | None = None,
    shares: Sequence[int] | str | None = None,
    mapped: int | None = None,
    grain: int | None = None,
    **unknown: Never,
) -> Any:
    """Bind an operator, or a loop nest on a grid, to the ranks of a communicator, to be called many times.

    Parameters
    ----------
    what : Operator or Nest
        An operator holds its own sizes and takes only `schedule`. A nest takes `grid` and all other options.
    comm : communicator, optional
        Of mpi4py or `dovetail.world()`. Default: all ranks that `dovetail launch` started, or those of the MPI program.
    grid : tuple of int
        Points along each axis of a nest.
    schedule : Schedule, optional
        For operators. Default: the schedule that `dovetail tune` saved for these ranks, else the operator's default.
    steps : int
        Iterations of the step loop; required if the nest has a step loop.
    dtype : str or NumPy dtype, optional
        Type of the arrays whose declaration names no type. Default: float32 for stencils, float64 for pipelines.
    test : int, optional
        Stencils: steps from one test of convergence to the next. Default: no test.
    cut : tuple of int, optional
        Number of parts along each axis. Default: the numbers that send the fewest bytes.
    depth : int, optional
        Stencils: steps between exchanges of ghost rows. Pipelines over one axis: steps per band.
    overlapped : bool, optional
        Whether messages travel while ranks compute other points. Default: true for pipelines, false for stencils.
    tile : int, optional
        Stencils: rows that are advanced by `depth` steps together (time tiling).
    shares : tuple of int or "measured", optional
        Stencils: rows of each part along the first axis; "measured": in proportion to the measured speed of ranks.
    mapped : int, optional
        Pipelines: the axis along which one rank owns all tiles.
    grain : int, optional
        Pipelines: positions of a tile along the axis `mapped`.

    Returns
    -------
    Bound
        Call it with this rank's arrays. A bound nest has `blocks`: this rank's slices of each whole array. If none of
        `cut`, `depth`, `overlapped`, `tile`, `shares`, `mapped`, `grain` is given, a nest runs by the schedule that
        `dovetail tune` saved.

    Raises
    ------
    OperatorError
        On every rank, if ranks give different arguments, if an argument is invalid, if `schedule` is no Schedule, or
        if an option does not apply to `what`.
    ProgramError
        On every rank, if the schedule's Program cannot be proved.
    """
    about: dict[str, Any] = {"steps": steps, "dtype": dtype, "test": test, "cut": cut, "depth": depth}
    about |= {"overlapped": overlapped, "tile": tile, "shares": shares, "mapped": mapped, "grain": grain}
    options = {name: value for name, value in about.items() if value is not None} | unknown  # every rank raises for it
    world = ranks_of(comm, blas=not isinstance(what, Nest))
    with world.together():
        if isinstance(what, Nest):
            options |= {} if schedule is None else {"schedule": schedule}
            return bind_nest(what, world, *read_options(what, grid, options))
        return bind_operator(what, world, schedule, [*options, *(["grid"] if grid is not None else [])])


def bind_operator(what: Operator, world: World, schedule: Schedule | None, refused: Sequence[str]) -> Bound:
    """Bind an operator, equal on every rank. Raise OperatorError if it is none, or if a nest's options were given."""
    operator = checked_operator(what)
    if refused:
        hint = f"give them to dovetail.{type(operator).__name__}(…): they are its fields"
        raise OperatorError("an operator takes no options but `schedule`", found=", ".join(refused), hint=hint)
    if not isinstance(schedule, Schedule | None):
        kind = "a class" if isinstance(schedule, type) else type(schedule).__name__
        hint = "leave it out for the tuned schedule, or give dovetail.plan(operator, machine).schedule"
        found = f"bind(…, schedule={shorten(repr(schedule), 80)})"
        raise OperatorError(f"no Schedule, but {kind}", found=found, hint=hint)
    asked = operator.to_json(), schedule and schedule.to_json()
    check_same(world, operator.title, {"schedule": schedule}, str(asked))
    made = BoundNest if isinstance(operator, StencilOperator | PipelineOperator) else Bound
    bound: Bound = bind_on(operator, world, schedule, made=made)
    return bound


def bind_nest(nest: Nest, world: World, grid: tuple[int, ...], options: Mapping[str, Any]) -> BoundNest:
    """Bind a nest. Raise OperatorError on every rank if grids or options differ, or the nest does not take one."""
    check_same(world, f"{nest.name}, grid {grid_text(grid)}", options, str(nest))
    kind = operator_of(nest)
    known = {field.name for field in fields(kind)} - {"grid"}
    if strange := [name for name in options if name not in (*known, *kind.asked_options)]:
        takes = f"it takes {', '.join((*sorted(known), *kind.asked_options))}"
        of_operator = f"bind(operator_of({nest.name})(grid, …), comm, schedule=…)"
        hint = did_you_mean(strange[0], (*known, *kind.asked_options)) or "leave it out"
        hint = of_operator if strange[0] == "schedule" else hint
        raise OperatorError(f"{nest.name} on ranks takes no '{strange[0]}'", found=takes, hint=hint)
    steps = {"steps": 0} if issubclass(kind, StencilOperator) else {}
    operator = kind(grid, **steps | {name: value for name, value in options.items() if name in known})
    asked = {name: value for name, value in options.items() if name not in known and value is not None}
    schedule = operator.asked(world.size, **asked) if asked else None
    if schedule is not None and schedule.get("shares") == "measured":
        assert isinstance(operator, StencilOperator)
        schedule = schedule.with_parameters(shares=measured_shares(operator, schedule["cut"], world))
    found: BoundNest = bind_on(operator, world, schedule, made=BoundNest)
    return found


def measured_shares(operator: StencilOperator, cut: Sequence[int], world: World) -> tuple[int, ...]:
    """Return each part's rows along the first axis, in proportion to measured speeds.

    Every rank times its own part of an even cut, without communication.
    """
    box = operator.decomposition(Schedule.of("even", cut=tuple(cut), depth=0), world.size).owned[world.rank]
    sides = [high - low for low, high in box]
    row = (operator.width,) if operator.width else ()
    alone = replace(operator, grid=(*sides, *row), steps=2, test=0)
    serial = alone.serial(1)
    program = alone.program(serial, 1)
    signature = Signature.of(alone, serial, 1)
    given = [np.ones(spec.shapes[0], spec.dtype) for spec in signature.inputs]
    run = Embedded(program, alone.workload(program, serial), RunOptions(), None)
    held, _ = signature.arguments(0, given, None)
    taken = []
    for _ in range(MEASURED):
        world.share(world.gather(None, STALL_S)[:1], STALL_S)
        begin = time.perf_counter()
        run(held, allow_nonfinite=True)
        taken.append(time.perf_counter() - begin)
    speeds = world.gather(sides[0] / min(taken))
    each = world.size // cut[0]  # ranks that share one slab of rows; the slowest of them limits the slab
    slabs = [min(speeds[place : place + each]) for place in range(0, world.size, each)] if speeds else []
    found: list[int] = json.loads(world.share(json.dumps(proportional(operator.rows[0], slabs)) if speeds else ""))
    return tuple(found)


def proportional(rows: int, speeds: Sequence[float]) -> list[int]:
    """Return numbers that add up to `rows`, in proportion to `speeds`, each at least 1.

    >>> proportional(12, [1.0, 3.0]), proportional(3, [1.0, 1.0, 98.0])
    ([3, 9], [1, 1, 1])
    """
    ends = [round(rows * end / sum(speeds)) for end in accumulate(speeds)]
    found = [high - low for low, high in pairwise([0, *ends])]
    while min(found) < 1 < max(found):
        found[found.index(max(found))] -= 1
        found[found.index(min(found))] += 1
    return found
