"""sweeps: analyse a nest as a stencil: one sweep per statement, and the array versions that each sweep reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine
from dovetail.loops.arguments import margins
from dovetail.loops.expressions import Read, Value, with_reads
from dovetail.loops.levels import check_constant, levels_of, time_offset
from dovetail.loops.one_index import with_all_loops
from dovetail.loops.order import carries
from dovetail.loops.recording import Loop, Recording, Statement
from dovetail.loops.taken import check_untaken


class Operand(NamedTuple):
    """Rows that a sweep reads: of an array, `back` versions before the newest, shifted along the axes of rows."""

    array: str
    back: int
    shift: tuple[int, ...]


class Element(NamedTuple):
    """An element that an expression reads: of which operand, and how far along a row."""

    operand: int
    along: int


@dataclass(frozen=True)
class Sweep:
    """One statement on a box of the grid, row by row.

    `operands`: the rows that it reads. `keeps`: the ends of a row are not computed but copied from the version before,
    which then is the first operand. `elements`: the elements that `value` reads, by their text. `low`, `high`: the box.
    """

    name: str
    target: str
    value: Value
    operands: tuple[Operand, ...]
    elements: Mapping[str, Element]
    low: tuple[Affine, ...]
    high: tuple[Affine, ...]
    keeps: bool
    line: str


@dataclass(frozen=True)
class Stencil:
    """A sequence of sweeps over arrays of one shape, repeated `steps` times.

    `row_axes`: number of leading axes that are cut into rows. By array: `depth`: number of versions that are stored;
    `given`: number of versions that the user gives; `boundary`: the kind of rows beyond the ends of the grid;
    `margins`: number of elements before and after the ends of each row.
    """

    name: str
    shape: tuple[str | int, ...]
    row_axes: int
    sweeps: tuple[Sweep, ...]
    depth: Mapping[str, int]
    given: Mapping[str, int]
    boundary: Mapping[str, str | None]
    margins: Mapping[str, tuple[int, int]]
    steps: Affine

    @property
    def written(self) -> tuple[str, ...]:
        targets = {sweep.target for sweep in self.sweeps}
        return tuple(name for name in self.depth if name in targets)

    @property
    def tested(self) -> str | None:
        """The array whose change decides convergence: the first one with two time levels."""
        return next((name for name in self.written if self.depth[name] > 1), None)


def stencil_of(nest: Recording) -> Stencil:
    """Analyse a nest as a stencil. Raises OperatorError with the reason if it is none."""
    check_untaken(nest)
    check_constant(nest)
    nest = with_all_loops(nest, elements=bool(levels_of(nest)))
    shape = next(iter(nest.arrays.values())).shape
    for name, array in nest.arrays.items():
        if array.shape != shape:
            raise _none(
                nest, f"array {name} has other axes than the first", None, "give all arrays the axes of the grid"
            )
    if len(nest.body) != 1 or not isinstance(outer := nest.body[0], Loop):
        raise _none(nest, "it is not one loop of steps", None, "write one loop around all statements")
    row_axes = max(len(shape) - 1, 1)
    sweeps = tuple(_sweep(nest, outer, statement, row_axes) for statement in nest.statements)
    counts = Counter(sweep.target for sweep in sweeps)
    hint = "write one, with a loop for every axis; loops over plain numbers are written out"
    if repeated := [name for name in levels_of(nest) if counts[name] > 1]:
        raise _none(nest, f"array {repeated[0]} is written by several statements", None, hint)
    depth = {name: levels_of(nest)[name].depth if name in levels_of(nest) else 1 for name in nest.arrays}
    given = {name: levels_of(nest)[name].given if name in levels_of(nest) else 1 for name in nest.arrays}
    along = {name: margins(nest, name)[-1] if len(shape) > 1 else (0, 0) for name in nest.arrays}
    steps = outer.high - outer.low
    return Stencil(nest.name, shape, row_axes, sweeps, depth, given, _boundaries(nest, sweeps), along, steps)


def _boundaries(nest: Recording, sweeps: Sequence[Sweep]) -> dict[str, str | None]:
    """The boundary of each array. A part computes ghost rows of a periodic array beyond the ends of the grid, so the
    arrays that these rows are computed from count as periodic, too, even if they are declared in place or fixed."""
    found = {name: array.boundary for name, array in nest.arrays.items()}
    for _ in sweeps:  # each pass finds at least one more array, or nothing changes any more
        around = {o.array for sweep in sweeps if found[sweep.target] == "periodic" for o in sweep.operands}
        found |= {name: "periodic" for name in around if found[name] != "reflecting"}
    return found


def _none(nest: Recording, why: str, where: str | None, hint: str) -> OperatorError:
    return OperatorError(f"{nest.name} is no stencil: {why}", where=where, hint=hint)


def _sweep(nest: Recording, outer: Loop, statement: Statement, row_axes: int) -> Sweep:
    _check_free(nest, statement, statement.loops[1:])
    statement = by_grid(nest, statement)
    loops = statement.loops[1:]
    target = statement.target
    space = target.at[nest.arrays[target.array].time :]
    plain = [Affine(((loop.index, 1),)).key for loop in loops]
    if [each.key for each in space] != plain:
        hint = "write u[t + 1, i, j] = … with the loops over i and j in this order"
        raise _none(nest, f"{target} is not the point of its loops", statement.line, hint)
    low, high = tuple(loop.low for loop in loops), tuple(loop.high for loop in loops)
    keeps = len(loops) > 1 and not (low[-1].key == ((), 0) and _is_size(nest, target, high[-1]))
    operands = dict.fromkeys([Operand(target.array, 1, (0,) * row_axes)] if keeps or not statement.reads else [])
    elements = {}
    for read in statement.reads:
        operand, along = _source(nest, statement, read, row_axes)
        operands[operand] = None
        elements[str(read)] = Element([*operands].index(operand), along)
    name = f"{nest.name}_{statement.name}"
    return Sweep(name, target.array, statement.value, (*operands,), elements, low, high, keeps, statement.line)


def _check_free(nest: Recording, statement: Statement, loops: Sequence[Loop]) -> None:
    for loop in loops:
        if loop in statement.loops and carries(nest, loop):
            hint = "a pipeline may be, in place or of two levels"
            raise _none(nest, f"within a step, iterations of {loop.index} need one another", statement.line, hint)
        if _leans(loop, statement.loops):
            raise _none(nest, f"the bounds of {loop.index} change with other loops", statement.line, "use a box")


def _leans(loop: Loop, loops: Sequence[Loop]) -> bool:
    return any(name in {each.index for each in loops} for name in (*loop.low.names, *loop.high.names))


def by_grid(nest: Recording, statement: Statement) -> Statement:
    """If iterations are independent: reorder the statement's loops like the grid's axes, each running forwards."""
    steps, *loops = statement.loops
    if any(carries(nest, loop) or _leans(loop, loops) for loop in loops):
        return statement
    time = nest.arrays[statement.target.array].time
    named = {loop.index: loop for loop in loops}
    turned, found = list[Loop](), dict[str, Affine]()
    for at in statement.target.at[time:]:
        index = next((name for name in at.names if name in named), "")
        if abs(at.factor(index)) != 1 or index in found:
            return statement
        loop, sign = named[index], at.factor(index)
        ends = at.put(index, loop.low), at.put(index, loop.high - 1)
        turned.append(Loop(index, ends[0] if sign > 0 else ends[1], (ends[1] if sign > 0 else ends[0]) + 1))
        found[index] = (Affine(((index, 1),)) - at.put(index, Affine())) * sign
    if len(turned) < len(loops):
        return statement
    place = partial(_moved, found)
    value = with_reads(statement.value, place)
    return replace(statement, target=place(statement.target), value=value, loops=(steps, *turned))


def _moved(indices: Mapping[str, Affine], read: Read) -> Read:
    """The element with its indices replaced."""
    moved = []
    for at in read.at:
        rest = Affine(tuple(term for term in at.terms if term[0] not in indices), at.constant, at.owner)
        moved.append(sum((indices[name] * factor for name, factor in at.terms if name in indices), rest))
    return replace(read, at=tuple(moved))


def _is_size(nest: Recording, target: Read, high: Affine) -> bool:
    return high.key == nest.code.symbol(nest.arrays[target.array].shape[-1]).key


def _source(nest: Recording, statement: Statement, read: Read, row_axes: int) -> tuple[Operand, int]:
    loops = statement.loops[1:]
    offsets = []
    for each, loop in zip(read.at[nest.arrays[read.array].time :], loops, strict=True):
        gap = each - Affine(((loop.index, 1),))
        if gap.terms:
            raise _none(nest, f"{read} is at no fixed distance from {statement.target}", statement.line, "use offsets")
        offsets.append(gap.constant)
    operand = Operand(read.array, _back(nest, statement, read), tuple(offsets[:row_axes]))
    return operand, (offsets[-1] if len(loops) > row_axes else 0)


def _back(nest: Recording, statement: Statement, read: Read) -> int:
    """The age of the version that is read, in versions before the one that this step writes."""
    if read.array in levels_of(nest):
        return levels_of(nest)[read.array].ahead - time_offset(read, levels_of(nest)[read.array].loop)
    return int(read.array == statement.target.array)


class Event(NamedTuple):
    """One sweep of a run: the version that it writes, and that of each of its operands."""

    sweep: Sweep
    version: int
    reads: tuple[int, ...]


def events(stencil: Stencil, steps: int) -> Iterator[Event]:
    """All sweeps of a run, in order. Versions are numbered from 0, the oldest one that the user gives."""
    newest = {name: given - 1 for name, given in stencil.given.items()}
    kept = {name for name, depth in stencil.depth.items() if depth > 1}
    for step in range(steps):
        for sweep in stencil.sweeps:
            written = {name: stencil.given[name] + step if name in kept else newest[name] for name in newest}
            if sweep.target not in kept:
                written[sweep.target] = newest[sweep.target] + 1
            yield Event(sweep, written[sweep.target], tuple(written[o.array] - o.back for o in sweep.operands))
            newest[sweep.target] = written[sweep.target]


def last_version(stencil: Stencil, name: str, steps: int) -> int:
    """The newest version of an array after `steps` steps."""
    return stencil.given[name] - 1 + steps * sum(sweep.target == name for sweep in stencil.sweeps)
