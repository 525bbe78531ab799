"""KernelForm: a kernel's NumPy reference, its cost, its native form, and how its results are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from dovetail.ir.slots import Slot

KernelCall = Callable[[Sequence[NDArray[Any]], Sequence[NDArray[Any]]], None]
"""`call(reads, writes)` computes every array of `writes` from `reads`. Axis 0 of each array counts the slots of its
region, in order. The call overwrites `writes`; if the kernel accumulates, the executor adds them to the old values.
"""


class Operand(NamedTuple):
    """A region that a kernel reads or writes: its Slot (without a shape if slots differ in size), slots, elements."""

    slot: Slot
    slots: int
    elements: int


class Work(NamedTuple):
    """What one op costs: `units` (rows, points) on the axis of the cost curve `key`, FLOP, and bytes read and written.

    `num_bytes` grow with `units`; `shared_bytes` (of a weight, say) do not.
    """

    key: str
    units: float
    flops: float
    num_bytes: float = 0.0
    shared_bytes: float = 0.0


class Gemm(NamedTuple):
    """C (m, n) = A (m, k) · B (k, n). Each operand's elements, in the order of slots, are its matrix row by row."""

    m: int
    k: int
    n: int


class CFunction(NamedTuple):
    """The address of a compiled function `void f(const struct rows *operands, const int64_t *sizes)`.

    `operands` are those read, then those written: `struct rows { char *data; int64_t stride, blocks; }`, the address of
    the first block, bytes from one block to the next, number of blocks. All operands of a call have equally many
    blocks: the executor cuts a contiguous one into as many as the others have. The function computes the same as the
    kernel's reference.
    """

    address: int
    sizes: tuple[int, ...]


MOST_SIZES = 8  # of a CFunction


class Agreement(NamedTuple):
    """How a result compares with the right one.

    `max_rel_error`: greatest error relative to the sum of the magnitudes of the summands; inf for NaN. `tolerance`:
    greatest error bound on the same scale. `num_wrong`: number of elements, or of rows checked as a whole, whose error
    exceeds their own bound. `worst`: describes the worst of these.
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
        """Return one Agreement for all parts of a result."""
        found = list(parts)
        worst = max(found, key=lambda part: (part.num_wrong > 0, part.max_rel_error), default=Agreement())
        wrong, tolerance = sum(part.num_wrong for part in found), max((part.tolerance for part in found), default=0.0)
        return Agreement(max((part.max_rel_error for part in found), default=0.0), tolerance, wrong, worst.worst)


WorkOf = Callable[[Sequence[Operand], Sequence[Operand]], Work]
NativeOf = Callable[[Sequence[Operand], Sequence[Operand]], Gemm | CFunction | None]
Check = Callable[[Iterable[Sequence[NDArray[Any]]], NDArray[Any], int, int], Agreement]


@dataclass(frozen=True)
class KernelForm:
    """All that Dovetail knows of a kernel.

    Parameters
    ----------
    name : str
        The kernel's name in Programs.
    call : callable
        The NumPy reference.
    work : callable
        `work(reads, writes)`: cost of an op on these operands.
    native : callable, optional
        `native(reads, writes)`: what native executors run instead of `call`, or None if no native form computes it.
    check : callable, optional
        `check(terms, found, slots, seed)` compares `found` with Σ call(operands) over the lists of operands in `terms`.
        It recomputes about `slots` random slots exactly. Needed where recomputing all in float64 takes too long.
        Without it every element is compared; each must then be a sum of products of what the kernel reads, about
        `flops / 2` products in all.

    Notes
    -----
    The callables are functions of modules, so that a form can be pickled and sent to ranks.
    """

    name: str
    call: KernelCall
    work: WorkOf
    native: NativeOf | None = None
    check: Check | None = None
