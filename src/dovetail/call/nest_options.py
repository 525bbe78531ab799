"""nest_options: check the options of `dovetail.bind` for a nest, before ranks exchange messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dovetail.core import OperatorError, parse_count
from dovetail.loops import Nest
from dovetail.loops.grid.blocks import grid_of

COUNTS = ("steps", "test", "depth", "tile", "grain", "mapped")


def read_options(nest: Nest, grid: Any, asked: Mapping[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the grid and the options as Python ints, bools, tuples and strings.

    Raises OperatorError, naming the option, for a wrong type, and if `steps` is missing or does not apply.

    >>> from dovetail.loops.problems import jacobi2d
    >>> read_options(jacobi2d, (512, 256), {"steps": np.int64(2), "cut": [2, 1]})
    ((512, 256), {'steps': 2, 'cut': (2, 1)})
    """
    axes = grid_of(grid)
    found = {name: _read(name, value) for name, value in asked.items()}
    if "steps" in nest.parameters and "steps" not in found:
        raise OperatorError(f"{nest.name} on ranks needs steps=…", hint="bind(nest, comm, grid, steps=100)")
    if "steps" not in nest.parameters and found.get("steps", 1) != 1:
        raise OperatorError(f"{nest.name} has no steps", found=f"steps={found['steps']}", hint="leave `steps` out")
    return axes, found


def _read(name: str, value: Any) -> Any:
    if name in COUNTS:
        return parse_count(value, name)
    return _READ[name](value) if name in _READ else value


def _numbers(name: str, hint: str) -> Callable[[Any], tuple[int, ...]]:
    def read(value: Any) -> tuple[int, ...]:
        if not isinstance(value, list | tuple | np.ndarray) or np.ndim(value) != 1:
            raise OperatorError(f"{name} must be several whole numbers", found=repr(value)[:80], hint=hint)
        return tuple(parse_count(each, f"each number of {name}", least=1) for each in value)

    return read


def _shares(value: Any) -> Any:
    if isinstance(value, str):
        if value != "measured":
            raise OperatorError(
                "shares must be the rows of each part, or 'measured'", found=value, hint="(700, 324) or 'measured'"
            )
        return value
    return _numbers("shares", "shares=(700, 324) or 'measured'")(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise OperatorError("overlapped must be True or False", found=repr(value)[:80])
    return bool(value)


def _dtype(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        found = None if value is None else np.dtype(value)
    except TypeError:
        found = None
    if found is None or not found.isnative:
        raise OperatorError("dtype must be a native NumPy dtype", found=repr(value)[:80], hint="dtype='float64'")
    return str(found.name)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "cut": _numbers("cut", "parts by axis, as in cut=(2, 1)"),
    "shares": _shares,
    "overlapped": _truth,
    "dtype": _dtype,
}
