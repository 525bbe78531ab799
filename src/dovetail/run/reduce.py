"""reduce: what reducing ops compute. The native engine gives the same bits, except for those of NaNs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dovetail.core import RunError
from dovetail.ir import Program, Workload
from dovetail.run.arrays import Array, is_float

ReduceOp = Literal["sum", "prod", "min", "max", "avg"]
REDUCE_OPS: tuple[str, ...] = get_args(ReduceOp)


def combine(op: str, local: Array, message: Array) -> Array:
    """Return `op` of a rank's data and a received message, rounded to their dtype. Integers wrap around.

    In a minimum or maximum NaN wins; of equal values (+0 and -0) the local one. An average is added here,
    and divided at the end of the run (`average`).

    >>> combine("min", np.array([1.0, np.nan, 0.0]), np.array([np.nan, 1.0, -0.0])).tolist()
    [nan, nan, 0.0]
    """
    result: Array = _OPS[op](local, message)
    return result


def average(program: Program, workload: Workload | None, buffer: str, rank: int, array: Array) -> None:
    """Divide, in place, every slot of `array` that a post-condition names by the number of its terms, rounding once."""
    wide = np.float32 if array.dtype.itemsize == 2 else array.dtype.type
    starts = workload.starts(buffer, rank) if workload else None
    for start, stop, divisor in quotients(program, buffer, rank):
        if starts is not None:
            start, stop = int(starts[start]), int(starts[stop])
        array[start:stop] = (array[start:stop].astype(wide, copy=False) / wide(divisor)).astype(array.dtype)


def quotients(program: Program, buffer: str, rank: int) -> list[tuple[int, int, int]]:
    """Return runs of slots (start, stop, number of terms) of a buffer whose post-condition sums several terms."""
    terms = np.zeros(program.slots_of(buffer, rank) + 1, np.int64)
    for post in program.posts:
        if len(post.terms) > 1 and post.region.buffer == buffer and rank in post.ranks:
            terms[post.region.slots()] = len(post.terms)
    edges = np.flatnonzero(np.diff(terms, prepend=0))
    return [(int(a), int(b), int(terms[a])) for a, b in pairwise(edges) if terms[a]]


def check_average(op: str, dtype: np.dtype[Any]) -> None:
    """Raise RunError for the average of integers, which would not be an integer."""
    if op == "avg" and not is_float(dtype):
        raise RunError(f"no average of {dtype}: it would not be an integer", hint="sum them, or give floats")


def _least(local: NDArray[Any], message: NDArray[Any]) -> NDArray[Any]:
    return np.where((message < local) | (message != message), message, local)


def _most(local: NDArray[Any], message: NDArray[Any]) -> NDArray[Any]:
    return np.where((message > local) | (message != message), message, local)


_OPS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": lambda local, message: local + message,
    "prod": lambda local, message: local * message,
    "min": _least,
    "max": _most,
    "avg": lambda local, message: local + message,
}
