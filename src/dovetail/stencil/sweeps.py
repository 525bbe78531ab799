"""sweeps: analyse a nest as a stencil: one sweep per statement, and the array versions that each sweep reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from dovetail.loops.affine import Affine
from dovetail.loops.analysis.order import carries
from dovetail.loops.analysis.sweeps import Sweep, refusal, sweep_of
from dovetail.loops.arguments import margins
from dovetail.loops.expressions import Read, Value, with_reads
from dovetail.loops.levels import check_constant, levels_of, time_offset
from dovetail.loops.one_index import with_all_loops
from dovetail.loops.recording import Loop, Recording, Statement
from dovetail.loops.taken import check_untaken


class Operand(NamedTuple):
    """Rows that a sweep reads: of an array, `back` versions before the newest, shifted along the axes of rows."""

    array: str
    back: int
    shift: tuple[int, ...]


class Element(NamedTuple):
    """An element that an expression reads: the number of its operand, and its offset along the row."""

    operand: int
    along: int


@dataclass(frozen=True, eq=False)
class RowSweep(Sweep):
    """A sweep of one statement, row by row.

    `value`: its expression, with indices that increase along the axes. `operands`: the rows that it reads. `elements`:
    where each element of the expression lies, by its text. `keeps`: the sweep copies the uncomputed ends of each row
    from the version before, which is then the first operand.
    """

    value: Value
    operands: tuple[Operand, ...]
    elements: Mapping[str, Element]
    keeps: bool

    @property
    def target(self) -> str:
        return self.targets[0]


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
    sweeps: tuple[RowSweep, ...]
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
            raise refusal(
                nest,
                "stencil",
                f"array {name} has axes that the first array does not have",
                None,
                "give all arrays the axes of the grid",
            )
    if len(nest.body) != 1 or not isinstance(outer := nest.body[0], Loop):
        raise refusal(nest, "stencil", "it is not one loop of steps", None, "write one loop around all statements")
    row_axes = max(len(shape) - 1, 1)
    sweeps = tuple(_sweep(nest, statement, row_axes) for statement in nest.statements)
    counts = Counter(sweep.target for sweep in sweeps)
    hint = "write one, with a loop for every axis; loops over plain numbers are written out"
    if repeated := [name for name in levels_of(nest) if counts[name] > 1]:
        raise refusal(nest, "stencil", f"array {repeated[0]} is written by several statements", None, hint)
    depth = {name: levels_of(nest)[name].depth if name in levels_of(nest) else 1 for name in nest.arrays}
    given = {name: levels_of(nest)[name].given if name in levels_of(nest) else 1 for name in nest.arrays}
    along = {name: margins(nest, name)[-1] if len(shape) > 1 else (0, 0) for name in nest.arrays}
    steps = outer.high - outer.low
    return Stencil(nest.name, shape, row_axes, sweeps, depth, given, _boundaries(nest, sweeps), along, steps)


def _boundaries(nest: Recording, sweeps: Sequence[RowSweep]) -> dict[str, str | None]:
    """Return the boundary of each array.

    A part computes ghost rows of a periodic array beyond the ends of the grid. So the arrays that it reads for this
    must be periodic, too, if they are fixed or updated in place.
    """
    found = {name: array.boundary for name, array in nest.arrays.items()}
    for _ in sweeps:  # each pass adds at least one array, or nothing changes any more
        around = {o.array for sweep in sweeps if found[sweep.target] == "periodic" for o in sweep.operands}
        found |= {name: "periodic" for name in around if found[name] != "reflecting"}
    return found


def _sweep(nest: Recording, statement: Statement, row_axes: int) -> RowSweep:
    target, loops = statement.target, statement.loops[1:]
    if carried := next((loop.index for loop in loops if carries(nest, loop)), None):
        hint, why = "a pipeline may be, in place or of two levels", f"iterations of {carried} need one another"
        raise refusal(nest, "stencil", f"within a step, {why}", statement.line, hint)
    found = sweep_of(nest, "stencil", [statement], loops, nest.arrays[target.array].shape)
    axes = range(len(found.order))
    far = [str(read) for read in statement.reads if [p.axis for p in found.places[str(read)]] != [*axes]]
    if far:
        why = f"{far[0]} is at no fixed distance from {target}"
        raise refusal(nest, "stencil", why, statement.line, "use offsets")
    keeps = len(loops) > 1 and not (found.low[-1].key == ((), 0) and _is_size(nest, target, found.high[-1]))
    operands = dict.fromkeys([Operand(target.array, 1, (0,) * row_axes)] if keeps or not statement.reads else [])
    by_grid = partial(_by_grid, found, {axis: loop.index for axis, loop in zip(found.order, loops, strict=True)})
    elements = dict[str, Element]()
    for read in statement.reads:
        offsets = tuple(place.offset.constant for place in found.places[str(read)])
        operand = Operand(read.array, _back(nest, statement, read), offsets[:row_axes])
        operands[operand] = None
        along = offsets[-1] if len(axes) > row_axes else 0
        elements[str(by_grid(read))] = Element([*operands].index(operand), along)
    value = with_reads(statement.value, by_grid)
    return RowSweep(**vars(found), value=value, operands=(*operands,), elements=elements, keeps=keeps)


def _by_grid(sweep: Sweep, indices: Mapping[int, str], read: Read) -> Read:
    """Return an element with indices that count up from 0: in a loop over n - 1 - i, i becomes the position itself."""
    places = sweep.places[str(read)]
    space = tuple(Affine(((indices[axis], 1),)) + place.offset for axis, place in enumerate(places))
    return replace(read, at=(*read.at[: -len(places)], *space))


def _is_size(nest: Recording, target: Read, high: Affine) -> bool:
    return high.key == nest.code.symbol(nest.arrays[target.array].shape[-1]).key


def _back(nest: Recording, statement: Statement, read: Read) -> int:
    """Return how many versions before the one that this step writes an element is read from."""
    if read.array in levels_of(nest):
        return levels_of(nest)[read.array].ahead - time_offset(read, levels_of(nest)[read.array].loop)
    return int(read.array == statement.target.array)


class Event(NamedTuple):
    """One sweep of a run: the version that it writes, and that of each of its operands."""

    sweep: RowSweep
    version: int
    reads: tuple[int, ...]


def events(stencil: Stencil, steps: int) -> Iterator[Event]:
    """Yield all sweeps of a run, in order. Versions are numbered from 0, the oldest one that the user gives."""
    newest = {name: given - 1 for name, given in stencil.given.items()}
    stored = {name for name, depth in stencil.depth.items() if depth > 1}
    for step in range(steps):
        for sweep in stencil.sweeps:
            written = {name: stencil.given[name] + step if name in stored else newest[name] for name in newest}
            if sweep.target not in stored:
                written[sweep.target] = newest[sweep.target] + 1
            yield Event(sweep, written[sweep.target], tuple(written[o.array] - o.back for o in sweep.operands))
            newest[sweep.target] = written[sweep.target]


def last_version(stencil: Stencil, name: str, steps: int) -> int:
    """Return the newest version of an array after `steps` steps."""
    return stencil.given[name] - 1 + steps * sum(sweep.target == name for sweep in stencil.sweeps)
