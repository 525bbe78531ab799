"""compute_calls: the compute ops of a program with a workload: which kernel each calls, on what, at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.alike import alike
from dovetail.ir.kernels import KernelCall, Operand, Work
from dovetail.ir.program import Program
from dovetail.ir.slots import Slot
from dovetail.ir.types import Kind
from dovetail.ir.workload import Workload, region_bytes

Ints = NDArray[np.int64]


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
    """The work (FLOP, bytes) of each computation of a program, by row; kernels without a known form are left out."""
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
