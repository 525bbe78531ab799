"""levels: which time levels of an array with a time axis are kept, and which of them the user gives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine
from dovetail.loops.expressions import Read
from dovetail.loops.recording import Loop, Recording, Statement


class Levels(NamedTuple):
    """Step t of the time loop writes level t + `ahead`; `depth` levels are kept, of which all but one are given.

    `varies`: which elements of its level a step writes depends on the step.
    """

    loop: Loop
    ahead: int
    depth: int
    varies: bool

    @property
    def given(self) -> int:
        return self.depth - 1


def time_offset(read: Read, loop: Loop) -> int:
    """Return c of the level t + c that an access touches."""
    return (read.at[0] - Affine(((loop.index, 1),))).constant


@lru_cache(maxsize=256)
def levels_of(nest: Recording) -> Mapping[str, Levels]:
    """Return the levels of each array with a time axis.

    Raises OperatorError unless its first subscript is c plus the index of one loop that holds all statements.
    """
    return {name: _levels(nest, name) for name, array in nest.arrays.items() if array.time}


def _levels(nest: Recording, name: str) -> Levels:
    accesses = list(nest.accesses(name))
    if name not in nest.written:
        raise OperatorError(f"array {name} has a time axis, and no statement writes it", hint="leave out time=True")
    loop = _time_loop(nest, accesses[0][0])
    for statement, each in accesses:
        if each.at[0].key != ((loop.index, 1),) and (each.at[0] - Affine(((loop.index, 1),))).terms:
            hint = f"its first subscript is {loop.index}, plus or minus a number"
            raise OperatorError(f"array {name} has a time axis", where=statement.line, found=str(each), hint=hint)
    ahead = {time_offset(statement.target, loop) for statement, each in accesses if each is statement.target}
    if len(ahead) > 1:
        found = ", ".join(f"{loop.index} + {each}" for each in sorted(ahead))
        raise OperatorError(f"array {name} is written at several levels in one step", found=found, hint="write one")
    newest = max(ahead)
    oldest = min(newest - 1, *(time_offset(each, loop) for _, each in accesses))
    if oldest + loop.low.constant or loop.low.terms:
        first = f"the first level that is accessed is {loop.low + oldest}"
        which = "later" if oldest + loop.low.constant < 0 else "earlier"
        same = f"loop({-oldest}, {loop.high - loop.low - oldest})"
        hint = f"levels count from 0: {same} makes as many steps; or use {which} subscripts"
        raise OperatorError(
            f"array {name} has levels that no argument gives", where=accesses[0][0].line, found=first, hint=hint
        )
    varies = any(_varies(statement, loop) for statement, each in accesses if each is statement.target)
    return Levels(loop, newest, newest - oldest + 1, varies)


def _varies(statement: Statement, loop: Loop) -> bool:
    """Whether a subscript that a statement writes, or a bound of its loops, depends on this loop's index."""
    bounds = (bound for each in statement.loops for bound in (each.low, each.high))
    return any(loop.index in each.names for each in (*statement.target.at[1:], *bounds))


def check_constant(nest: Recording) -> None:
    """Raise OperatorError if the set of elements written in a level changes from step to step.

    Such a nest runs serially only: no statement writes the other elements, which keep their value of an older level.
    """
    for name, levels in levels_of(nest).items():
        if levels.varies:
            index = levels.loop.index
            what = f"the elements of {name} that a step writes change with {index}: such a nest runs serially only"
            line = next(statement.line for statement, each in nest.accesses(name) if each is statement.target)
            hint = f"write bounds and subscripts without {index}"
            raise OperatorError(f"{nest.name}: {what}", where=line, hint=hint)


def _time_loop(nest: Recording, statement: Statement) -> Loop:
    outermost = nest.body[0]
    if len(nest.body) != 1 or not isinstance(outermost, Loop):
        hint = "write one time loop around all statements"
        raise OperatorError(f"{nest.name} has an array with a time axis", where=statement.line, hint=hint)
    return outermost
