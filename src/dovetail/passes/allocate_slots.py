"""allocate_slots: pack all scratch buffers into one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.ir import Buffer, Program
from dovetail.passes.columns import BLOCKS, BUFFER, COUNT, OFFSET, STRIDE, Array, OpColumns, edges

NAME = "scratch"


def allocate_slots(program: Program) -> Program:
    """Return the program with one buffer `scratch` that holds, without gaps, all scratch slots that an op uses.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program pass ranks 1
    ... buffer x input 1
    ... buffer near scratch 9
    ... buffer far scratch 4
    ... lane net net
    ... rank 0 lane net
    ...   copy x[0:1] -> near[8:9]
    ...   copy near[8:9] -> far[2:3]
    ... ''')
    >>> print(to_text(allocate_slots(before)), end="")
    program pass ranks 1
    buffer x input 1
    buffer scratch scratch 2
    lane net net
    rank 0 lane net
      copy x[0:1] -> scratch[0:1]
      copy scratch[0:1] -> scratch[1:2]
    """
    is_scratch = np.array([buffer.role == "scratch" for buffer in program.buffers])
    if not is_scratch.any():
        return program
    rows = OpColumns.of(program)
    rank = rows.op["rank"].astype(np.int64)
    slots = np.array([b.slots if b.role == "scratch" else (0,) * program.num_ranks for b in program.buffers])
    start = np.concatenate([[0], np.cumsum(slots.T.ravel())])  # first slot of each buffer on each rank, by rank
    sides = [
        (side, np.flatnonzero(is_scratch[side[:, BUFFER]] & (side[:, BUFFER] >= 0))) for side in (rows.read, rows.write)
    ]
    bounds = np.zeros(start[-1] + 1, np.int64)
    for side, mine in sides:
        first = start[rank[mine] * len(slots) + side[mine, BUFFER]] + side[mine, OFFSET]
        side[mine, OFFSET] = first
        np.add.at(bounds, first, 1)
        np.add.at(bounds, first + _span(side[mine]), -1)
    place = np.concatenate([[0], np.cumsum(np.cumsum(bounds[:-1]) > 0)])  # index of each slot among the used ones
    ends = place[start[:: len(slots)]]
    kept = [buffer for buffer in program.buffers if buffer.role != "scratch"]
    for side, mine in sides:
        side[mine, OFFSET] = place[side[mine, OFFSET]] - ends[rank[mine]]
    number = np.where(is_scratch, len(kept), np.cumsum(~is_scratch) - 1)
    for side, _ in sides:
        side[:, BUFFER] = np.where(side[:, BUFFER] >= 0, number[side[:, BUFFER]], -1)
    sizes = tuple(np.diff(ends).tolist())
    buffers = (*kept, Buffer(NAME, "scratch", sizes)) if any(sizes) else tuple(kept)
    return rows.into(replace(program, buffers=buffers), *edges(program))


def _span(region: Array) -> Array:
    """The number of slots from the first to the last one of each region, gaps included."""
    span: Array = region[:, COUNT] + region[:, STRIDE] * np.maximum(region[:, BLOCKS] - 1, 0)
    return span
