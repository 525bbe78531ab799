"""compute_calls: which kernel each compute op of a program calls, on which operands, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.kernels import KernelCall, Operand, Work
from dovetail.ir.program import Program
from dovetail.ir.slots import Slot
from dovetail.ir.types import Kind
from dovetail.ir.unique_rows import unique_rows
from dovetail.ir.workload import Workload, region_bytes

Ints = NDArray[np.int64]


def kernel_calls(workload: Workload | None, more: Mapping[str, KernelCall] | None = None) -> dict[str, KernelCall]:
    """Return each kernel's Python reference by the kernel's name. Those in `more` replace those of the workload."""
    return {form.name: form.call for form in (workload.forms if workload else ())} | dict(more or {})


class Call(NamedTuple):
    """A kernel (its row in the Program's kernels) and the operands that a compute op calls it on."""

    kernel: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]


class Calls(NamedTuple):
    """Compute ops: op `rows[i]` makes the call `kinds[which[i]]`. Ops with equal calls share an entry of `kinds`."""

    rows: Ints
    which: Ints
    kinds: list[Call]


def compute_calls(
    program: Program, workload: Workload, rank: int | None = None, sizes: tuple[Ints, Ints] | None = None
) -> Calls:
    """Return the calls of a program's compute ops, or of one rank's. Takes about as long as sorting the ops.

    `sizes`: `region_bytes` of the regions read and of those written; computed here unless given.
    """
    col = program.columns
    computes = col["kind"] == Kind.compute
    rows = np.flatnonzero(computes if rank is None else computes & (col["rank"] == rank))
    if not len(rows):
        return Calls(rows, rows, [])
    reads, writes = sizes or (region_bytes(program, workload, "read"), region_bytes(program, workload, "write"))
    sides = [_Side(program, workload, *side, rows) for side in (("read", reads), ("write", writes))]
    call = col["call"][rows].astype(np.int64)
    first, which = unique_rows([call, *sides[0].columns, *sides[1].columns])
    kinds = [Call(int(call[i]), *(side.operands(int(i)) for side in sides)) for i in first]
    return Calls(rows, which, kinds)


def op_works(program: Program, workload: Workload) -> dict[int, Work]:
    """Return the work (FLOP, bytes) of each compute op, by row, unless its kernel has no form in the workload."""
    calls = compute_calls(program, workload)
    forms = [workload.form(program.kernels[call.kernel].name) for call in calls.kinds]
    works = [form and form.work(call.reads, call.writes) for form, call in zip(forms, calls.kinds, strict=True)]
    pairs = ((int(row), works[kind]) for row, kind in zip(calls.rows, calls.which, strict=True))
    return {row: work for row, work in pairs if work is not None}


def work_keys(program: Program, workload: Workload) -> tuple[str, ...]:
    """Return the keys of the cost curves that give the times of a program's compute ops."""
    return tuple(dict.fromkeys(work.key for work in op_works(program, workload).values()))


class _Side:
    """The operands that compute ops read, or those that they write, as columns with a row for each op.

    Operand i has three columns: the number of its Slot (-1 if the op has no operand i), its slots, and its bytes.
    """

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
        """Return the operands in one row of the columns."""
        found = []
        for place in range(0, len(self.columns), 3):
            number, slots, size = (int(column[row]) for column in self.columns[place : place + 3])
            if number >= 0:
                slot = self._slots[number]
                found.append(Operand(slot, slots, size // Slot((), slot.dtype).num_bytes))
        return tuple(found)
