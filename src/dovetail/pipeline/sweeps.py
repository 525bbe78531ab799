"""sweeps: analyse a nest as the sweeps of a pipeline: the dependences within each, and the axes that can be cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dovetail.core import OperatorError
from dovetail.loops.analysis.dependences import Dependence, dependences
from dovetail.loops.analysis.order import statements as statements_in
from dovetail.loops.analysis.sweeps import Node, Sweep, nested, refusal, steps_of, sweep_of
from dovetail.loops.in_place import in_place
from dovetail.loops.levels import levels_of
from dovetail.loops.matrices import Vector
from dovetail.loops.one_index import with_all_loops
from dovetail.loops.recording import Loop, Recording, Statement
from dovetail.loops.taken import check_untaken
from dovetail.pipeline.skews import least_skew


@dataclass(frozen=True, eq=False)
class Single:
    """A statement on one point, outside of all loops over the grid."""

    name: str
    statement: Statement


class Inner(NamedTuple):
    """A dependence between iterations of a sweep in one step; `by`: its distance by axis, in the loops' direction."""

    by: Vector
    dependence: Dependence


@dataclass(frozen=True, eq=False)
class Pipelined:
    """Sweeps and single statements, executed one after the other in every step.

    `axes`: the axis of the grid that each axis of an array extends along; None: none. `inner`: the dependences within
    each sweep, anti- and output dependences included.
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
        """The axes along which no dependence goes backwards: these can be cut."""
        each = [inner.by for some in self.inner.values() for inner in some]
        return tuple(axis for axis in range(len(self.shape)) if all(by[axis] >= 0 for by in each))

    @cached_property
    def mappable(self) -> tuple[int, ...]:
        """The axes along which one rank's tiles may follow one another while another axis is cut; those of upright
        tiles first. The only axis of a grid may, as steps are cut then."""
        if len(self.shape) == 1:
            return (0,)
        axes = [*self.forward, *(axis for axis in range(len(self.shape)) if axis not in self.forward)]
        return tuple(axis for axis in axes if set(self.forward) - {axis})

    def skew(self, sweep: Sweep, mapped: int, cut: Vector) -> Vector:
        """Return the skew factors of a sweep's tiles, by axis (see `skews`)."""
        return least_skew([inner.by for inner in self.inner[sweep.name]], sweep.order, mapped, cut)

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
    steps = steps_of(nest)
    body = steps.body if steps else nest.body
    first = next((each for each in body if isinstance(each, Loop)), None)
    if first is None:
        raise refusal(nest, "pipeline", "it has no loops over a grid", None, "write a loop for every axis of the array")
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


def _cannot_cut(found: Pipelined) -> OperatorError:
    sweep, axis, inner = next(_backward(found))
    loops = inner.dependence.sink.loops[-len(sweep.order) :]
    index = loops[sweep.order.index(axis)].index
    vector = ", ".join(map(str, inner.dependence.distance))
    what = f"its dependence ({vector}) goes backwards along {index}, and others along the other axes"
    text = f"{inner.dependence.source_access} of one iteration is {inner.dependence.sink_access} of another"
    hint = "let the outermost loops of all sweeps run over the same axis, or call the nest on whole arrays"
    return refusal(found.nest, "pipeline", what, inner.dependence.sink.line, hint, text)


def _backward(found: Pipelined) -> Iterator[tuple[Sweep, int, Inner]]:
    """Yield the dependences that go backwards along an axis, with that axis."""
    for sweep in found.sweeps:
        for inner in found.inner[sweep.name]:
            yield from ((sweep, axis, inner) for axis, by in enumerate(inner.by) if by < 0)


def _phase(
    nest: Recording,
    each: Node,
    steps: Loop | None,
    shape: tuple[str | int, ...],
    axes: dict[str, tuple[int | None, ...]],
) -> Sweep | Single:
    if isinstance(each, Statement):
        return _single(nest, each, steps)
    loops, body = nested(each)
    inner = [statement for statement in body if isinstance(statement, Statement)]
    if len(inner) < len(body) or not inner:
        hint = "write a separate nest of loops for each group of statements that have the same loops"
        raise refusal(
            nest, "pipeline", f"the loops over {loops[-1].index} hold loops and statements beside them", None, hint
        )
    found = sweep_of(nest, "pipeline", inner, loops, shape)
    _check_axes(nest, found, axes)
    return found


def _single(nest: Recording, statement: Statement, steps: Loop | None) -> Single:
    for access in (*statement.reads, statement.target):
        for subscript in access.at:
            if steps is not None and steps.index in subscript.names:
                raise refusal(
                    nest,
                    "pipeline",
                    f"the place of {access} depends on {steps.index}",
                    statement.line,
                    "use fixed places",
                )
    return Single(f"{nest.name}_{statement.name}", statement)


def _check_axes(nest: Recording, sweep: Sweep, axes: dict[str, tuple[int | None, ...]]) -> None:
    """Record which axis of the grid each axis of an array extends along. Raises OperatorError if it is not the same in
    all statements, or two axes of an array extend along one axis."""
    for statement in sweep.statements:
        for access in (*statement.reads, statement.target):
            own = tuple(place.axis for place in sweep.places[str(access)])
            known = [axis for axis in own if axis is not None]
            if axes.setdefault(access.array, own) != own or len({*known}) < len(known):
                why, hint = f"{access} goes along other axes than elsewhere", f"read {access.array} along the same axes"
                raise refusal(nest, "pipeline", why, statement.line, f"{hint} everywhere")


def _alone(nest: Recording, name: str, shape: tuple[str | int, ...]) -> tuple[int | None, ...]:
    """Return the axes of an array that no sweep accesses."""
    return tuple(range(len(shape))) if nest.arrays[name].shape == shape else (None,) * len(nest.arrays[name].shape)


def _inner(nest: Recording, sweeps: Sequence[Sweep], steps: bool) -> dict[str, tuple[Inner, ...]]:
    """Return the dependences (anti- and output dependences included) between iterations of each sweep in one step."""
    found: dict[str, dict[Vector, Inner]] = {sweep.name: {} for sweep in sweeps}
    for sweep in sweeps:
        for each in dependences(nest, sweep.statements):
            by = dict(zip(sweep.order, each.distance[int(steps) :], strict=True))
            inner = Inner(tuple(by[axis] for axis in range(len(by))), each)
            if not any(each.distance[: int(steps)]) and any(inner.by):
                found[sweep.name].setdefault(inner.by, inner)
    return {name: tuple(each.values()) for name, each in found.items()}
