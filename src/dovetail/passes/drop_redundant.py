"""drop_redundant: drop dependencies that lane order and other dependencies imply."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from dovetail.ir import Program
from dovetail.passes.columns import Array, dep_columns, edges, first_of_run


def drop_redundant(program: Program) -> Program:
    """Remove dependencies that lane order or others imply. Rows must be in an order in which they can run.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program three ranks 1
    ... buffer x input 4
    ... lane a net
    ... lane b net
    ... lane c net
    ... rank 0 lane a
    ...   copy x[0:1] -> x[1:2]
    ... rank 0 lane b
    ...   copy x[1:2] -> x[2:3] after a.0
    ...   copy x[1:2] -> x[2:3] after a.0 b.0
    ... rank 0 lane c
    ...   copy x[2:3] -> x[1:2] after a.0 b.0 b.1
    ... ''')
    >>> print(to_text(drop_redundant(before)).split("lane c net")[1].strip())
    rank 0 lane a
      copy x[0:1] -> x[1:2]
    rank 0 lane b
      copy x[1:2] -> x[2:3] after a.0
      copy x[1:2] -> x[2:3]
    rank 0 lane c
      copy x[2:3] -> x[1:2] after b.1
    """
    waiting, awaited = edges(program)
    if np.any(awaited >= waiting):
        return program
    lanes = max(len(program.lanes), 1)
    queue = program.columns["rank"].astype(np.int64) * lanes + program.columns["lane"]
    apart = queue[waiting] != queue[awaited]
    waiting, awaited = waiting[apart], awaited[apart]
    order = np.lexsort((-awaited, queue[awaited], waiting))
    waiting, awaited = waiting[order], awaited[order]
    last = first_of_run(waiting) | first_of_run(queue[awaited])  # wait for the last op of each lane only
    waiting, awaited = waiting[last], awaited[last]
    order = np.lexsort((-awaited, waiting, queue[waiting] // lanes))
    waiting, awaited = waiting[order], awaited[order]
    needed = _needed(waiting, awaited, queue, lanes)
    deps = dep_columns(program.num_ops, waiting[needed], awaited[needed])
    return program.with_columns({**program.columns, **deps})


def _needed(waiting: Array, awaited: Array, queue: Array, lanes: int) -> Array:
    """Which dependencies no earlier one implies. They are sorted by rank, waiting op, and descending awaited op.

    A clock holds, for each lane of the rank, its last op that is known to have ended.
    """
    needed: list[bool] = []
    edges = zip(waiting.tolist(), queue[waiting].tolist(), awaited.tolist(), queue[awaited].tolist(), strict=True)
    none = np.full(lanes, -1)
    known: dict[int, tuple[list[int], list[Array]]] = {}  # lane -> its ops that wait, and their clocks
    rank, learner, clock = -1, -1, none
    for row, lane, earlier, other in edges:
        if lane // lanes != rank:
            rank, known = lane // lanes, {}
        if row != learner:
            rows, clocks = known.setdefault(lane, ([], []))
            learner, clock = row, (clocks[-1] if clocks else none).copy()
            rows.append(row)
            clocks.append(clock)
        needed.append(bool(clock[other % lanes] < earlier))
        if needed[-1]:
            rows, clocks = known.get(other, ([], []))
            at = bisect_right(rows, earlier) - 1
            if at >= 0:
                np.maximum(clock, clocks[at], out=clock)
            clock[other % lanes] = earlier
    return np.array(needed, bool)
