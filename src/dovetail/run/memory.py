"""memory: buffers of the reference executor, one array per buffer and rank, read and written by region."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.core import RunError
from dovetail.ir import Op, Program, Region, Workload
from dovetail.run.arrays import Array, Arrays, allocate_buffer, elements, places, poison


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
        self._starts: dict[str, list[NDArray[np.int64] | None]] = {}
        for name, role, slots in program.buffers:
            if name in arrays:
                self.buffers[name] = [np.array(array) for array in arrays[name]]
            elif workload is not None and role != "input":
                ranks = range(program.num_ranks)
                self.buffers[name] = [allocate_buffer(program, workload, name, rank) for rank in ranks]
            else:
                raise RunError(f"no array for {role} buffer '{name}'", hint="give one array for each rank")
            ranks = range(program.num_ranks)
            self._starts[name] = [workload.starts(name, rank) if workload else None for rank in ranks]
            self._check(name, slots)
            if role != "input":
                for array in self.buffers[name]:
                    poison(array)

    def read(self, op: Op, region: Region, rank: int | None = None) -> Array:
        """Return the slots of `region` on the op's rank (or `rank`), read-only: shape (num_slots, *slot shape), or flat
        if slots differ in size."""
        rank = op.rank if rank is None else rank
        slots: Array = self._array(op, region, rank)[self.places(region, rank)].view()
        slots.flags.writeable = False
        return slots

    def parts(self, op: Op, num_members: int) -> list[Array]:
        """Return the data that an all_to_all sends to each member: a region each, or even parts of the only region."""
        if len(op.reads) == num_members:
            return [self.read(op, region).copy() for region in op.reads]
        (region,) = op.reads
        array, starts = self._array(op, region, op.rank), self._starts[region.buffer][op.rank]
        slots = np.split(region.slots(), num_members)
        return [array[part if starts is None else elements(part, starts)] for part in slots]

    def write(self, op: Op, region: Region, values: Array, rank: int | None = None) -> None:
        rank = op.rank if rank is None else rank
        array, places = self._array(op, region, rank), self.places(region, rank)
        want = array[places].shape
        if values.shape != want:
            found = f"{list(values.shape)} for {region}, which is {list(want)}"
            raise RunError(f"{describe(op)}: data and destination differ in shape", where=op.line, found=found)
        array[places] = values

    def places(self, region: Region, rank: int) -> slice | NDArray[np.int64]:
        """Return the indices of the region's slots along axis 0 of the array."""
        return places(region, self._starts[region.buffer][rank])

    def _array(self, op: Op, region: Region, rank: int) -> Array:
        array = self.buffers[region.buffer][rank]
        last = region.offset + max(region.blocks - 1, 0) * region.stride + region.count
        starts = self._starts[region.buffer][rank]
        held = len(array) if starts is None else len(starts) - 1
        if min(region.offset, region.count, region.blocks, region.stride) < 0 or last > held:
            found = f"{region}, and rank {rank} holds {held} slots"
            raise RunError(f"{describe(op)} leaves its buffer", where=op.line, found=found)
        return array

    def _check(self, name: str, slots: tuple[int, ...]) -> None:
        found = [array.shape[0] if array.ndim else None for array in self.buffers[name]]
        starts = self._starts[name]
        want = [n if s is None else int(s[-1]) for n, s in zip(slots, starts, strict=True)]
        if found != want:
            what = "slots" if starts[0] is None else "elements"
            raise RunError(f"buffer '{name}' needs one array for each rank, of {want} {what}", found=str(found))


def describe(op: Op) -> str:
    return f"op {op.index} '{op.kind.name}' on rank {op.rank}"
