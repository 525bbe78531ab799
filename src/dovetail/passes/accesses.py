"""accesses: find the ops that read and write each slot, in the order of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.ir import Kind, Program
from dovetail.passes.columns import BLOCKS, BUFFER, COUNT, OFFSET, STRIDE, Array, OpColumns, first_of_run, spread

READ, WRITE = 1, 2


class Accesses(NamedTuple):
    """The accesses of all ops, sorted by place, then row: one entry for each op and place that it touches.

    A place is a slot of a buffer on a rank, or several consecutive slots of which every op touches all or none.
    `mode`: READ, WRITE or both. `first`: whether the entry is the first one of its place.
    """

    place: Array
    row: Array
    mode: Array
    buffer: Array
    first: Array

    def same(self, one: Array, other: Array) -> Array:
        """Return whether entries `one` and `other` (which may be beyond the end) have the same place."""
        inside = np.minimum(other, len(self.row) - 1)
        result: Array = (inside == other) & (self.place[inside] == self.place[one])
        return result

    def unread_from(self, program: Program, entry: Array) -> Array:
        """Return whether no op reads a slot after `entry - 1`: `entry` overwrites it, or it is unused scratch."""
        scratch = np.array([buffer.role == "scratch" for buffer in program.buffers])
        inside = np.minimum(entry, len(self.row) - 1)
        result: Array = np.where(
            self.same(entry - 1, entry), self.mode[inside] == WRITE, scratch[self.buffer[entry - 1]]
        )
        return result


def accesses(program: Program, rows: OpColumns | None = None) -> Accesses:
    """Return every access of every op."""
    rows = rows or OpColumns.of(program)
    sides = [np.flatnonzero(side[:, BUFFER] >= 0) for side in (rows.read, rows.write)]
    row, region = np.concatenate(sides), np.concatenate([rows.read[sides[0]], rows.write[sides[1]]])
    is_write = np.repeat([False, True], [len(side) for side in sides])
    mode = np.where(is_write, WRITE, READ)
    mode[is_write & (rows.op["kind"][row] == Kind.reduce)] |= READ
    base = _coarsen(program, region, rows.op["rank"][row])
    each = region[:, COUNT] * region[:, BLOCKS]
    owner, within = np.repeat(np.arange(len(row)), each), spread(each)
    if bool(np.any(region[:, BLOCKS] != 1)):
        block, within = np.divmod(within, region[owner, COUNT])
        within += block * region[owner, STRIDE]
    return _merged(base[owner] + within, row[owner], mode[owner], region[owner, BUFFER], program.num_ops)


def _coarsen(program: Program, region: Array, rank: Array) -> Array:
    """Divide each buffer's regions by the greatest common divisor of their numbers; return their first places."""
    buffer = region[:, BUFFER]
    region[region[:, BLOCKS] <= 1, STRIDE] = 0
    room = np.zeros((len(program.buffers), program.num_ranks), np.int64)
    for number, entry in enumerate(program.buffers):
        mine = buffer == number
        numbers = region[mine, OFFSET : STRIDE + 1]
        grain = max(int(np.gcd.reduce(numbers, axis=None)), 1)
        if grain > 1:
            region[mine, OFFSET : STRIDE + 1] = numbers // grain
        room[number] = np.array(entry.slots, np.int64) // grain + 1
    start = np.concatenate([[0], np.cumsum(room.ravel())])
    base: Array = start[buffer * program.num_ranks + rank] + region[:, OFFSET]
    return base


def _merged(place: Array, row: Array, mode: Array, buffer: Array, num_ops: int) -> Accesses:
    order = np.argsort(place * num_ops + row)
    place, row = place[order], row[order]
    first = np.flatnonzero(first_of_run(place) | first_of_run(row))
    mode = np.bitwise_or.reduceat(mode[order], first) if len(first) else mode
    return Accesses(place[first], row[first], mode, buffer[order][first], first_of_run(place[first]))
