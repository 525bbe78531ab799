"""run: run a nest by compiled C, or by NumPy where there is no compiler."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from threading import Event, Thread
from typing import Any

from numpy.typing import NDArray

from dovetail.core import EnvironmentFault, compile_for_here
from dovetail.loops.affine import extreme
from dovetail.loops.arguments import Call, bound, results
from dovetail.loops.code.generate import c_text, symbols_of
from dovetail.loops.code.rings import held, memory
from dovetail.loops.code.vectorised import carry_out
from dovetail.loops.recording import Recording

Given = NDArray[Any]
LONG = 10**8  # iterations, which take 0.1 s or more


def by_best(nest: Recording, arrays: Sequence[Given], parameters: Mapping[str, int]) -> Any:
    """Run a nest by compiled C; if it cannot be compiled, by NumPy, with a warning that gives the reason."""
    call = bound(nest, arrays, parameters)
    text = c_text(nest, _free_dtype(call))
    try:
        compiled(text, nest.name)
    except EnvironmentFault as fault:
        warnings.warn(f"{nest.name} runs by NumPy: {fault.what}", RuntimeWarning, stacklevel=3)
        return carry_out(call)
    return _by_c(call, text)


def _free_dtype(call: Call) -> str:
    """The dtype of arrays that have none of their own."""
    free = [call.dtypes[name] for name, array in call.nest.arrays.items() if array.dtype is None]
    return free[0] if free else ""


@lru_cache(maxsize=256)
def compiled(text: str, name: str) -> Any:
    """Return the C function `name` of this text, compiled once (see `core.compile_for_here`)."""
    function = getattr(library(text, name), name)
    function.restype = None
    return function


@lru_cache(maxsize=256)
def library(text: str, name: str) -> ctypes.CDLL:
    """Return the shared library that this C text compiles to."""
    return ctypes.CDLL(os.fspath(compile_for_here(text, name, f"the loops of {name}")))


@lru_cache(maxsize=512)
def address(text: str, name: str) -> int:
    """Return the address of the C function `name`; 0, with a warning, if it cannot be compiled."""
    try:
        return ctypes.cast(compiled(text, name), ctypes.c_void_p).value or 0
    except EnvironmentFault as fault:
        warnings.warn(f"{name} runs by NumPy: {fault.what}", RuntimeWarning, stacklevel=2)
        return 0


def _by_c(call: Call, text: str) -> Any:
    function = compiled(text, call.nest.name)
    arrays = memory(call)
    pointers = [ctypes.c_void_p(arrays[name].ctypes.data) for name in call.nest.arrays]
    given = [*pointers, *(ctypes.c_int64(call.sizes[name]) for name in symbols_of(call.nest))]
    if iterations(call) < LONG:
        function(*given)
    else:
        _interruptibly(function, given, ctypes.c_int.in_dll(library(text, call.nest.name), "stop_"))
    return results(call, {name: held(call, name, array) for name, array in arrays.items()})


def iterations(call: Call) -> int:
    """Return an upper bound on how many times statements run."""
    lengths = (
        [max(0, extreme(loop.high - loop.low, each.loops, 1).at(call.sizes)) for loop in each.loops]
        for each in call.nest.statements
    )
    return sum(map(prod, lengths))


def _interruptibly(function: Any, given: Sequence[Any], stop: ctypes.c_int) -> None:
    """Call a function in a new thread, so that Ctrl-C can stop it: Python runs no signal handler within C."""
    done, stop.value = Event(), 0

    def run() -> None:
        function(*given)
        done.set()

    Thread(target=run, name="nest").start()
    try:
        done.wait()  # not Thread.join: after an interrupt it takes the thread for ended
    except BaseException:
        stop.value = 1
        while not done.is_set():  # C still writes into the arrays: a second Ctrl-C waits, too
            with suppress(KeyboardInterrupt):
                done.wait()
        raise
