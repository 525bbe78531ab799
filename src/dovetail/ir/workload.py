"""Workload: what one slot of each buffer is, and what a Program's kernels do: all that the Program leaves open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.kernels import KernelForm
from dovetail.ir.program import Program
from dovetail.ir.slots import Slot
from dovetail.ir.types import Kind
from dovetail.ir.unique_rows import unique_rows

Sizes = dict[str, tuple[NDArray[np.int64], ...]]  # buffer -> elements of each slot, by rank


@dataclass(frozen=True)
class Workload:
    """What a Program's buffers and kernels are: the Slot of each buffer on each rank, and the forms of its kernels.

    For a buffer in `sizes` slots differ in size: slot i has sizes[buffer][rank][i] elements, the Slot's shape is (),
    and the buffer's array is flat, one slot after the other (see `ir.proof.sizes`).
    """

    slots: dict[str, tuple[Slot, ...]]
    forms: Collection[KernelForm] = ()
    sizes: Sizes = field(default_factory=dict, compare=False)

    def form(self, kernel: str) -> KernelForm | None:
        """Return the form of a kernel, by name; None if there is none."""
        return next((form for form in self.forms if form.name == kernel), None)

    def unsigned(self) -> Workload:
        """Return the workload for inputs that are not negative."""
        return replace(self, slots={n: tuple(s._replace(signed=False) for s in own) for n, own in self.slots.items()})

    def slot_bytes(self, buffer: str, rank: int) -> int:
        return self.slots[buffer][rank].num_bytes

    def starts(self, buffer: str, rank: int) -> NDArray[np.int64] | None:
        """Return the first element of each slot in the flat array, and its end; None if all slots have one size."""
        if buffer not in self.sizes:
            return None
        return np.concatenate([[0], np.cumsum(self.sizes[buffer][rank])]).astype(np.int64)

    def length(self, buffer: str, rank: int, num_slots: int) -> int:
        """Return the length of axis 0 of a buffer's array: slots, or elements if slots differ in size."""
        return int(self.sizes[buffer][rank].sum()) if buffer in self.sizes else num_slots


def region_bytes(program: Program, workload: Workload, side: str) -> NDArray[np.int64]:
    """Return the bytes of each region that ops read ("read") or write ("write"), in the order of the columns."""
    col, ranks = program.columns, program.num_ranks
    buffer, count, blocks = (col[f"{side}_{part}"] for part in ("buffer", "count", "blocks"))
    place = buffer.astype(np.int64) * ranks + np.repeat(owners(program, side), np.diff(col[f"{side}_start"]))
    table = [workload.slot_bytes(b.name, rank) for b in program.buffers for rank in range(ranks)]
    each = np.array(table or [0], np.int64)[place]
    total: NDArray[np.int64] = count * blocks * each
    differ = np.array([b.name in workload.sizes for b in program.buffers], np.bool_)
    rows = np.flatnonzero(differ[buffer]) if differ.any() else np.zeros(0, np.int64)
    if not len(rows):
        return total
    joined, base = _all_starts(program, workload)
    begins = base[place[rows]] + col[f"{side}_offset"][rows]
    kinds, which = unique_rows([begins, count[rows], blocks[rows], col[f"{side}_stride"][rows]])
    begins, ones = begins[kinds], rows[kinds]  # one of each kind: most ranks have the same ones
    count, times, stride = (col[f"{side}_{part}"][ones] for part in ("count", "blocks", "stride"))
    block = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times)
    first = np.repeat(begins, times) + block * np.repeat(stride, times)
    elements = joined[first + np.repeat(count, times)] - joined[first]
    of_kind = np.repeat(np.arange(len(kinds)), times)
    total[rows] = np.bincount(of_kind, elements, len(kinds)).astype(np.int64)[which] * each[rows]
    return total


def _all_starts(program: Program, workload: Workload) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (starts, base): the starts of the slots of each buffer on each rank begin at `starts[base[buffer, rank]]`.

    Ranks that have the same array of sizes share these entries. Buffers whose slots are equal have none.
    """
    found, base, end = dict[int, tuple[int, NDArray[np.int64]]](), list[int](), 0
    for buffer in program.buffers:
        for rank in range(program.num_ranks):
            sizes = workload.sizes.get(buffer.name)
            if sizes is None:
                base.append(0)
                continue
            key = id(sizes[rank])
            if key not in found:
                found[key] = end, np.append(0, np.cumsum(sizes[rank]))
                end += len(sizes[rank]) + 1
            base.append(found[key][0])
    return np.concatenate([starts for _, starts in found.values()]), np.array(base, np.int64)


def owners(program: Program, side: str) -> NDArray[np.int64]:
    """Return the rank whose memory each op reads or writes: its own; for a get (reads) or put (writes), the peer."""
    col = program.columns
    kind, channel = (Kind.get, "chan_in") if side == "read" else (Kind.put, "chan_out")
    peer = np.array([c.src if kind == Kind.get else c.dst for c in program.channels] or [0], np.int64)
    return np.where(col["kind"] == kind, peer[col[channel]], col["rank"])
