"""record: record events from Python: the functions of `dovetail_trace.h` as context managers and decorators."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from dovetail import _native
from dovetail.core import EnvironmentFault

P = ParamSpec("P")
R = TypeVar("R")
finalize, on, off, dropped = _native.trace_finalize, _native.trace_on, _native.trace_off, _native.trace_dropped


def init(folder: str | Path | None = None) -> Path:
    """Start tracing this process into a new file in `folder`; return the file's path.

    Default of `folder`: $DOVETAIL_TRACE_DIR, else ./dovetail-trace. Under `dovetail trace run`, the events are added to
    the trace of the MPI calls, and `folder` has no effect. Raises EnvironmentFault if the file cannot be made.
    """
    code = _native.trace_init(None if folder is None else os.fspath(folder))
    if code:
        raise EnvironmentFault(
            "cannot begin a trace", found=os.strerror(code), hint="give a folder that you can write to"
        )
    return Path(_native.trace_file())


class interval:
    """A context manager that records an interval of this thread, with a name and a number `arg` of up to 48 bits.

    with interval("assemble", rows):
        ...
    """

    __slots__ = ("_arg", "_name")

    def __init__(self, name: str, arg: int = 0) -> None:
        self._name, self._arg = _number(name), arg

    def __enter__(self) -> None:
        _native.trace_begin(self._name, self._arg)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _native.trace_end(self._name, 0)


def point(name: str, arg: int = 0) -> None:
    """Record a point in time on this thread."""
    _native.trace_point(_number(name), arg)


def traced(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function wrapped such that each call is recorded as an interval with the function's name."""
    number = _number(function.__qualname__)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _native.trace_begin(number, 0)
        try:
            return function(*args, **kwargs)
        finally:
            _native.trace_end(number, 0)

    return call


@cache
def _number(name: str) -> int:
    return int(_native.trace_name(name))
