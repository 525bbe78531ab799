"""validate: check the arguments of a collective call that the fast path in C++ does not take, then make the call."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from dovetail.call.collective_arguments import (
    Counts,
    counts_of,
    even_sides,
    most_of_a_rank,
    part_of,
    row_size,
    uneven_sides,
    whole_counts,
)
from dovetail.call.selection_rules import checks_calls, communicator
from dovetail.core import OperatorError
from dovetail.ir.arrays import borrowed
from dovetail.ir.collectives import COLLECTIVES
from dovetail.run.arrays import Array, is_float
from dovetail.run.faults import Door
from dovetail.run.ranks.comm import KINDS, REDUCED, CollectiveCall, Communicator, call
from dovetail.run.ranks.together import common, is_common
from dovetail.run.reduce import REDUCE_OPS

_MOVERS = {1: "uint8", 2: "float16", 4: "int32", 8: "int64"}
_MOST = 2**31 - 1  # elements: MPI counts in C ints


def settle(
    kind: str, comm: Any, array: Array | None, out: Array | None, op: str = "sum", root: int = 0, counts: Any = None
) -> Array:
    """Check and make a collective call; return this rank's result, or None. Raise OperatorError for wrong arguments."""
    with Door(comm) as door:
        made, checks = communicator(comm), checks_calls()
        door.made = made
        given, is_row, fault = _own_counts(kind, made, counts)
        if checks and _has_rows(kind):  # all ranks must give either their own row or the whole table
            form = np.array([is_row], np.int64)
            made.agree(CollectiveCall(kind, 0, 0, 0, "int64", 0, counts=form) if fault is None else None)
            if fault is not None:
                raise common(fault)
        if fault is not None and made.bound.has_board:  # the other ranks read the fault there, in their next call
            raise fault
        each = made.gather(given) if is_row and given is not None else given
        try:
            if fault is not None:
                raise common(fault) if is_row else fault
            each = _rows_of_all(kind, made, each) if is_row else each
            lent, into = borrowed(array, f"an argument of {kind}"), borrowed(out, f"`out` of {kind}")
            src, dst, request = _asked(kind, made, lent, into, op, root, each)
        except Exception as error:  # of any kind: the user's array class may raise its own
            if checks and not is_common(error):
                made.agree(None)
                common(error)
            raise
        if checks:
            made.agree(request)
        if counts is not None or not call(KINDS.index(kind), comm, src, dst, op, root):
            made.run(request)
        given_back = next((own for own, held in ((out, into), (array, lent)) if dst is held), dst)
        return cast(Array, given_back)


def _asked(
    kind: str, made: Communicator, array: Array | None, out: Array | None, op: str, root: int, each: Counts | None
) -> tuple[Array | None, Array | None, CollectiveCall]:
    if isinstance(root, bool) or not isinstance(root, int | np.integer) or not 0 <= root < made.size:
        raise OperatorError(f"{kind} has no root {root!r}", found=f"ranks 0 to {made.size - 1}")
    if array is not None or not COLLECTIVES[kind].input_at_root or made.rank == root:
        _check_type(kind, array)
    if out is not None:
        _check_type(kind, out)
    if not COLLECTIVES[kind].even:
        src, dst = even_sides(kind, made.rank, made.size, array, out, int(root))
        dtype, width = _dtype(kind, op, src, dst)
        part, whole = part_of(kind, made.size, src, dst)
    else:
        assert each is not None
        src, dst = uneven_sides(kind, made.rank, array, out, each)
        dtype, width = _dtype(kind, op, src, dst)
        each = each * row_size(src) * width
        part, whole = 0, -(-int(each.sum()) // ((made.size if _has_rows(kind) else 1) * width))  # 0 if there is nothing
    most = part * width if each is None else most_of_a_rank(each)
    if most > _MOST:
        raise OperatorError(f"{kind} of {most} elements a rank", hint=f"at most {_MOST}: call it on parts")
    held = src if src is not None else dst
    assert held is not None
    used_op = op if COLLECTIVES[kind].reduces else "sum"
    sizes = part * width, dtype, whole * held.itemsize
    return src, dst, CollectiveCall(kind, _address(src), _address(dst), *sizes, used_op, int(root), each)


def _address(array: Array | None) -> int:
    return 0 if array is None else int(array.ctypes.data)


def _has_rows(kind: str) -> bool:
    """Return whether counts are a table with a row per rank, as all_to_all_v has them."""
    return COLLECTIVES[kind].exchanges and bool(COLLECTIVES[kind].even)


def _own_counts(kind: str, made: Communicator, counts: Any) -> tuple[Counts | None, bool, Exception | None]:
    """Return this rank's counts, whether they are its own row of an all_to_all_v, and what is wrong with them.

    An invalid row becomes a row of -1, by which the other ranks, on exchanging rows, see that it is invalid.
    """
    if not COLLECTIVES[kind].even:
        return None, False, None
    is_row = _has_rows(kind)
    try:
        found = counts_of(counts)
        is_row = is_row and found.ndim == 1
        shape = (made.size,) * (2 if _has_rows(kind) and not is_row else 1)
        return whole_counts(kind, found, shape), is_row, None
    except Exception as error:
        return np.full(made.size, -1, np.int64) if is_row else None, is_row, error


def _rows_of_all(kind: str, made: Communicator, everyone: Any) -> Counts:
    """Return the rows of all ranks as one table. Raise OperatorError if some rank's row is invalid."""
    refused = np.flatnonzero((everyone < 0).all(axis=1))
    if len(refused):
        raise common(
            OperatorError(f"rank {refused[0]} has invalid counts for {kind}", found="its own error gives the reason")
        )
    try:
        return whole_counts(kind, everyone, (made.size, made.size))
    except OperatorError as error:
        raise common(error) from None


def _dtype(kind: str, op: str, src: Array | None, dst: Array | None) -> tuple[str, int]:
    """Return the type that MPI moves or reduces, and how many of it make one element.

    Raises OperatorError for arrays that are not contiguous, not of one dtype, or of a dtype that cannot be moved.
    """
    held = [side for side in (src, dst) if side is not None]
    for array in held:
        _check_layout(kind, array, written=array is dst)
    if held[-1].dtype != held[0].dtype:
        raise OperatorError(f"{kind} from {held[0].dtype} to {held[-1].dtype}", hint="arrays of one dtype")
    dtype = held[0].dtype
    if COLLECTIVES[kind].reduces:
        _check_op(kind, op, dtype)
        return dtype.name, 1
    width = next(width for width in (8, 4, 2, 1) if dtype.itemsize % width == 0)
    return _MOVERS[width], dtype.itemsize // width


def _check_type(kind: str, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise OperatorError(f"{kind} takes NumPy arrays", found=type(array).__name__, hint="numpy.asarray")
    if isinstance(array, np.ma.MaskedArray):
        raise OperatorError(f"{kind} would lose the mask of a masked array", hint="array.filled(…), or array.data")


def _check_layout(kind: str, array: Array, *, written: bool) -> None:
    if not array.flags.c_contiguous:
        found = f"shape {array.shape}, strides {array.strides}"
        raise OperatorError(f"{kind} needs C-contiguous arrays", found=found, hint="numpy.ascontiguousarray")
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise OperatorError(f"{kind} cannot move {array.dtype}", hint="use a dtype whose elements have a fixed size")
    if written and not array.flags.writeable:
        raise OperatorError(f"{kind} writes to an array that is read-only")


def _check_op(kind: str, op: str, dtype: np.dtype[Any]) -> None:
    if op not in REDUCE_OPS:
        raise OperatorError(f"{kind} knows no op {op!r}", hint=f"one of {', '.join(REDUCE_OPS)}")
    if dtype.name not in REDUCED or not dtype.isnative:
        raise OperatorError(f"{kind} cannot reduce {dtype}", hint=f"one of {', '.join(REDUCED)}")
    if op == "avg" and not is_float(dtype):
        raise OperatorError(
            f"no average of {dtype}: the result need not be an integer", hint="op='sum', or arrays of floats"
        )
    if dtype.kind == "c" and op in ("min", "max"):
        raise OperatorError(f"{dtype} has no {op}: complex numbers have no order")
