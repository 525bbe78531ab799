"""bind: an operator, or a nest on a grid, bound to the ranks of a communicator, to be called again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dovetail.call.bound import Bound, bind_on, check_same
from dovetail.call.nest_operators import operator_of
from dovetail.call.nest_options import read_options
from dovetail.core import OperatorError, parse_count
from dovetail.ir import Operator, Schedule
from dovetail.ir.registry import checked_operator
from dovetail.ir.signature import Signature
from dovetail.loops import Nest
from dovetail.loops.blocks import grid_text
from dovetail.pipeline.operator import PipelineOperator
from dovetail.run.embedded import STALL_S, Embedded, ranks_of
from dovetail.run.options import RunOptions
from dovetail.run.world import World
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


def bind(what: Operator | Nest, comm: Any = None, grid: Any = None, **options: Any) -> Any:
    """Bind an operator, or a nest on a grid, to the ranks of a communicator, to be called again and again.

    Parameters
    ----------
    what : Operator or Nest
        A nest needs a `grid`, the lengths of its axes.
    comm : mpi4py communicator, optional
        All ranks of the MPI program where there is none.
    **options
        Of a nest: `steps`, `dtype`, `cut` (parts by axis), `overlapped`. Of a stencil also `depth` (steps between
        exchanges of ghost rows), `tile` (rows that take these steps together), `test` (steps between tests of
        convergence) and `shares` (rows of each part along the first axis, or "measured": by the speeds of the ranks).
        Of a pipeline `mapped` (the axis whose tiles are on one rank) and `grain` (positions of it that are a tile);
        over one axis `grain` and `depth` (steps of a band). Of an operator: `schedule`.

    Returns
    -------
    Bound
        Called with this rank's arrays. Where no schedule is asked for, it is the one that `dovetail tune` kept for
        these ranks, else the operator's default. Of a nest, `blocks` are the places of this rank's parts of its arrays.

    Raises
    ------
    OperatorError
        On every rank, where ranks ask for different things, or one for what cannot be.
    ProgramError
        On every rank, where the schedule's Program cannot be proved.
    """
    world = ranks_of(comm, blas=not isinstance(what, Nest))
    with world.together():
        if isinstance(what, Nest):
            return bind_nest(what, world, *read_options(what, grid, options))
        schedule = options.pop("schedule", None)
        if options or grid is not None:
            found = ", ".join([*options, *(["grid"] if grid is not None else [])])
            raise OperatorError("an operator takes no options but `schedule`", found=found, hint="they are its fields")
        operator = checked_operator(what)
        check_same(world, operator.title, {"schedule": schedule}, str(operator.to_json()))
        made = BoundNest if isinstance(operator, StencilOperator | PipelineOperator) else Bound
        return bind_on(operator, world, schedule, made=made)


def bind_nest(nest: Nest, world: World, grid: tuple[int, ...], options: Mapping[str, Any]) -> BoundNest:
    """Bind a nest, every rank with the same grid and options."""
    check_same(world, f"{nest.name}, grid {grid_text(grid)}", options, str(nest))
    kind = operator_of(nest)
    known = {field.name for field in fields(kind)} - {"grid"}
    if strange := [name for name in options if name not in (*known, *kind.asked_options)]:
        hint = f"it takes {', '.join((*sorted(known), *kind.asked_options))}"
        raise OperatorError(f"{nest.name} on ranks takes no '{strange[0]}'", hint=hint)
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
