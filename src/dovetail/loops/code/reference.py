"""reference: run the user's function unmodified, element by element, on arrays with levels and boundaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError
from dovetail.loops.arguments import Call, bound, results
from dovetail.loops.levels import levels_of
from dovetail.loops.recording import Recording

Given = NDArray[Any]


def by_function(nest: Recording, arrays: Sequence[Given], parameters: Mapping[str, int]) -> Any:
    """Run the function on copies of the arrays, element by element, and return its results."""
    call = bound(nest, arrays, parameters)
    views = {name: Timed(call, name) if array.time else Plain(call, name) for name, array in nest.arrays.items()}
    with np.errstate(all="ignore"):  # integers wrap around, as they do in every executor
        nest.function(**views, **{name: call.sizes[name] for name in nest.parameters})
    return results(call, {name: view.result() for name, view in views.items()})


class Plain:
    """An array without a time axis. Negative subscripts are refused, where NumPy would count them from the end."""

    def __init__(self, call: Call, name: str) -> None:
        self._name, self.shape, self._data = name, call.shape(name), call.arrays[name].copy()

    def __getitem__(self, at: Any) -> Any:
        return self._data[self._inside(at)]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._data[self._inside(at)] = value

    def result(self) -> Given:
        return self._data

    def _inside(self, at: Any) -> tuple[int, ...]:
        return _inside(self._name, self.shape, at if isinstance(at, tuple) else (at,))


class Timed:
    """An array with a time axis. A new level starts as a copy of the one before."""

    def __init__(self, call: Call, name: str) -> None:
        levels, given = levels_of(call.nest)[name], call.arrays[name]
        self._name, self.shape, self._boundary = name, call.shape(name), call.nest.arrays[name].boundary
        self._given, self._last = levels.given, call.last_level(name)
        self._levels = dict(enumerate(given.copy() if levels.given > 1 else [given.copy()]))

    def __getitem__(self, at: Any) -> Any:
        level, *index = at
        return self._until(level)[self._wrapped(index)]

    def __setitem__(self, at: Any, value: Any) -> None:
        level, *index = at
        self._until(level)[_inside(self._name, self.shape, index)] = value

    def result(self) -> Given:
        self._until(self._last)
        kept = [self._levels[self._last - back] for back in reversed(range(self._given))]
        return kept[0] if len(kept) == 1 else np.stack(kept)

    def _until(self, level: int) -> Given:
        for each in range(max(self._levels) + 1, level + 1):
            self._levels[each] = self._levels[each - 1].copy()
            self._levels.pop(each - self._given - 1, None)
        found: Given = self._levels[level]
        return found

    def _wrapped(self, index: Sequence[int]) -> tuple[int, ...]:
        if self._boundary == "periodic":
            return tuple(i % size for i, size in zip(index, self.shape, strict=True))
        if self._boundary == "reflecting":
            mirrored = [abs(i) for i in index]
            return tuple(min(i, 2 * (size - 1) - i) for i, size in zip(mirrored, self.shape, strict=True))
        return _inside(self._name, self.shape, index)


def _inside(name: str, shape: tuple[int, ...], index: Sequence[int]) -> tuple[int, ...]:
    """Return an index that is not out of bounds. Reads whose values are used were checked before the run."""
    if not all(0 <= i < size for i, size in zip(index, shape, strict=True)):
        what = f"index out of bounds: [{', '.join(map(str, index))}] in '{name}' of shape {shape}"
        raise OperatorError(what, hint="nothing uses this value: leave the read out")
    return tuple(index)
