"""taken: temporaries for values that a nest reads, then overwrites, then uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine, extreme
from dovetail.loops.expressions import Read, Taken, Value, reads, with_reads
from dovetail.loops.recording import Code, Loop, Recording, Statement, Take


@dataclass(frozen=True, eq=False)
class Moment:
    """When an element was read: in which loops, before which statement, where in the innermost body, by which line."""

    loops: tuple[Loop, ...]
    number: int
    body: list[Any]
    place: int
    line: str


def take_values(code: Code) -> None:
    """Insert a Take at each read whose value is used after a statement may have overwritten it."""
    found: dict[int, Taken] = {}
    for number, statement in enumerate(code.statements):
        stale = {id(read): read for read in reads(statement.value) if _is_stale(code, number, read)}
        if stale:
            own = {key: found.setdefault(key, Taken(f"t{len(found)}_", read)) for key, read in stale.items()}
            value = with_reads(statement.value, partial(_taken_or_read, own))
            _replace(code, number, replace(statement, value=value))
    for taken in sorted(found.values(), key=lambda each: -each.read.taken.place):
        moment = taken.read.taken
        _check_level(code, taken.read)
        moment.body.insert(moment.place, Take(taken.name, taken.read, moment.line))


def _taken_or_read(taken: Mapping[int, Taken], read: Read) -> Value:
    return taken.get(id(read), read)


def _replace(code: Code, number: int, made: Statement) -> None:
    old, code.statements[number] = code.statements[number], made
    body = old.loops[-1].body if old.loops else code.body
    body[next(place for place, each in enumerate(body) if each is old)] = made


def _is_stale(code: Code, number: int, read: Read) -> bool:
    """Whether some statement may write the element after it was read and before statement `number` uses it."""
    return any(_overwrites(code, write, read) for write in _between(code.statements, number, read.taken))


def _between(statements: Sequence[Statement], number: int, moment: Moment) -> Iterator[Statement]:
    """The statements that run after the moment and before statement `number`: of a loop entered in between, all."""
    shared, user = len(moment.loops), statements[number]
    entered = user.loops[shared] if len(user.loops) > shared else None
    for place in range(moment.number, len(statements)):
        loops = statements[place].loops
        if place < number or (entered is not None and len(loops) > shared and loops[shared] is entered):
            yield statements[place]


def _overwrites(code: Code, write: Statement, read: Read) -> bool:
    """Whether a statement may write this element; True in case of doubt."""
    if write.target.array != read.array:
        return False
    inner = write.loops[len(read.taken.loops) :]
    for axis, written in enumerate(write.target.at):
        if all(_are_apart(written - wanted, inner) for wanted in _lying(code, read, axis)):
            return False
    return True


def _are_apart(gap: Affine, inner: Sequence[Loop]) -> bool:
    """Whether the difference of two subscripts is never 0 in these loops."""
    low, high = (extreme(gap, inner, sign) for sign in (-1, 1))
    return (not low.terms and low.constant > 0) or (not high.terms and high.constant < 0)


def _lying(code: Code, read: Read, axis: int) -> Iterator[Affine]:
    """Yield a subscript and, beyond the ends of its axis, the one to which the boundary wraps or mirrors it."""
    array, at = code.arrays[read.array], read.at[axis]
    yield at
    if axis < array.time or array.boundary not in ("periodic", "reflecting"):
        return
    size, mirrored = code.symbol(array.shape[axis - array.time]), array.boundary == "reflecting"
    if extreme(at, read.taken.loops, -1).constant < 0:
        yield -at if mirrored else at + size
    if (extreme(at, read.taken.loops, 1) - size).constant >= 0:
        yield size * 2 - 2 - at if mirrored else at - size


def _check_level(code: Code, read: Read) -> None:
    if code.arrays[read.array].time:
        hint = "read it after the write, or use an array without a time axis"
        what = f"{read} is read before its step writes it, and used afterwards"
        raise OperatorError(f"cyclic statements: {what}", where=read.taken.line, hint=hint)


def check_untaken(nest: Recording) -> None:
    """Raise OperatorError if a nest has temporaries: it then runs serially only."""
    for statement in nest.statements:
        for each in temporaries(statement.value):
            what = f"{nest.name} uses {each.read} after a statement has overwritten it: such a nest runs serially only"
            hint = "keep the value in an array of its own: old[i] = u[i]"
            raise OperatorError(what, where=each.read.taken.line, found=f"used at {statement.line}", hint=hint)


def temporaries(value: Value) -> Iterator[Taken]:
    """Yield the temporaries of an expression."""
    if isinstance(value, Taken):
        yield value
        return
    for child in value.children:
        yield from temporaries(child)
