"""The collectives, in PyTorch's spelling, on NumPy arrays and communicators: of mpi4py, or dovetail.world().

Every rank of `comm` makes the same calls, with C-contiguous arrays of one dtype and of matching shapes. Ranks share
arrays along axis 0. Results are returned, and written to `out` if one is given. `op`: sum, prod, min, max, or avg (of
floats). Calls raise OperatorError for invalid arguments, RunError if MPI fails or a rank never arrives. On one host all
ranks raise what one rank raises before its transfer. With $DOVETAIL_CHECK_CALLS set, ranks compare their arguments
before data moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.call.validate import settle
from dovetail.run.arrays import Array
from dovetail.run.ranks.comm import KINDS, call

# Looked up once, because finding a kind's number takes longer than a short call.
_ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER = map(KINDS.index, ("all_reduce", "all_gather", "reduce_scatter"))
_ALL_TO_ALL, _BROADCAST, _ALL_TO_NEXT = map(KINDS.index, ("all_to_all", "broadcast", "all_to_next"))


def all_reduce(array: Array, comm: Any, op: str = "sum", out: Array | None = None) -> Array:
    """Return the reduction of all ranks' arrays, on every rank. Without `out`, the result overwrites `array`."""
    into = array if out is None else out
    if call(_ALL_REDUCE, comm, array, into, op, 0):
        return into
    return settle("all_reduce", comm, array, into, op)


def all_gather(array: Array, comm: Any, out: Array | None = None) -> Array:
    """Return all ranks' arrays, joined along axis 0, on every rank."""
    if out is not None and call(_ALL_GATHER, comm, array, out, "", 0):
        return out
    return settle("all_gather", comm, array, out)


def reduce_scatter(array: Array, comm: Any, op: str = "sum", out: Array | None = None) -> Array:
    """Return this rank's part, along axis 0, of the reduction of all ranks' arrays."""
    if out is not None and call(_REDUCE_SCATTER, comm, array, out, op, 0):
        return out
    return settle("reduce_scatter", comm, array, out, op)


def all_to_all(array: Array, comm: Any, out: Array | None = None) -> Array:
    """Send part r of this rank's array, along axis 0, to rank r; part r of the result comes from rank r."""
    if out is not None and call(_ALL_TO_ALL, comm, array, out, "", 0):
        return out
    return settle("all_to_all", comm, array, out)


def broadcast(array: Array, comm: Any, root: int = 0) -> Array:
    """Copy the root's array to every rank, in place."""
    if call(_BROADCAST, comm, array, array, "", root):
        return array
    return settle("broadcast", comm, array, array, root=root)


def all_to_next(array: Array, comm: Any, out: Array | None = None) -> Array | None:
    """Return the array of rank - 1. Rank 0 returns its `out` unchanged, or None if it gave no `out`."""
    if out is not None and call(_ALL_TO_NEXT, comm, array, out, "", 0):
        return out
    return settle("all_to_next", comm, array, out)


def reduce(array: Array, comm: Any, root: int = 0, op: str = "sum", out: Array | None = None) -> Array | None:
    """Return the reduction of all ranks' arrays on the root, else None. Without `out`, it overwrites `array`."""
    return settle("reduce", comm, array, out, op, root)


def gather(array: Array, comm: Any, root: int = 0, out: Array | None = None) -> Array | None:
    """Return all ranks' arrays, joined along axis 0, on the root; None on other ranks."""
    return settle("gather", comm, array, out, root=root)


def scatter(array: Array | None, comm: Any, root: int = 0, out: Array | None = None) -> Array:
    """Return part r of the root's array, along axis 0, on rank r. Other ranks pass None as array, and an `out`."""
    return settle("scatter", comm, array, out, root=root)


def all_gather_v(array: Array, counts: Sequence[int], comm: Any, out: Array | None = None) -> Array:
    """Return all ranks' arrays, joined along axis 0; rank r's array has `counts[r]` rows."""
    return settle("all_gather_v", comm, array, out, counts=counts)


def reduce_scatter_v(
    array: Array, counts: Sequence[int], comm: Any, op: str = "sum", out: Array | None = None
) -> Array:
    """Return this rank's part of the reduction of all ranks' arrays: rank r gets `counts[r]` rows of axis 0."""
    return settle("reduce_scatter_v", comm, array, out, op, counts=counts)


def all_to_all_v(array: Array, counts: Any, comm: Any, out: Array | None = None) -> Array:
    """Exchange uneven parts: rank s sends `counts[s][d]` rows of axis 0 to rank d. Parts lie in the order of ranks.

    If every rank gives only its own row of `counts`, ranks first exchange their rows.
    """
    return settle("all_to_all_v", comm, array, out, counts=counts)
