"""KernelForm: what a kernel is beside its name: NumPy reference, cost, native form, and how its results are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.alike import alike
from dovetail.ir.program import Program
from dovetail.ir.types import Kind
from dovetail.ir.workload import Slot, Workload, region_bytes

Ints = NDArray[np.int64]
KernelCall = Callable[[Sequence[NDArray[Any]], Sequence[NDArray[Any]]], None]
"""Fills every array of `writes` from `reads`; axis 0 of each is the slots of its region, in order.

A kernel overwrites its results; where the Program says `accumulate`, the executor adds them to what was there.
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
    piece is cut into as many as the others have. It computes whatever the kernel's reference does.
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


def kernel_calls(workload: Workload | None, more: Mapping[str, KernelCall] | None = None) -> dict[str, KernelCall]:
    """Every kernel's reference by its name: those of a workload's forms, and `more`, which go before them."""
    return {form.name: form.call for form in (workload.forms if workload else ())} | dict(more or {})


class Call(NamedTuple):
    """What a compute op asks for: a row of the Program's kernels, on such operands."""

    kernel: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]


class Calls(NamedTuple):
    """Compute ops: their rows, and for each which of the `kinds` it is; ops that are alike are one kind."""

    rows: Ints
    which: Ints
    kinds: list[Call]


def compute_calls(
    program: Program, workload: Workload, rank: int | None = None, sizes: tuple[Ints, Ints] | None = None
) -> Calls:
    """What the compute ops of a program (of one rank, if given) ask for, at the cost of about a sort of them.

    `sizes`: the bytes of all regions read and written (see `region_bytes`), where they are known.
    """
    col = program.columns
    computes = col["kind"] == Kind.compute
    rows = np.flatnonzero(computes if rank is None else computes & (col["rank"] == rank))
    if not len(rows):
        return Calls(rows, rows, [])
    reads, writes = sizes or (region_bytes(program, workload, "read"), region_bytes(program, workload, "write"))
    sides = [_Side(program, workload, *side, rows) for side in (("read", reads), ("write", writes))]
    call = col["call"][rows].astype(np.int64)
    first, which = alike([call, *sides[0].columns, *sides[1].columns])
    kinds = [Call(int(call[i]), *(side.operands(int(i)) for side in sides)) for i in first]
    return Calls(rows, which, kinds)


def op_works(program: Program, workload: Workload) -> dict[int, Work]:
    """What each computation of a program costs, by its row; kernels whose form is not told are left out."""
    calls = compute_calls(program, workload)
    forms = [workload.form(program.kernels[call.kernel].name) for call in calls.kinds]
    works = [form and form.work(call.reads, call.writes) for form, call in zip(forms, calls.kinds, strict=True)]
    pairs = ((int(row), works[kind]) for row, kind in zip(calls.rows, calls.which, strict=True))
    return {row: work for row, work in pairs if work is not None}


def work_keys(program: Program, workload: Workload) -> tuple[str, ...]:
    """The keys of the cost curves that a program's computations go by."""
    return tuple(dict.fromkeys(work.key for work in op_works(program, workload).values()))


class _Side:
    """The operands that compute ops read, or write. Of each, three columns: the number of its Slot (-1: an op has
    fewer operands), how many slots it has, and how many bytes."""

    def __init__(self, program: Program, workload: Workload, side: str, sizes: Ints, rows: Ints) -> None:
        col, ranks = program.columns, program.num_ranks
        numbers: dict[Slot, int] = {}
        homes = [workload.slots[b.name][rank] for b in program.buffers for rank in range(ranks)]
        number = np.array([numbers.setdefault(slot, len(numbers)) for slot in homes], np.int64)
        self._slots, self.columns = list(numbers), list[Ints]()
        start, end = col[f"{side}_start"][rows], col[f"{side}_start"][rows + 1]
        least, most = (end - start).min(), (end - start).max()
        for place in range(int(most)):
            region, has = np.minimum(start + place, len(sizes) - 1), start + place < end
            home = col[f"{side}_buffer"][region].astype(np.int64) * ranks + col["rank"][rows]
            slots = col[f"{side}_count"][region] * col[f"{side}_blocks"][region]
            found = (number[home], slots, sizes[region])
            self.columns += found if place < least else [np.where(has, values, -1) for values in found]

    def operands(self, row: int) -> tuple[Operand, ...]:
        """Those of one row of the columns."""
        found = []
        for place in range(0, len(self.columns), 3):
            number, slots, size = (int(column[row]) for column in self.columns[place : place + 3])
            if number >= 0:
                slot = self._slots[number]
                found.append(Operand(slot, slots, size // Slot((), slot.dtype).num_bytes))
        return tuple(found)
