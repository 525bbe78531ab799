"""checks: errors in a nest that are found before it runs: subscripts out of bounds, undefined boundaries, cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine, extreme
from dovetail.loops.analysis.dependences import read_too_early
from dovetail.loops.expressions import Read
from dovetail.loops.levels import levels_of, time_offset
from dovetail.loops.recording import WRAPS, Array, Loop, Recording, Statement


class Reach(NamedTuple):
    """How far a subscript goes below 0, and beyond the last element of its axis.

    For arrays that wrap around or mirror no size has a positive factor, so `constant` is the maximum over all sizes.
    """

    below: Affine
    beyond: Affine


def check_nest(nest: Recording) -> None:
    """Check all that does not depend on sizes. Raises OperatorError."""
    _ = levels_of(nest)
    check_bounds(nest)
    for name, array in nest.arrays.items():
        if array.time:
            _check_boundary(nest, name, array)
    _check_cycles(nest)


def check_bounds(nest: Recording, sizes: Mapping[str, int] | None = None) -> None:
    """Raise OperatorError for accesses out of bounds; with `sizes`, also for those that depend on sizes."""
    for statement in nest.statements:
        if sizes is not None and any(loop_is_empty(loop, statement.loops, sizes) for loop in statement.loops):
            continue
        for each in (*statement.reads, statement.target):
            wraps = nest.arrays[each.array].boundary in WRAPS and each is not statement.target
            for axis, reach in enumerate(reaches(nest, statement, each)):
                _check_axis(nest, statement, each, axis, reach, wraps, sizes)


def loop_is_empty(loop: Loop, loops: Sequence[Loop], sizes: Mapping[str, int]) -> bool:
    """Return whether a loop is empty in every iteration of the loops around it."""
    return extreme(loop.high - loop.low, loops, 1).at(sizes) <= 0


def reaches(nest: Recording, statement: Statement, each: Read) -> list[Reach]:
    """Return the Reach of an access along each axis except time."""
    array = nest.arrays[each.array]
    found = []
    for subscript, size in zip(each.at[array.time :], array.shape, strict=True):
        low, high = (extreme(subscript, statement.loops, sign) for sign in (-1, 1))
        found.append(Reach(-low, high - nest.code.symbol(size) + 1))
    return found


def _check_axis(
    nest: Recording,
    statement: Statement,
    each: Read,
    axis: int,
    reach: Reach,
    wraps: bool,
    sizes: Mapping[str, int] | None,
) -> None:
    size = str(nest.arrays[each.array].shape[axis])
    for outside, side in ((reach.below, "below 0"), (reach.beyond, f"beyond {size} - 1")):
        if outside.terms and sizes is None:
            if wraps and (growing := [name for name, factor in outside.terms if factor > 0]):
                what = f"{each} lies {outside} elements {side}, more with larger {' or '.join(growing)}"
                hint = "at boundaries that wrap around or mirror, read a fixed number of elements outside at most"
                raise OperatorError(what, where=statement.line, hint=hint)
            continue
        count = outside.at(sizes or {})
        if count > 0 and not wraps:
            of_sizes = "" if sizes is None else f" where {_size_text(sizes)}"
            bounds = ", ".join(f"{loop.index} in [{loop.low}, {loop.high})" for loop in statement.loops)
            hint = "narrow the loop" + " or set boundary='periodic' or 'reflecting'" * nest.arrays[each.array].time
            what = f"index out of bounds: {each} lies {count} {side} in axis {axis}{of_sizes}"
            raise OperatorError(what, where=statement.line, found=bounds, hint=hint)
        least = count + (nest.arrays[each.array].boundary == "reflecting")
        if sizes is not None and wraps and least > _size(nest, each, axis, sizes):
            what = f"array {each.array} is too small along axis {axis} for what {each} reads at its boundary"
            raise OperatorError(what, where=statement.line, hint=f"at least {least} elements")


def _size(nest: Recording, each: Read, axis: int, sizes: Mapping[str, int]) -> int:
    return nest.code.symbol(nest.arrays[each.array].shape[axis]).at(sizes)


def _size_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def written_box(nest: Recording, name: str) -> list[Reach]:
    """Return, for each axis, how far all writes stay away from its ends, as a negative Reach."""
    boxes = [reaches(nest, s, s.target) for s in nest.statements if s.target.array == name]
    return [Reach(_most(r.below for r in axis), _most(r.beyond for r in axis)) for axis in zip(*boxes, strict=True)]


def _most(values: Iterator[Affine]) -> Affine:
    """The greatest value if all differ by constants only; else the first."""
    best = next(values)
    for value in values:
        gap = value - best
        best = value if not gap.terms and gap.constant > 0 else best
    return best


def _check_boundary(nest: Recording, name: str, array: Array) -> None:
    """Refuse reads of elements that later levels do not define."""
    written = written_box(nest, name)
    if array.boundary in WRAPS:
        for axis, box in enumerate(written):
            if box.below.key != ((), 0) or box.beyond.key != ((), 0):
                what = f"array {name} is {array.boundary}, and its elements at the ends of axis {axis} are not written"
                found = f"from {-box.below} to {box.beyond - 1 + nest.code.symbol(array.shape[axis])}"
                raise OperatorError(what, found=found, hint=f"let the loop run from 0 to {array.shape[axis]}")
        return
    if array.boundary is not None:
        return
    for statement in nest.statements:
        for each in (read for read in statement.reads if read.array == name):
            for axis, (reach, box) in enumerate(zip(reaches(nest, statement, each), written, strict=True)):
                gaps = (reach.below - box.below, reach.beyond - box.beyond)
                if any(gap.terms or gap.constant > 0 for gap in gaps):
                    what = f"undefined boundary: {each} reads elements, at an end of axis {axis}, that no step writes"
                    hint = f"{name}=array(…, boundary='fixed') keeps them; 'periodic' and 'reflecting' derive them"
                    raise OperatorError(what, where=statement.line, hint=hint)


def _check_cycles(nest: Recording) -> None:
    """Refuse statements that read levels before they are computed."""
    suspects = []
    for statement in nest.statements:
        for each in statement.reads:
            if (levels := levels_of(nest).get(each.array)) is not None:
                offset = time_offset(each, levels.loop)
                if offset > levels.ahead:
                    raise _cycle(statement, each, "no step before it computes that level")
                suspects += [(statement, each)] if offset == levels.ahead else []
    if suspects:
        for statement, each in suspects:
            outside = any(side.constant > 0 for reach in reaches(nest, statement, each) for side in reach)
            wraps = outside and nest.arrays[each.array].boundary in WRAPS
            if writer := read_too_early(nest, statement, each):
                around = "wraps around, and " if wraps else ""
                raise _cycle(statement, each, f"{around}{writer.target} is computed later, at {writer.line}")
            if wraps:
                _check_complete(nest, statement, each)


def _check_complete(nest: Recording, statement: Statement, each: Read) -> None:
    """Refuse reads beyond an end of a level that the same loop writes: margins are filled only after that loop."""
    for other in nest.statements:
        if other.target.array == each.array and other.loops[1:] and other.loops[1:2] == statement.loops[1:2]:
            loop = statement.loops[1]
            what = f"{each} wraps around while the same loop over {loop.index} writes that level"
            hint = f"write another loop over {loop.index} for what reads beyond the ends"
            raise OperatorError(
                what, where=statement.line, found=f"{other.target} is written at {other.line}", hint=hint
            )


def _cycle(statement: Statement, each: Read, found: str) -> OperatorError:
    what = f"cyclic statements: {statement.target} needs {each} before that is computed"
    return OperatorError(what, where=statement.line, found=found, hint="read the previous level, or reverse the loop")
