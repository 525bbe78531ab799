"""bind: an operator, or a nest on a grid, bound to the ranks of a communicator, to be called again and again."""

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
from dovetail.run.mpi.embedded import STALL_S, Embedded, ranks_of
from dovetail.run.mpi.world import World
from dovetail.run.options import RunOptions
from dovetail.stencil.operator import StencilOperator

MEASURED = 4  # runs of a part, of which the fastest gives a rank's speed


class BoundNest(Bound):
    """A nest on ranks. `blocks`: where this rank's parts lie in the arrays, by name; `block`: in the grid."""

    operator: StencilOperator | PipelineOperator

    @property
    def blocks(self) -> Mapping[str, tuple[slice, ...]]:
        """Return where this rank's parts lie in the arrays, by the arrays' names."""
        return self.signature.blocks(self.rank)

    @property
    def block(self) -> tuple[slice, ...]:
        """Return where this rank's part of the grid lies."""
        return self.blocks[self.operator.written[0]][-len(self.operator.grid) :]

    def until(self, *arrays: Any, change: float, calls: int = 1000) -> tuple[Any, int, float]:
        """Call again and again, each time with what came out, until the last step changes the grid little enough.

        Parameters
        ----------
        *arrays
            This rank's blocks, as those of a call.
        change : float
            The root of the sum of squares of what a step changes, over all ranks, that ends the loop.
        calls : int
            The most calls that are made.

        Returns
        -------
        results, steps, changed
            What came out, the steps that were made, and what the last of them changed.

        Raises
        ------
        OperatorError
            On every rank, where one rank gives another `change` or `calls` or none that can be, and where the stencil
            was not bound with a `test` that its steps are a multiple of.
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
        """Return the limits of `until` as numbers; OperatorError for what is none, or where no step is tested."""
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
    """Bind an operator, or a nest on a grid, to the ranks of a communicator, to be called again and again.

    Parameters
    ----------
    what : Operator or Nest
        An operator has its sizes, and takes a `schedule`. A nest takes a grid and all other options.
    comm : communicator, optional
        Of mpi4py or `dovetail.world()`. Default: all ranks that `dovetail launch` started, or those of the MPI program.
    grid : tuple of int
        Points along each axis of a nest.
    schedule : Schedule, optional
        Of an operator. Default: the schedule that `dovetail tune` saved for these ranks, else the operator's own.
    steps : int
        Iterations of the step loop; needed where the nest has one.
    dtype : str or NumPy dtype, optional
        Of the arrays that have none of their own. Default: float32 of stencils, float64 of pipelines.
    test : int, optional
        Stencils: steps from one test of convergence to the next. Default: no test.
    cut : tuple of int, optional
        Parts along each axis. Default: so that the fewest bytes travel.
    depth : int, optional
        Stencils: steps between exchanges of ghost rows. Pipelines over one axis: steps of a band.
    overlapped : bool, optional
        Whether messages travel while other points are computed. Default: true of pipelines, false of stencils.
    tile : int, optional
        Stencils: rows that take `depth` steps together.
    shares : tuple of int or "measured", optional
        Stencils: rows of each part along the first axis; "measured" gives each rank as many as its speed allows.
    mapped : int, optional
        Pipelines: the axis whose tiles are on one rank.
    grain : int, optional
        Pipelines: positions of that axis that are a tile.

    Returns
    -------
    Bound
        Called with this rank's arrays. Of a nest, `blocks` says where this rank's parts of its arrays lie. A nest for
        which none of `cut` and what follows it is given runs by the schedule that `dovetail tune` saved.

    Raises
    ------
    OperatorError
        On every rank, where ranks ask for different things, or one for what cannot be; where `schedule` is no
        Schedule; and for an option that this nest, or an operator, does not take.
    ProgramError
        On every rank, where the schedule's Program cannot be proved.
    """
    about: dict[str, Any] = {"steps": steps, "dtype": dtype, "test": test, "cut": cut, "depth": depth}
    about |= {"overlapped": overlapped, "tile": tile, "shares": shares, "mapped": mapped, "grain": grain}
    options = {name: value for name, value in about.items() if value is not None} | unknown  # refused on every rank
    world = ranks_of(comm, blas=not isinstance(what, Nest))
    with world.together():
        if isinstance(what, Nest):
            options |= {} if schedule is None else {"schedule": schedule}
            return bind_nest(what, world, *read_options(what, grid, options))
        return bind_operator(what, world, schedule, [*options, *(["grid"] if grid is not None else [])])


def bind_operator(what: Operator, world: World, schedule: Schedule | None, refused: Sequence[str]) -> Bound:
    """Bind an operator, the same on every rank. OperatorError where it is none, or was given a nest's options."""
    operator = checked_operator(what)
    if refused:
        hint = f"give them to dovetail.{type(operator).__name__}(…): they are its fields"
        raise OperatorError("an operator takes no options but `schedule`", found=", ".join(refused), hint=hint)
    if not isinstance(schedule, Schedule | None):
        kind = "a class" if isinstance(schedule, type) else type(schedule).__name__
        hint = "leave it out for the tuned one, or give that of dovetail.plan(operator, machine).schedule"
        found = f"bind(…, schedule={shorten(repr(schedule), 80)})"
        raise OperatorError(f"no Schedule, but {kind}", found=found, hint=hint)
    asked = operator.to_json(), schedule and schedule.to_json()
    check_same(world, operator.title, {"schedule": schedule}, str(asked))
    made = BoundNest if isinstance(operator, StencilOperator | PipelineOperator) else Bound
    bound: Bound = bind_on(operator, world, schedule, made=made)
    return bound


def bind_nest(nest: Nest, world: World, grid: tuple[int, ...], options: Mapping[str, Any]) -> BoundNest:
    """Bind a nest, every rank with the same grid and options."""
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
    """Return rows along the first axis in proportion to the ranks' speeds: each computes its part in isolation."""
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
    each = world.size // cut[0]  # parts in a slab, which go at the pace of the slowest
    slabs = [min(speeds[place : place + each]) for place in range(0, world.size, each)] if speeds else []
    found: list[int] = json.loads(world.share(json.dumps(proportional(operator.rows[0], slabs)) if speeds else ""))
    return tuple(found)


def proportional(rows: int, speeds: Sequence[float]) -> list[int]:
    """Return `rows` shared in proportion to `speeds`, at least one each.

    >>> proportional(12, [1.0, 3.0]), proportional(3, [1.0, 1.0, 98.0])
    ([3, 9], [1, 1, 1])
    """
    ends = [round(rows * end / sum(speeds)) for end in accumulate(speeds)]
    found = [high - low for low, high in pairwise([0, *ends])]
    while min(found) < 1 < max(found):
        found[found.index(max(found))] -= 1
        found[found.index(min(found))] += 1
    return found
