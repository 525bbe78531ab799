"""KernelForm: what a kernel is beside its name: NumPy reference, cost, native form, and how its results are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from dovetail.ir.slots import Slot

KernelCall = Callable[[Sequence[NDArray[Any]], Sequence[NDArray[Any]]], None]
"""Fills every array of `writes` from `reads`; axis 0 of each is the slots of its region, in order.

A kernel overwrites its results; if the op has `accumulate`, the executor adds them to the old values.
"""


class Operand(NamedTuple):
    """A region that a kernel reads or writes: what one slot is (of no shape where slots differ), and how much of it."""

    slot: Slot
    slots: int
    elements: int


class Work(NamedTuple):
    """What one op costs: `units` on the axis of cost curve `key` (rows, points), its FLOP, and the bytes that it reads
    and writes: `num_bytes`, and `shared_bytes` that stay as many however much of the work is done at once."""

    key: str
    units: float
    flops: float
    num_bytes: float = 0.0
    shared_bytes: float = 0.0


class Gemm(NamedTuple):
    """C (m, n) = A (m, k)·B (k, n): each matrix, row after row, is the elements of its region in the order of slots."""

    m: int
    k: int
    n: int


class CFunction(NamedTuple):
    """A compiled C function, `void f(const struct rows *operands, const int64_t *sizes)`, by its address.

    It gets, of what is read and then of what is written, `struct rows { char *data; int64_t stride, blocks; }`: where
    the first block lies, and bytes from one block to the next; all have equally many blocks, for an operand in one
    piece is cut into as many as the others have. It computes the same as the kernel's reference.
    """

    address: int
    sizes: tuple[int, ...]


MOST_SIZES = 8  # of a CFunction


class Agreement(NamedTuple):
    """How a result compares with what it should be.

    `max_rel_error`: the greatest error over the magnitude of what was summed, inf for NaN; `tolerance`: the greatest
    bound on the same scale. `num_wrong`: elements, or rows that are checked as a whole, beyond their own bound.
    `worst`: the worst of them in words.
    """

    max_rel_error: float = 0.0
    tolerance: float = 0.0
    num_wrong: int = 0
    worst: str = ""

    @property
    def ok(self) -> bool:
        return self.num_wrong == 0

    @staticmethod
    def total(parts: Iterable[Agreement]) -> Agreement:
        """All of them as one."""
        found = list(parts)
        worst = max(found, key=lambda part: (part.num_wrong > 0, part.max_rel_error), default=Agreement())
        wrong, tolerance = sum(part.num_wrong for part in found), max((part.tolerance for part in found), default=0.0)
        return Agreement(max((part.max_rel_error for part in found), default=0.0), tolerance, wrong, worst.worst)


WorkOf = Callable[[Sequence[Operand], Sequence[Operand]], Work]
NativeOf = Callable[[Sequence[Operand], Sequence[Operand]], Gemm | CFunction | None]
Check = Callable[[Iterable[Sequence[NDArray[Any]]], NDArray[Any], int, int], Agreement]


@dataclass(frozen=True)
class KernelForm:
    """All that Dovetail knows of a kernel; functions of a module, so that forms can be sent to ranks.

    `call`: the reference. `work`: what an op costs, from its operands. `native`: what the native executors run in place
    of `call`, None where that cannot express these operands. `check(terms, found, slots, seed)`, where computing a
    result anew in float64 would take too long: holds `found` against the sum of this kernel's results on each list of
    operands, of which it computes about `slots` random slots whole. Without it every element is compared: results must
    then be sums of products of what is read, about flops / 2 of them in all.
    """

    name: str
    call: KernelCall
    work: WorkOf
    native: NativeOf | None = None
    check: Check | None = None
