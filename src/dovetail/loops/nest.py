"""nest: Nest, a recorded function of loops over arrays that can be called, analysed and printed as C."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from keyword import iskeyword
from typing import Any

from numpy.typing import NDArray

from dovetail.core import OperatorError
from dovetail.loops.affine import caller
from dovetail.loops.analysis.checks import check_nest
from dovetail.loops.analysis.dependences import Dependence, dependences
from dovetail.loops.arguments import LARGEST
from dovetail.loops.code.generate import c_text
from dovetail.loops.code.reference import by_function
from dovetail.loops.code.run import by_best
from dovetail.loops.code.vectorised import by_numpy
from dovetail.loops.expressions import names_of
from dovetail.loops.levels import Levels, levels_of
from dovetail.loops.record import record
from dovetail.loops.recording import BOUNDARIES, Array, Recording
from dovetail.loops.types import DTYPES

Given = NDArray[Any]


def array(*shape: str | int, dtype: str | None = None, time: bool = False, boundary: str | None = None) -> Array:
    """Declare an array of a nest, for `nest`. `shape`: the name of each axis's size, or a number.

    `dtype`: default: one dtype for all such arrays, that of the call's arrays. `time`: the first subscript is the time
    level. `boundary`, with `time`: "fixed" keeps the previous level's value of elements that no statement writes;
    subscripts outside wrap around ("periodic") or are mirrored at the outermost element ("reflecting": u[-1] is u[1]).
    """
    _check_axes(shape)
    if dtype is not None and dtype not in DTYPES:
        raise OperatorError(f"no loop computes in dtype '{dtype}'", hint=f"one of {', '.join(DTYPES)}")
    if boundary is not None and boundary not in BOUNDARIES:
        raise OperatorError(f"unknown boundary '{boundary}'", hint=f"one of {', '.join(BOUNDARIES)}")
    if boundary is not None and not time:
        hint = "an array without a time axis has only the elements that are in it: give it time=True"
        raise OperatorError(f"boundary '{boundary}' of an array without a time axis", hint=hint)
    return Array(shape, dtype, time, boundary)


def _check_axes(shape: Sequence[object]) -> None:
    hint = 'array("n", "m") for axes of sizes n and m, array("n", 3) where one has 3 elements'
    if not shape:
        raise OperatorError("an array has at least one axis", where=caller(), hint=hint)
    for axis in shape:
        is_name = isinstance(axis, str) and axis.isidentifier() and not iskeyword(axis)
        is_length = isinstance(axis, int) and not isinstance(axis, bool) and 0 < axis <= LARGEST
        if not (is_name or is_length):
            what = "an axis is the name of its size, or a whole number of at least 1"
            raise OperatorError(what, where=caller(), found=repr(axis), hint=hint)


@dataclass(frozen=True, eq=False)
class Nest(Recording):
    """Loops over arrays. Called with arrays and the parameters of its function, it returns the arrays that it writes.

    Results are new arrays. Of an array with a time axis: as many last levels as were given (if one: without that axis).
    """

    def __post_init__(self) -> None:
        check_nest(self)

    @property
    def levels(self) -> Mapping[str, Levels]:
        """For each array with a time axis: which levels are kept."""
        return levels_of(self)

    @property
    def about(self) -> str:
        """Its description: the docstring of its function, or of its module if that names the nest."""
        module = getattr(sys.modules.get(self.function.__module__), "__doc__", None) or ""
        own = self.function.__doc__ or (module if self.name.startswith(module.partition(":")[0] or " ") else "")
        return own.strip() or f"{self.name}: a user's nest."

    @cached_property
    def takes_roots(self) -> bool:
        """Whether a statement takes a square root: random inputs must then not be negative."""
        return any("sqrt" in names_of(statement.value) for statement in self.statements)

    def dependences(self) -> tuple[Dependence, ...]:
        """Return which iteration must come before which (see `dovetail.loops.analysis.dependences`)."""
        return dependences(self)

    def vectors(self, memory: bool = False) -> tuple[tuple[int, ...], ...]:
        """Return the sorted distances of all flow dependences; with `memory`, of anti and output dependences too."""
        kinds = ("flow", "anti", "output") if memory else ("flow",)
        return tuple(sorted({each.distance for each in self.dependences() if each.kind in kinds}))

    def __call__(self, *arrays: Given, **parameters: int) -> Any:
        """Run the loops on arrays by compiled C; without a C compiler by NumPy, with one warning."""
        return by_best(self, arrays, parameters)

    def reference(self, *arrays: Given, **parameters: int) -> Any:
        """Run the function itself, element by element: slow, and right by definition."""
        return by_function(self, arrays, parameters)

    def numpy(self, *arrays: Given, **parameters: int) -> Any:
        """Run by NumPy: whole inner loops at once if their iterations may run in any order."""
        return by_numpy(self, arrays, parameters)

    def c_text(self, dtype: str = "float64") -> str:
        """Return the C of the whole nest. Arrays without a dtype of their own have `dtype`."""
        return c_text(self, dtype)


def nest(**arrays: Array) -> Callable[[Callable[..., Any]], Nest]:
    """Return a decorator that makes a Nest of a function of loops. Its other arguments are integers (steps, sizes).

    >>> import numpy as np
    >>> from dovetail.loops import array, loop, nest
    >>> @nest(u=array("n", time=True, boundary="fixed"))
    ... def heat(u, steps):
    ...     for t in loop(steps):
    ...         for i in loop(1, u.shape[0] - 1):
    ...             u[t + 1, i] = u[t, i] + 0.25 * (u[t, i - 1] - 2 * u[t, i] + u[t, i + 1])
    >>> heat(np.array([0.0, 4.0, 0.0, 0.0]), steps=2).tolist()
    [0.0, 1.25, 1.0, 0.0]
    >>> heat.vectors()
    ((1, -1), (1, 0), (1, 1))
    """
    return partial(_made, arrays)


def _made(arrays: Mapping[str, Array], function: Callable[..., Any]) -> Nest:
    found = inspect.signature(function).parameters
    named = list(found)
    if strange := [each for each in found.values() if each.kind != each.POSITIONAL_OR_KEYWORD]:
        hint = "name each array and each parameter, without * or /"
        raise OperatorError(f"{function.__name__} takes '{strange[0]}'", where=caller(), hint=hint)
    if other := [each for each in arrays.values() if not isinstance(each, Array)]:
        raise OperatorError("a nest declares its arrays by array(…)", where=caller(), found=repr(other[0]))
    if missing := [name for name in arrays if name not in named]:
        raise OperatorError(f"{function.__name__} takes no argument '{missing[0]}'", hint="declare its arrays by name")
    ordered = {name: arrays[name] for name in named if name in arrays}
    parameters = tuple(name for name in named if name not in arrays)
    return Nest(function.__name__, function, ordered, parameters, record(function, ordered, parameters))
