"""sweeps: a nest as the sweeps of a pipeline, the dependences within each, and the axes that may be cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine
from dovetail.loops.dependences import Dependence, dependences
from dovetail.loops.expressions import Read
from dovetail.loops.in_place import in_place
from dovetail.loops.levels import levels_of
from dovetail.loops.matrices import Vector
from dovetail.loops.one_index import with_all_loops
from dovetail.loops.order import statements as statements_in
from dovetail.loops.recording import Loop, Recording, Statement, Take
from dovetail.loops.taken import check_untaken
from dovetail.pipeline.skews import least_lean


class Place(NamedTuple):
    """One subscript: of which axis of the grid and how far from the point that is computed; without an axis it is a
    place that does not change, `offset` from the first element."""

    axis: int | None
    offset: Affine


@dataclass(frozen=True, eq=False)
class Sweep:
    """Statements on every point of a box of the grid, in the order of `order` (its axes, the outermost loop first).

    `low`, `high`: the box, by axis. `signs`: 1 where its loop goes up along an axis, -1 where it goes down.
    """

    name: str
    statements: tuple[Statement, ...]
    order: tuple[int, ...]
    low: tuple[Affine, ...]
    high: tuple[Affine, ...]
    signs: Vector
    places: Mapping[str, tuple[Place, ...]]  # of each element that it reads or writes, by its text

    @cached_property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(statement.target.array for statement in self.statements))

    @cached_property
    def reads(self) -> Mapping[str, tuple[tuple[Place, ...], ...]]:
        """Of every array that it reads or writes, the places that it reads, each once."""
        found: dict[str, dict[str, tuple[Place, ...]]] = {}
        for statement in self.statements:
            for read in statement.reads:
                found.setdefault(read.array, {})[str(read)] = self.places[str(read)]
            found.setdefault(statement.target.array, {})
        return {name: tuple(each.values()) for name, each in found.items()}

    def offsets(self, array: str) -> list[dict[int, int]]:
        """How far from the point each element of an array lies that it reads, by axis of the grid."""
        return [{p.axis: p.offset.constant for p in places if p.axis is not None} for places in self.reads[array]]


@dataclass(frozen=True, eq=False)
class Single:
    """A statement on one point, outside of all loops over the grid."""

    name: str
    statement: Statement


class Inner(NamedTuple):
    """A dependence of iterations of one sweep in one step: how far it goes along each axis, as the sweep's loops do."""

    by: Vector
    dependence: Dependence


@dataclass(frozen=True, eq=False)
class Pipelined:
    """Sweeps and single statements, one after the other, again in every step.

    `axes`: which axis of the grid each axis of an array goes along, None where it goes along none. `inner`: the
    dependences within each sweep, those of memory too.
    """

    nest: Recording
    shape: tuple[str | int, ...]
    phases: tuple[Sweep | Single, ...]
    axes: Mapping[str, tuple[int | None, ...]]
    steps: Loop | None
    inner: Mapping[str, tuple[Inner, ...]]

    @property
    def name(self) -> str:
        return self.nest.name

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        return tuple(phase for phase in self.phases if isinstance(phase, Sweep))

    @cached_property
    def forward(self) -> tuple[int, ...]:
        """The axes along which no dependence goes backwards: those that may be cut."""
        each = [inner.by for some in self.inner.values() for inner in some]
        return tuple(axis for axis in range(len(self.shape)) if all(by[axis] >= 0 for by in each))

    @cached_property
    def mappable(self) -> tuple[int, ...]:
        """The axes whose tiles may be on one rank while another is cut; upright ones first. A lone axis may, for steps
        are cut then."""
        if len(self.shape) == 1:
            return (0,)
        axes = [*self.forward, *(axis for axis in range(len(self.shape)) if axis not in self.forward)]
        return tuple(axis for axis in axes if set(self.forward) - {axis})

    def lean(self, sweep: Sweep, mapped: int, cut: Vector) -> Vector:
        """How far the tiles of a sweep along an axis lean, by axis (see `skews`)."""
        return least_lean([inner.by for inner in self.inner[sweep.name]], sweep.order, mapped, cut)

    @property
    def written(self) -> tuple[str, ...]:
        return self.nest.written


def pipelined_of(nest: Recording) -> Pipelined:
    """Analyse a nest as a pipeline. Raises OperatorError with the reason if it is none.

    >>> from dovetail.loops.problems import gauss_seidel2d, sync_p2p
    >>> [phase.name for phase in pipelined_of(sync_p2p).phases], pipelined_of(gauss_seidel2d).forward
    (['sync_p2p_S0', 'sync_p2p_S1'], (0, 1))
    """
    check_untaken(nest)
    if levels_of(nest):
        nest = in_place(nest)
    nest = with_all_loops(nest)
    steps, body = _steps(nest)
    first = next((each for each in body if isinstance(each, Loop)), None)
    if first is None:
        raise _none(nest, "it has no loops over a grid", None, "write a loop for every axis of the array")
    shape = nest.arrays[next(statements_in(first)).target.array].shape
    axes: dict[str, tuple[int | None, ...]] = {}
    phases = tuple(_phase(nest, each, steps, shape, axes) for each in body)
    for name in (name for name in nest.arrays if name not in axes):
        axes[name] = _alone(nest, name, shape)
    inner = _inner(nest, [each for each in phases if isinstance(each, Sweep)], bool(steps))
    found = Pipelined(nest, shape, phases, axes, steps, inner)
    if not found.mappable:
        raise _cannot_cut(found)
    return found


def _none(nest: Recording, why: str, where: str | None, hint: str, found: str | None = None) -> OperatorError:
    return OperatorError(f"{nest.name} is no pipeline: {why}", where=where, found=found, hint=hint)


def _cannot_cut(found: Pipelined) -> OperatorError:
    sweep, axis, inner = next(_backward(found))
    loops = inner.dependence.sink.loops[-len(sweep.order) :]
    index = loops[sweep.order.index(axis)].index
    vector = ", ".join(map(str, inner.dependence.distance))
    what = f"its dependence ({vector}) goes backwards along {index}, and others along the other axes"
    text = f"{inner.dependence.source_access} of one iteration is {inner.dependence.sink_access} of another"
    hint = "let the outermost loops of all its sweeps be over the same axis, or call it on whole arrays"
    return _none(found.nest, what, inner.dependence.sink.line, hint, text)


def _backward(found: Pipelined) -> Iterator[tuple[Sweep, int, Inner]]:
    """The dependences that go backwards along an axis, with it."""
    for sweep in found.sweeps:
        for inner in found.inner[sweep.name]:
            yield from ((sweep, axis, inner) for axis, by in enumerate(inner.by) if by < 0)


def _steps(nest: Recording) -> tuple[Loop | None, Sequence[Loop | Statement | Take]]:
    """The loop of steps, whose index no subscript has, and what is in it."""
    if len(nest.body) == 1 and isinstance(only := nest.body[0], Loop):
        accesses = [a for statement in nest.statements for a in (*statement.reads, statement.target)]
        if not any(only.index in subscript.names for access in accesses for subscript in access.at):
            return only, only.body
    return None, nest.body


def _phase(
    nest: Recording,
    each: Loop | Statement | Take,
    steps: Loop | None,
    shape: tuple[str | int, ...],
    axes: dict[str, tuple[int | None, ...]],
) -> Sweep | Single:
    if isinstance(each, Statement):
        return _single(nest, each, steps)
    assert isinstance(each, Loop)
    loops, body = [each], each.body
    while len(body) == 1 and isinstance(body[0], Loop):
        loops.append(body[0])
        body = body[0].body
    inner = [statement for statement in body if isinstance(statement, Statement)]
    if len(inner) < len(body) or not inner:
        hint = "write a nest of its own for each group of statements that have the same loops"
        raise _none(nest, f"the loops over {loops[-1].index} hold loops and statements beside them", None, hint)
    return _sweep(nest, loops, inner, shape, axes)


def _single(nest: Recording, statement: Statement, steps: Loop | None) -> Single:
    for access in (*statement.reads, statement.target):
        for subscript in access.at:
            if steps is not None and steps.index in subscript.names:
                raise _none(nest, f"{access} changes its place with {steps.index}", statement.line, "use fixed places")
    return Single(f"{nest.name}_{statement.name}", statement)


def _sweep(
    nest: Recording,
    loops: Sequence[Loop],
    inner: Sequence[Statement],
    shape: tuple[str | int, ...],
    axes: dict[str, tuple[int | None, ...]],
) -> Sweep:
    first = inner[0]
    indices = [loop.index for loop in loops]
    order, corner = _point(nest, first, indices, shape)
    keys = [subscript.key for subscript in first.target.at]
    for statement in inner[1:]:
        _point(nest, statement, indices, shape)
        if [subscript.key for subscript in statement.target.at] != keys:
            hint = "let all statements of a loop write at the same indices"
            raise _none(nest, f"{statement.target} is not at the point of {first.target}", statement.line, hint)
    for loop in loops:
        if not {*loop.low.names, *loop.high.names} <= nest.code.symbols:
            raise _none(nest, f"the bounds of {loop.index} change with other loops", first.line, "use a box")
    axis_of = dict(zip(indices, order, strict=True))
    places = {}
    for statement in inner:
        for access in (*statement.reads, statement.target):
            places[str(access)] = _places(nest, statement, access, axis_of, first.target.at, shape, axes)
    by_axis = {axis_of[loop.index]: loop for loop in loops}
    sides = [extent(by_axis[axis], sign, rest) for axis, (sign, rest) in enumerate(corner)]
    low, high = zip(*sides, strict=True)
    signs = tuple(sign for sign, _ in corner)
    return Sweep(f"{nest.name}_{first.name}", tuple(inner), order, low, high, signs, places)


def extent(loop: Loop, sign: int, rest: Affine) -> tuple[Affine, Affine]:
    """The least place that a loop's index, or what is left of `rest` when it is taken from there, has, and one beyond
    the greatest."""
    return (loop.low + rest, loop.high + rest) if sign > 0 else (rest - loop.high + 1, rest - loop.low + 1)


def _point(
    nest: Recording, statement: Statement, indices: Sequence[str], shape: tuple[str | int, ...]
) -> tuple[tuple[int, ...], list[tuple[int, Affine]]]:
    """The axis of each loop; and by axis whether the point that is written goes up or down with its index, and where
    it would be at index 0."""
    target = statement.target
    of_loop: dict[str, int] = {}
    corner = []
    for axis, subscript in enumerate(target.at):
        own = [name for name in subscript.names if name in indices]
        sign = subscript.factor(own[0]) if len(own) == 1 else 0
        rest = subscript - Affine(((own[0], sign),)) if sign else subscript
        if abs(sign) != 1 or own[0] in of_loop or (sign > 0 and rest.terms):
            hint = "write u[i, j] = … with one loop for every axis, each with a step of 1 or -1"
            raise _none(nest, f"{target} is not the point of its loops", statement.line, hint)
        of_loop[own[0]] = axis
        corner.append((sign, rest))
    if nest.arrays[target.array].shape != shape or len(of_loop) != len(indices):
        hint = "arrays that are written must all have the axes of the grid, and each axis one loop"
        raise _none(nest, f"{target} is not the point of its loops", statement.line, hint)
    return tuple(of_loop[index] for index in indices), corner


def _places(
    nest: Recording,
    statement: Statement,
    access: Read,
    axis_of: Mapping[str, int],
    point: Sequence[Affine],
    shape: tuple[str | int, ...],
    axes: dict[str, tuple[int | None, ...]],
) -> tuple[Place, ...]:
    found = []
    for subscript, size in zip(access.at, nest.arrays[access.array].shape, strict=True):
        own = [name for name in subscript.names if name in axis_of]
        axis = axis_of[own[0]] if len(own) == 1 else None
        rest = subscript if axis is None else subscript - point[axis]
        if len(own) > 1 or (own and rest.terms) or (axis is not None and shape[axis] != size):
            hint = "use u[i - 1, j] and the like, on axes that are as long as those of the grid"
            raise _none(nest, f"{access} is at no fixed distance from {statement.target}", statement.line, hint)
        found.append(Place(axis, rest))
    own_axes = tuple(place.axis for place in found)
    if axes.setdefault(access.array, own_axes) != own_axes or len({a for a in own_axes if a is not None}) < len(
        [a for a in own_axes if a is not None]
    ):
        hint = f"read {access.array} along the same axes everywhere"
        raise _none(nest, f"{access} goes along other axes than elsewhere", statement.line, hint)
    return tuple(found)


def _alone(nest: Recording, name: str, shape: tuple[str | int, ...]) -> tuple[int | None, ...]:
    """The axes of an array that no sweep touches."""
    return tuple(range(len(shape))) if nest.arrays[name].shape == shape else (None,) * len(nest.arrays[name].shape)


def _inner(nest: Recording, sweeps: Sequence[Sweep], steps: bool) -> dict[str, tuple[Inner, ...]]:
    found: dict[str, dict[Vector, Inner]] = {sweep.name: {} for sweep in sweeps}
    for sweep, vector, dependence in inner_dependences(nest, sweeps, steps):
        by = dict(zip(sweep.order, vector, strict=True))
        inner = Inner(tuple(by[axis] for axis in range(len(by))), dependence)
        found[sweep.name].setdefault(inner.by, inner)
    return {name: tuple(each.values()) for name, each in found.items()}


def inner_dependences(
    nest: Recording, sweeps: Sequence[Sweep], steps: bool
) -> Iterator[tuple[Sweep, Vector, Dependence]]:
    """The dependences, those of memory too, of iterations of one sweep in one step, by its loops."""
    for sweep in sweeps:
        for each in dependences(nest, sweep.statements):
            vector = each.distance[int(steps) :]
            if not any(each.distance[: int(steps)]) and any(vector):
                yield sweep, vector, each
