"""sweeps: statements as one sweep over a box of a grid: the point that they write, and how far from it they read.

Stencils and pipelines are both made of sweeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine, extreme
from dovetail.loops.expressions import Read
from dovetail.loops.matrices import Vector
from dovetail.loops.recording import Loop, Recording, Statement, Take

Node = Loop | Statement | Take


class Place(NamedTuple):
    """One subscript: `offset` from the computed point along `axis` of the grid. If `axis` is None, `offset` is a
    constant index."""

    axis: int | None
    offset: Affine


@dataclass(frozen=True, eq=False)
class Sweep:
    """Statements on every point of a box of the grid. `order`: the axes, the outermost loop first.

    `low`, `high`: the box, by axis. `signs`: 1 where its loop goes up along an axis, -1 where it goes down. `places`:
    the subscripts, without the step, of each element that is read or written, by the element's text.
    """

    name: str
    statements: tuple[Statement, ...]
    order: tuple[int, ...]
    low: tuple[Affine, ...]
    high: tuple[Affine, ...]
    signs: Vector
    places: Mapping[str, tuple[Place, ...]]

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The arrays that it writes."""
        return tuple(dict.fromkeys(statement.target.array for statement in self.statements))

    @cached_property
    def reads(self) -> Mapping[str, tuple[tuple[Place, ...], ...]]:
        """For every array that it reads or writes: the places that it reads, each once."""
        found: dict[str, dict[str, tuple[Place, ...]]] = {}
        for statement in self.statements:
            for read in statement.reads:
                found.setdefault(read.array, {})[str(read)] = self.places[str(read)]
            found.setdefault(statement.target.array, {})
        return {name: tuple(each.values()) for name, each in found.items()}

    def offsets(self, array: str) -> list[dict[int, int]]:
        """Return, for each element that it reads of an array, the distance from the point by axis of the grid."""
        return [{p.axis: p.offset.constant for p in places if p.axis is not None} for places in self.reads[array]]

    def reach(self, axis: int, *arrays: str) -> tuple[int, int]:
        """Return how far before (≤ 0) and beyond (≥ 0) a point it reads of these arrays; default: of all."""
        found = [offset.get(axis, 0) for array in arrays or self.reads for offset in self.offsets(array)]
        return min([0, *found]), max([0, *found])


def sweep_of(
    nest: Recording, kind: str, statements: Sequence[Statement], loops: Sequence[Loop], shape: tuple[str | int, ...]
) -> Sweep:
    """Return statements of the same loops as one sweep over a grid of that shape.

    Raises the OperatorError of `refusal` if they write at several points, if an axis has no loop of its own, or if
    something that they read is at no fixed distance.
    """
    point, axis_of = space(nest, statements[0].target), dict[str, int]()
    for statement in statements:
        axis_of = axes_of(nest, statement.target, loops)
        if not axis_of or nest.arrays[statement.target.array].shape != shape:
            hint = "write u[i, j] = … with one loop for every axis, each with a step of 1 or -1"
            raise refusal(nest, kind, f"{statement.target} is not the point of its loops", statement.line, hint)
        if [at.key for at in space(nest, statement.target)] != [at.key for at in point]:
            hint, what = "let all statements of a loop write at the same indices", str(statements[0].target)
            raise refusal(nest, kind, f"{statement.target} is not at the point of {what}", statement.line, hint)
    for loop in loops:
        if not {*loop.low.names, *loop.high.names} <= nest.code.symbols:
            why = f"the bounds of {loop.index} change with other loops"
            raise refusal(nest, kind, why, statements[0].line, "use a box")
    accesses = ((each, access) for each in statements for access in (*each.reads, each.target))
    places = {str(access): _places(nest, kind, each, access, axis_of, point) for each, access in accesses}
    order, by_axis = tuple(axis_of[loop.index] for loop in loops), {axis: name for name, axis in axis_of.items()}
    low, high = tuple(extreme(at, loops, -1) for at in point), tuple(extreme(at, loops, 1) + 1 for at in point)
    signs = tuple(at.factor(by_axis[axis]) for axis, at in enumerate(point))
    return Sweep(f"{nest.name}_{statements[0].name}", tuple(statements), order, low, high, signs, places)


def axes_of(nest: Recording, access: Read, loops: Sequence[Loop]) -> dict[str, int]:
    """Return the axis that each loop goes along, by the loop's index.

    Empty unless each subscript of `access` except the step is the index of one loop, with factor 1 or -1, and each
    loop has a subscript.
    """
    found, point = dict[str, int](), space(nest, access)
    for axis, at in enumerate(point):
        own = [loop.index for loop in loops if loop.index in at.names]
        if len(own) != 1 or abs(at.factor(own[0])) != 1 or not {*at.names} - {*own} <= nest.code.symbols:
            return {}
        found[own[0]] = axis
    return found if len(found) == len(point) == len(loops) else {}


def _places(
    nest: Recording, kind: str, statement: Statement, access: Read, axis_of: Mapping[str, int], point: Sequence[Affine]
) -> tuple[Place, ...]:
    found, shape = [], nest.arrays[statement.target.array].shape
    for at, size in zip(space(nest, access), nest.arrays[access.array].shape, strict=True):
        own = [name for name in at.names if name in axis_of]
        axis = axis_of[own[0]] if len(own) == 1 else None
        offset = at if axis is None else at - point[axis]
        if len(own) > 1 or (own and offset.terms) or (axis is not None and shape[axis] != size):
            hint = "use u[i - 1, j] and the like, on axes that are as long as those of the grid"
            why = f"{access} is at no fixed distance from {statement.target}"
            raise refusal(nest, kind, why, statement.line, hint)
        found.append(Place(axis, offset))
    return tuple(found)


def space(nest: Recording, access: Read) -> tuple[Affine, ...]:
    """Return the subscripts of an element, without that of the step."""
    return access.at[nest.arrays[access.array].time :]


def nested(each: Node) -> tuple[list[Loop], list[Node]]:
    """Return perfectly nested loops, the outermost first, and the body of the innermost."""
    loops, body = list[Loop](), [each]
    while len(body) == 1 and isinstance(body[0], Loop):
        loops.append(body[0])
        body = body[0].body
    return loops, body


def steps_of(nest: Recording) -> Loop | None:
    """Return the time loop, or None: it holds all statements, and no subscript of space uses its index."""
    only = nest.body[0] if len(nest.body) == 1 else None
    accesses = (each for name in nest.arrays for _, each in nest.accesses(name))
    if not isinstance(only, Loop) or any(only.index in at.names for each in accesses for at in space(nest, each)):
        return None
    return only


def refusal(
    nest: Recording, kind: str, why: str, where: str | None, hint: str, found: str | None = None
) -> OperatorError:
    """Return the error that a nest is not of a kind, "stencil" or "pipeline"."""
    return OperatorError(f"{nest.name} is no {kind}: {why}", where=where, found=found, hint=hint)
