"""order: whether the iterations of a loop may run in any order, judged by the accesses to arrays in it."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.loops.expressions import Read
from dovetail.loops.levels import levels_of, time_offset
from dovetail.loops.recording import Loop, Recording, Statement, Take


def carries(nest: Recording, loop: Loop) -> bool:
    """Return whether an iteration of this loop may depend on another one. True in case of doubt.

    False if each statement writes a different element in every iteration, and if all other accesses to that array (and
    level) in the loop touch the element of the same iteration only.
    """
    if any(levels.loop is loop for levels in levels_of(nest).values()):
        return True
    inside = list(statements(loop))
    for statement in inside:
        target = statement.target
        space = place(nest, target)
        inner = {each.index for each in statement.loops[statement.loops.index(loop) + 1 :]}
        if not any(abs(at.factor(loop.index)) == 1 and inner.isdisjoint(at.names) for at in target.at):
            return True
        others = (read for other in inside for read in (*other.reads, other.target) if place(nest, read) == space)
        if any([at.key for at in read.at] != [at.key for at in target.at] for read in others):
            return True
    return False


def place(nest: Recording, read: Read) -> tuple[str, int]:
    """Return the array that an access touches, and c of its level t + c (0 without a time axis)."""
    if read.array in levels_of(nest):
        return read.array, time_offset(read, levels_of(nest)[read.array].loop)
    return read.array, 0


def statements(each: Loop | Statement | Take) -> Iterator[Statement]:
    """Yield all statements in a loop, in order."""
    if isinstance(each, Statement):
        yield each
    elif isinstance(each, Loop):
        for child in each.body:
            yield from statements(child)
