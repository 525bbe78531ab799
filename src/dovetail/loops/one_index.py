"""one_index: turn writes of a row, a column or an element at a fixed index into loops of one iteration.

A loop over plain numbers is unrolled while a nest is recorded, so `for i in loop(2, 3): … u[i, j] = …` writes
`u[2, j]`. Stencils and pipelines need a loop for every axis of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import permutations

from dovetail.loops.affine import Affine
from dovetail.loops.analysis.order import statements
from dovetail.loops.analysis.sweeps import Node, nested, space, steps_of
from dovetail.loops.expressions import Read, with_reads
from dovetail.loops.recording import Loop, Recording, Statement

Fixed = Mapping[int, tuple[str, Affine]]  # by axis: the index of the new loop, and its only value


def with_all_loops(nest: Recording, elements: bool = False) -> Recording:
    """Return the nest with loops over all axes around each statement that has loops over some axes of its array.

    `elements`: also around statements in no such loop. A nest that lacks no loop is returned unchanged.
    """
    outer = steps_of(nest)
    around = (outer,) if outer else ()
    body = [made for each in (outer.body if outer else nest.body) for made in _whole(nest, each, around, elements)]
    if outer:
        made = Loop(outer.index, outer.low, outer.high, body)
        body = [_within(each, (made,)) for each in body]
        made.body[:] = body
        body = [made]
    found = [statement for each in body for statement in statements(each)]
    if [*map(str, found)] == [*map(str, nest.statements)]:
        return nest
    code = copy(nest.code)
    code.body, code.statements = body, found
    return replace(nest, code=code)


def _within(each: Node, around: tuple[Loop, ...]) -> Node:
    """A copy of a loop or a statement, placed within these loops."""
    if isinstance(each, Loop):
        made = Loop(each.index, each.low, each.high)
        made.body.extend(_within(child, (*around, made)) for child in each.body)
        return made
    return replace(each, loops=around) if isinstance(each, Statement) else each


def _whole(nest: Recording, each: Node, around: tuple[Loop, ...], elements: bool) -> Iterator[Node]:
    """Yield a loop nest with a loop for every axis that is written. If statements write at different indices: one loop
    nest for each, in order."""
    chain, body = nested(each)
    inner = [statement for statement in body if isinstance(statement, Statement)]
    if len(inner) < len(body) or not inner or not (chain or elements):
        yield each
        return
    groups = [inner] if _fixed(nest, inner, chain) or not _apart(inner, chain) else [[statement] for statement in inner]
    fixed = [_fixed(nest, group, chain) for group in groups]
    if not all(fixed):
        yield each
        return
    for group, axes in zip(groups, fixed, strict=True):
        held: list[Node] = [_placed(nest, statement, axes) for statement in group]
        for loop in reversed(_ordered(nest, group[0], chain, axes)):
            held = [Loop(loop.index, loop.low, loop.high, held)]
        yield _within(held[0], around)


def _apart(inner: Sequence[Statement], chain: Sequence[Loop]) -> bool:
    """Whether the loops may be split into one loop nest per statement: two statements access a common element in the
    same iteration only."""
    indices = {loop.index for loop in chain}
    for one, other in permutations(inner, 2):
        for access in (each for each in (*other.reads, other.target) if each.array == one.target.array):
            pairs = [(a - b, {*a.names, *b.names}) for a, b in zip(one.target.at, access.at, strict=True)]
            elsewhere = any(gap.constant and not gap.terms and indices.isdisjoint(names) for gap, names in pairs)
            if not elsewhere and any(gap.key != ((), 0) for gap, _ in pairs):
                return False
    return True


def _fixed(nest: Recording, inner: Sequence[Statement], chain: Sequence[Loop]) -> Fixed:
    """The axes along which all statements write at one common index; empty unless exactly their loops are missing."""
    indices = {loop.index for loop in chain}
    found = [
        {axis: at.key for axis, at in enumerate(space(nest, each.target)) if indices.isdisjoint(at.names)}
        for each in inner
    ]
    lacking = len(nest.arrays[inner[0].target.array].shape) - len(chain)
    if any(each != found[0] for each in found) or len(found[0]) != lacking:
        return {}
    made: dict[int, tuple[str, Affine]] = {}
    for axis in found[0]:
        name = _index(nest, axis, indices | {name for name, _ in made.values()})
        made[axis] = name, space(nest, inner[0].target)[axis]
    return made


def _index(nest: Recording, axis: int, taken: set[str]) -> str:
    """The name of the index of other loops along this axis, or a new name."""
    for statement in nest.statements:
        at = space(nest, statement.target)[axis:][:1]
        names = [loop.index for loop in statement.loops[1:] if at and loop.index in at[0].names]
        if len(names) == 1 and names[0] not in taken:
            return names[0]
    return f"axis{axis}_"


def _placed(nest: Recording, statement: Statement, fixed: Fixed) -> Statement:
    """The statement with the new loops' indices in place of the fixed subscripts."""
    place = partial(_moved, nest, nest.arrays[statement.target.array].shape, fixed)
    return replace(statement, target=place(statement.target), value=with_reads(statement.value, place))


def _moved(nest: Recording, shape: Sequence[str | int], fixed: Fixed, access: Read) -> Read:
    if nest.arrays[access.array].shape != shape:
        return access
    at, time = list(access.at), int(nest.arrays[access.array].time)
    for axis, (index, only) in fixed.items():
        gap = at[time + axis] - only
        at[time + axis] = at[time + axis] if gap.terms else gap + Affine(((index, 1),))
    return replace(access, at=tuple(at))


def _ordered(nest: Recording, first: Statement, chain: Sequence[Loop], fixed: Fixed) -> list[Loop]:
    """The loops, with each new one inserted before the first loop over a later axis."""
    axes = {name: axis for axis, at in enumerate(space(nest, first.target)) for name in at.names}
    found = list(chain)
    for axis, (index, only) in sorted(fixed.items()):
        place = next((k for k, loop in enumerate(found) if axes.get(loop.index, -1) > axis), len(found))
        found.insert(place, Loop(index, only, only + 1))
        axes[index] = axis
    return found
