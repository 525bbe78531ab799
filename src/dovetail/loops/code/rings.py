"""rings: the memory of a call: copies of written arrays, and a ring of levels for each array with a time axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.loops.arguments import Call, margins
from dovetail.loops.levels import levels_of

Given = NDArray[Any]


def memory(call: Call) -> dict[str, Given]:
    """Return a C-contiguous array for each array of the nest: a copy if it is written or not contiguous."""
    written = call.nest.written
    return {
        name: _ring(call, name) if array.time else np.array(call.arrays[name], order="C", copy=name in written or None)
        for name, array in call.nest.arrays.items()
    }


def _ring(call: Call, name: str) -> Given:
    levels, shape = levels_of(call.nest)[name], call.shape(name)
    padded = [size + sum(sides) for size, sides in zip(shape, margins(call.nest, name), strict=True)]
    ring = np.empty((levels.depth, *padded), call.dtypes[name])
    for number in range(levels.given):
        given = call.arrays[name][number] if levels.given > 1 else call.arrays[name]
        ring[number][inside(call, name)] = given
    return ring


def inside(call: Call, name: str) -> tuple[slice, ...]:
    """Return the slices that select a level's elements, without its margins."""
    sides = zip(call.shape(name), margins(call.nest, name), strict=True)
    return tuple(slice(below, below + size) for size, (below, _) in sides)


def held(call: Call, name: str, array: Given) -> Given:
    """Return the result in an array of `memory`: its last levels, without margins."""
    if not call.nest.arrays[name].time:
        return array
    levels, last = levels_of(call.nest)[name], call.last_level(name)
    kept = [array[(last - back) % levels.depth][inside(call, name)] for back in reversed(range(levels.given))]
    return np.ascontiguousarray(kept[0]) if len(kept) == 1 else np.stack(kept)
