"""arguments: the arrays and parameters of a call, checked against what the nest declares, and the sizes that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from dovetail.core import OperatorError, parse_count
from dovetail.ir.arrays import check_plain
from dovetail.loops.analysis.checks import check_bounds, reaches
from dovetail.loops.levels import levels_of
from dovetail.loops.recording import WRAPS, Recording
from dovetail.loops.types import DTYPES, check_types

Given = NDArray[Any]
LARGEST = 1 << 53  # size or parameter: sums of several fit 64 bits


@dataclass(frozen=True)
class Call:
    """A nest with its arguments: arrays, sizes and parameters, and dtypes, by name."""

    nest: Recording
    arrays: Mapping[str, Given]
    sizes: Mapping[str, int]
    dtypes: Mapping[str, str]

    def last_level(self, name: str) -> int:
        """Return the newest level of an array after the call."""
        levels = levels_of(self.nest)[name]
        low, high = levels.loop.low.at(self.sizes), levels.loop.high.at(self.sizes)
        return max(high, low) - 1 + levels.ahead

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array or, with a time axis, of one level."""
        return tuple(self.sizes[s] if isinstance(s, str) else s for s in self.nest.arrays[name].shape)


def bound(nest: Recording, arrays: Sequence[Given], parameters: Mapping[str, int]) -> Call:
    """Bind arguments to a nest's arrays and parameters. Raises OperatorError, naming the argument that does not fit."""
    sizes = _sizes(nest, arrays, parameters)
    given = dict(zip(nest.arrays, arrays, strict=True))
    dtypes = _dtypes(nest, given)
    check_types(nest, dtypes)
    check_bounds(nest, sizes)
    return Call(nest, given, sizes, dtypes)


def results(call: Call, held: Mapping[str, Given]) -> Any:
    """Return what a call returns: the array that is written, or a tuple if there are several."""
    found = tuple(held[name] for name in call.nest.written)
    return found[0] if len(found) == 1 else found


def margins(nest: Recording, name: str) -> list[tuple[int, int]]:
    """Return how many elements are read outside of each axis of an array: (below, beyond)."""
    shape = nest.arrays[name].shape
    found = [(0, 0)] * len(shape)
    if nest.arrays[name].boundary in WRAPS:
        for statement, each in nest.accesses(name):
            sides = [(reach.below.constant, reach.beyond.constant) for reach in reaches(nest, statement, each)]
            found = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(found, sides, strict=True)]
    return found


def _sizes(nest: Recording, arrays: Sequence[Given], parameters: Mapping[str, int]) -> dict[str, int]:
    if len(arrays) != len(nest.arrays):
        found = f"{len(arrays)} arrays"
        raise OperatorError(f"{nest.name} takes {len(nest.arrays)} arrays: {', '.join(nest.arrays)}", found=found)
    sizes: dict[str, int] = {}
    first_axes: dict[str, str] = {}
    for (name, array), given in zip(nest.arrays.items(), arrays, strict=True):
        for axis, (asked, length) in enumerate(zip(array.shape, _lengths(nest, name, given), strict=True)):
            known = sizes.setdefault(asked, length) if isinstance(asked, str) else asked
            if known != length:
                first = f", as {first_axes[asked]} is" if isinstance(asked, str) and asked in first_axes else ""
                what = f"axis {axis} of {name} must have {known} elements{first}"
                raise OperatorError(
                    what, found=f"{name} of shape {given.shape}", hint=f"{name} is {_asked(array.shape)}"
                )
            first_axes.setdefault(str(asked), f"axis {axis} of {name}")
    if missing := [name for name in nest.parameters if name not in {*parameters, *sizes}]:
        raise OperatorError(f"{nest.name} needs {missing[0]}=…", hint="a whole number")
    if strange := [name for name in parameters if name not in nest.parameters]:
        names = ", ".join(nest.parameters) or "none"
        raise OperatorError(f"{nest.name} has no parameter '{strange[0]}'", hint=f"it has {names}")
    return sizes | {name: parse_size(value, name) for name, value in parameters.items()}


def parse_size(value: object, name: str) -> int:
    """Return a size or a number of steps, at most 2**53. Raises OperatorError, with its name, if it is none.

    >>> parse_size(3, "steps")
    3
    """
    count = parse_count(value, name)
    if count > LARGEST:
        raise OperatorError(f"{name} must be at most 2**53", found=str(count), hint="call the nest several times")
    return count


def _asked(shape: Sequence[str | int]) -> str:
    return " × ".join(map(str, shape))


def _lengths(nest: Recording, name: str, given: Any) -> tuple[int, ...]:
    """The lengths of an array's axes, without that of levels."""
    array, levels = nest.arrays[name], levels_of(nest)[name].given if name in levels_of(nest) else 1
    check_plain(name, given)
    lead = (levels,) if levels > 1 else ()
    if given.ndim != len(lead) + len(array.shape) or given.shape[: len(lead)] != lead:
        first = f"{levels} levels (of the first steps), each " if lead else ""
        raise OperatorError(f"{name} must be {first}{_asked(array.shape)}", found=f"an array of shape {given.shape}")
    return tuple(given.shape[len(lead) :])


def _dtypes(nest: Recording, given: Mapping[str, Given]) -> dict[str, str]:
    free = [name for name, array in nest.arrays.items() if array.dtype is None]
    wanted = given[free[0]].dtype.name if free else ""
    found = {}
    for name, array in nest.arrays.items():
        found[name], has = array.dtype or wanted, given[name].dtype.name
        if has not in DTYPES:
            raise OperatorError(f"{name} has dtype {has}", hint=f"one of {', '.join(DTYPES)}")
        if has != found[name]:
            why = f", as {free[0]} is" if array.dtype is None else ""
            raise OperatorError(f"{name} must be {found[name]}{why}", found=has, hint=f"{name}.astype('{found[name]}')")
    return found
