"""vectorised: run a nest by NumPy, whole loops at once where their iterations may run in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.loops.affine import Affine
from dovetail.loops.analysis.order import carries, statements
from dovetail.loops.arguments import Call, bound, margins, results
from dovetail.loops.code.evaluate import evaluated
from dovetail.loops.code.rings import held, inside, memory
from dovetail.loops.expressions import Read, Taken, Value
from dovetail.loops.levels import levels_of
from dovetail.loops.recording import WRAPS, Loop, Recording, Statement, Take

Given = NDArray[Any]


def by_numpy(nest: Recording, arrays: Sequence[Given], parameters: Mapping[str, int]) -> Any:
    return carry_out(bound(nest, arrays, parameters))


def carry_out(call: Call) -> Any:
    """Run a call by NumPy and return its results."""
    runner = _Runner(call)
    with np.errstate(all="ignore"):
        for each in call.nest.body:
            runner.run(each)
    return results(call, {name: held(call, name, array) for name, array in runner.memory.items()})


class _Runner:
    """Loops whose iterations depend on one another run in Python; the others are axes of arrays."""

    def __init__(self, call: Call) -> None:
        self.call, self.memory, self.values = call, memory(call), dict(call.sizes)
        self.margins = {name: margins(call.nest, name) for name in call.nest.arrays}
        self.taken = dict[str, Any]()
        for name, levels in levels_of(call.nest).items():
            for level in range(levels.given):
                self._fill(name, level)

    def run(self, each: Loop | Statement | Take, axes: tuple[Loop, ...] = ()) -> None:
        if isinstance(each, Statement):
            self._assign(each, axes)
        elif isinstance(each, Take):
            if not self._is_empty(axes):
                self.taken[each.name] = self._element(each.read, axes)  # subscripts are arrays: this copies
        elif self._is_free(each, axes):
            for child in each.body:
                self.run(child, (*axes, each))
        else:
            for value in range(each.low.at(self.values), each.high.at(self.values)):
                self.values[each.index] = value
                self._step(each, value)

    def _is_free(self, loop: Loop, axes: tuple[Loop, ...]) -> bool:
        """Whether this loop can be an array axis: then all loops in it must be axes too, of constant length."""
        if axes:
            return True
        loops = {id(each): each for statement in statements(loop) for each in statement.loops}
        within = [each for each in loops.values() if each is loop or id(each) in _inner(loop)]
        indices = {each.index for each in within}
        straight = all(indices.isdisjoint((*each.low.names, *each.high.names)) for each in within)
        return straight and not any(carries(self.call.nest, each) for each in within)

    def _step(self, loop: Loop, value: int) -> None:
        timed = {name: levels for name, levels in levels_of(self.call.nest).items() if levels.loop is loop}
        for name, levels in timed.items():
            if levels.varies or value < loop.low.constant + levels.depth - 1:
                ring, new = self.memory[name], value + levels.ahead
                ring[new % levels.depth] = ring[(new - 1) % levels.depth]
        for child in loop.body:
            self.run(child)
            for name, levels in timed.items():
                if any(statement.target.array == name for statement in statements(child)):
                    self._fill(name, value + levels.ahead)

    def _assign(self, statement: Statement, axes: tuple[Loop, ...]) -> None:
        if self._is_empty(axes):
            return
        array, index = self._places(statement.target, axes)
        value = self._value(statement.value, axes, self.call.dtypes[statement.target.array])
        array[index] = value if not axes else np.broadcast_to(value, [self._length(loop) for loop in axes])

    def _is_empty(self, axes: tuple[Loop, ...]) -> bool:
        return any(loop.low.at(self.values) >= loop.high.at(self.values) for loop in axes)

    def _length(self, loop: Loop) -> int:
        return loop.high.at(self.values) - loop.low.at(self.values)

    def _value(self, value: Value, axes: tuple[Loop, ...], dtype: str) -> Any:
        return evaluated(value, lambda each: self._element(each, axes), self.call.dtypes, dtype)

    def _element(self, read: Read | Taken, axes: tuple[Loop, ...]) -> Any:
        if isinstance(read, Taken):
            found = self.taken[read.name]  # its axes are the outermost of `axes`
            return found.reshape(found.shape + (1,) * (len(axes) - found.ndim)) if found.ndim else found
        array, index = self._places(read, axes)
        return array[index]

    def _places(self, read: Read, axes: tuple[Loop, ...]) -> tuple[Given, tuple[Any, ...]]:
        """The array of an access, and the index arrays of its elements in all iterations of the axes."""
        array, at = self.memory[read.array], read.at
        if self.call.nest.arrays[read.array].time:
            array, at = array[at[0].at(self.values) % len(array)], at[1:]
        shifted = [each + below for each, (below, _) in zip(at, self.margins[read.array], strict=True)]
        return array, tuple(self._along(each, axes) for each in shifted)

    def _along(self, subscript: Affine, axes: tuple[Loop, ...]) -> Any:
        """The values of a subscript over an open mesh of the axes."""
        start = {loop.index: loop.low.at(self.values) for loop in axes}
        index: Any = np.int64(subscript.at(self.values | start))
        for place, loop in enumerate(axes):
            shape = [1] * len(axes)
            shape[place] = self._length(loop)
            index = index + subscript.factor(loop.index) * np.arange(shape[place]).reshape(shape)
        return index

    def _fill(self, name: str, level: int) -> None:
        """Fill the margins of a level from its elements."""
        if (boundary := self.call.nest.arrays[name].boundary) in WRAPS:
            ring = self.memory[name]
            at = level % len(ring)
            mode: Any = "wrap" if boundary == "periodic" else "reflect"
            ring[at] = np.pad(ring[at][inside(self.call, name)], self.margins[name], mode)


def _inner(loop: Loop) -> set[int]:
    """The loops within a loop."""
    found = set[int]()
    for child in loop.body:
        if isinstance(child, Loop):
            found |= {id(child)} | _inner(child)
    return found
