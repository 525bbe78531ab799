"""Memory of the reference executor: one array for each buffer and rank, read and written by region."""

from __future__ import annotations

import numpy as np

from dovetail.core import RunError
from dovetail.ir import Op, Program, Region, Workload
from dovetail.run.arrays import Array, Arrays, allocate, poison, workload_slots


class Memory:
    """Private copies of a program's buffers; scratch and output start poisoned.

    Raises RunError for unknown buffers, missing arrays and wrong numbers of slots. Buffers other than inputs that
    `arrays` lacks take shape and dtype from `workload`.
    """

    def __init__(self, program: Program, arrays: Arrays, workload: Workload | None) -> None:
        unknown = set(arrays) - {buffer.name for buffer in program.buffers}
        if unknown:
            raise RunError(f"program '{program.name}' has no buffer '{min(unknown)}'")
        self.buffers: dict[str, list[Array]] = {}
        for name, role, slots in program.buffers:
            if name in arrays:
                self.buffers[name] = [np.array(array) for array in arrays[name]]
            elif workload is not None and role != "input":
                sizes = workload_slots(workload, name, program.num_ranks)
                self.buffers[name] = [allocate(count, slot) for count, slot in zip(slots, sizes, strict=True)]
            else:
                raise RunError(f"no array for {role} buffer '{name}'", hint="give one array for each rank")
            self._check(name, slots)
            if role != "input":
                for array in self.buffers[name]:
                    poison(array)

    def read(self, op: Op, region: Region, rank: int | None = None) -> Array:
        """The slots of `region` on the op's rank (or `rank`), shape (num_slots, *slot shape), not to be written to."""
        array = self._array(op, region, op.rank if rank is None else rank)
        one_block = slice(region.offset, region.offset + region.count)
        slots = array[one_block] if region.blocks == 1 else array[region.slots()]
        slots.flags.writeable = False
        return slots

    def write(self, op: Op, region: Region, values: Array, rank: int | None = None) -> None:
        array = self._array(op, region, op.rank if rank is None else rank)
        want = (region.num_slots, *array.shape[1:])
        if values.shape != want:
            found = f"{list(values.shape)} for {region}, which is {list(want)}"
            raise RunError(f"{describe(op)}: data of another shape than its place", where=op.line, found=found)
        if region.blocks == 1:
            array[region.offset : region.offset + region.count] = values
        else:
            array[region.slots()] = values

    def _array(self, op: Op, region: Region, rank: int) -> Array:
        array = self.buffers[region.buffer][rank]
        last = region.offset + max(region.blocks - 1, 0) * region.stride + region.count
        if min(region.offset, region.count, region.blocks, region.stride) < 0 or last > len(array):
            found = f"{region}, and rank {rank} holds {len(array)} slots"
            raise RunError(f"{describe(op)} leaves its buffer", where=op.line, found=found)
        return array

    def _check(self, name: str, slots: tuple[int, ...]) -> None:
        found = [array.shape[0] if array.ndim else None for array in self.buffers[name]]
        if found != list(slots):
            raise RunError(f"buffer '{name}' needs one array for each rank, of {list(slots)} slots", found=str(found))


def describe(op: Op) -> str:
    return f"op {op.index} '{op.kind.name}' on rank {op.rank}"
