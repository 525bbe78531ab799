"""collective_arguments: check the arrays of a collective call, and allocate its result if the user gives no `out`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError
from dovetail.ir.collectives import COLLECTIVES
from dovetail.run.arrays import Array

Sides = tuple[Array | None, Array | None]
Counts = NDArray[np.int64]


def even_sides(kind: str, rank: int, ranks: int, array: Array | None, out: Array | None, root: int) -> Sides:
    """Return the arrays that this rank reads and writes, None for a side it lacks.

    Raises OperatorError if shapes do not fit, or if this rank does not give an array that it must give.
    """
    traits = COLLECTIVES[kind]
    if traits.to_root and rank != root:
        return array, None
    if traits.input_at_root and rank != root:
        if out is None:
            hint = "only the root knows shape and dtype: give an array for the result"
            raise OperatorError(f"{kind} needs an `out` on rank {rank}", hint=hint)
        return None, out
    part = share_of(array, ranks, kind) if traits.cut else None
    if out is not None:
        return array, out
    if traits.in_parts:
        part = rows(array, kind) if part is None else part
        return array, new_rows(array, part * traits.parts(ranks)[1])
    if traits.to_next:
        return array, np.empty_like(array) if rank else None
    return array, array


def part_of(kind: str, ranks: int, src: Array | None, dst: Array | None) -> tuple[int, int]:
    """Return the elements of one rank's part, and of the larger of a rank's input and output."""
    sizes = [None if array is None else array.size for array in (src, dst)]
    cut, joined = COLLECTIVES[kind].parts(ranks)
    part = sizes[0] // cut if sizes[0] is not None else (sizes[1] or 0) // joined
    for size, times in zip(sizes, (cut, joined), strict=True):
        if size not in (None, part * times):
            raise OperatorError(f"{kind} on {ranks} ranks from {sizes[0]} elements to {sizes[1]}")
    return part, part * max(cut, joined)


def uneven_sides(kind: str, rank: int, array: Array | None, out: Array | None, counts: Counts) -> tuple[Array, Array]:
    """Return the arrays that this rank of a v-variant reads and writes; `counts` are in rows."""
    traits, whole = COLLECTIVES[kind], counts[rank].sum() if COLLECTIVES[kind].exchanges else counts.sum()
    part = counts[..., rank].sum()
    length, result = int(whole if traits.cut else part), int(part if traits.cut else whole)
    if rows(array, kind) != length or array is None:
        raise OperatorError(
            f"{kind} of {rows(array, kind)} rows on rank {rank}", found=f"its counts ask for {length} rows"
        )
    if out is not None and out.size != result * row_size(array):
        raise OperatorError(f"{kind} has a result of {result} rows on rank {rank}", found=f"out of shape {out.shape}")
    return array, new_rows(array, result) if out is None else out


def whole_counts(kind: str, counts: Any, shape: tuple[int, ...]) -> Counts:
    """Return counts as int64 of shape `shape`. Raise OperatorError unless they are whole and none is negative."""
    found = counts_of(counts)
    if found.shape != shape or found.dtype.kind not in "iu" or (found < 0).any():
        wanted = f"{kind} needs counts of shape {shape}, whole and not negative"
        shown = f": {found.tolist()}" if found.size < 10 else ""
        raise OperatorError(wanted, found=f"{found.dtype}, shape {found.shape}{shown}")
    return found.astype(np.int64)


def counts_of(counts: Any) -> NDArray[Any]:
    """Return counts as an array: of dtype object if rows differ in length."""
    try:
        return np.asarray(counts)
    except ValueError:
        return np.array(counts, object)


def most_of_a_rank(counts: Counts) -> int:
    """Return the most that any rank reads or writes: the largest sum along any axis of `counts`.

    >>> most_of_a_rank(np.array([1, 2])), most_of_a_rank(np.array([[1, 2], [0, 5]]))
    (3, 7)
    """
    return int(max(counts.sum(axis).max() for axis in range(counts.ndim)))


def rows(array: Any, kind: str) -> int:
    """Return the length of axis 0, along which ranks share an array. Raise OperatorError if there is no axis 0."""
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        found = "an array without axes" if isinstance(array, np.ndarray) else type(array).__name__
        raise OperatorError(f"{kind} needs a NumPy array with an axis 0, along which ranks share it", found=found)
    return int(array.shape[0])


def share_of(array: Any, ranks: int, kind: str) -> int:
    """Return each rank's rows of axis 0. Raise OperatorError if `ranks` does not divide the length."""
    length = rows(array, kind)
    if length % ranks:
        hint = f"{kind}_v takes uneven parts" if f"{kind}_v" in COLLECTIVES else ""
        raise OperatorError(f"{kind} cuts axis 0 into {ranks} equal parts", found=f"{length} rows", hint=hint)
    return length // ranks


def row_size(array: Array) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64))


def new_rows(array: Any, length: int) -> Array:
    return np.empty((length, *array.shape[1:]), array.dtype)
