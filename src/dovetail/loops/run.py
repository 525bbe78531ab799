"""run: a nest by compiled C, or by NumPy where there is no compiler."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dovetail.core import EnvironmentFault, compile_for_here
from dovetail.loops.arguments import Call, bound, results
from dovetail.loops.generate import c_text, symbols_of
from dovetail.loops.rings import held, memory
from dovetail.loops.vectorised import carry_out

if TYPE_CHECKING:
    from dovetail.loops.nest import Nest

Given = NDArray[Any]


def by_best(nest: Nest, arrays: Sequence[Given], parameters: Mapping[str, int]) -> Any:
    """The compiled C; NumPy, with a warning that says why, where it cannot be compiled."""
    call = bound(nest, arrays, parameters)
    try:
        function = compiled(c_text(nest, _free_dtype(call)), nest.name)
    except EnvironmentFault as fault:
        warnings.warn(f"{nest.name} runs by NumPy: {fault.what}", RuntimeWarning, stacklevel=3)
        return carry_out(call)
    return _by_c(call, function)


def _free_dtype(call: Call) -> str:
    """The dtype of arrays that have none of their own."""
    free = [call.dtypes[name] for name, array in call.nest.arrays.items() if array.dtype is None]
    return free[0] if free else ""


@lru_cache(maxsize=256)
def compiled(text: str, name: str) -> Any:
    """The C function of that name in this text, compiled once (see `core.compile_for_here`)."""
    library = ctypes.CDLL(os.fspath(compile_for_here(text, name, f"the loops of {name}")))
    function = getattr(library, name)
    function.restype = None
    return function


@lru_cache(maxsize=512)
def address(text: str, name: str) -> int:
    """Where that function lies; 0, with a warning, where it cannot be compiled."""
    try:
        return ctypes.cast(compiled(text, name), ctypes.c_void_p).value or 0
    except EnvironmentFault as fault:
        warnings.warn(f"{name} runs by NumPy: {fault.what}", RuntimeWarning, stacklevel=2)
        return 0


def _by_c(call: Call, function: Any) -> Any:
    arrays = memory(call)
    pointers = [ctypes.c_void_p(arrays[name].ctypes.data) for name in call.nest.arrays]
    function(*pointers, *(ctypes.c_int64(call.sizes[name]) for name in symbols_of(call.nest)))
    return results(call, {name: held(call, name, array) for name, array in arrays.items()})
