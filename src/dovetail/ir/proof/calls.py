"""calls: match the ops of all ranks that together are one call of a library collective."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir.op_lists import OpLists
from dovetail.ir.program import Program
from dovetail.ir.proof.greedy import Greedy
from dovetail.ir.types import Kind

Ints = NDArray[np.int64]


def calls_of(program: Program) -> dict[int, Ints]:
    """Return, for each row of `collectives` that is called, an array of shape (calls, members): the rows of its ops.

    Members are in the order of the group. The k-th calls of all members belong together. Where a rank calls one
    collective from several lanes, the program's greedy run gives the order of its calls. Raises ProgramError if members
    call a collective a different number of times.
    """
    col = program.columns
    rows = np.flatnonzero(col["kind"] == Kind.collective)
    if not len(rows):
        return {}
    rows = rows[np.argsort(_turns(program, rows), kind="stable")]
    found = {}
    for call in np.unique(col["call"][rows]).tolist():
        mine = rows[col["call"][rows] == call]
        by_rank = [mine[col["rank"][mine] == rank] for rank in program.collectives[call].group]
        counts = [len(each) for each in by_rank]
        if len(set(counts)) > 1:
            kind, group = program.collectives[call]
            made = ", ".join(f"{count} on rank {rank}" for count, rank in zip(counts, group, strict=True))
            raise ProgramError(f"members of a {kind} call it a different number of times", found=made)
        found[call] = np.stack(by_rank, axis=1)
    return found


def _turns(program: Program, rows: Ints) -> Ints:
    """Return sort keys that put these ops in the order in which each rank runs them."""
    col = program.columns
    callers = np.stack([col["call"][rows], col["rank"][rows], col["lane"][rows]])
    lanes = np.unique(callers, axis=1)
    if np.unique(lanes[:2], axis=1).shape[1] == lanes.shape[1]:
        return rows
    place = np.zeros(program.num_ops, np.int64)
    order = Greedy(OpLists(program))().order
    place[order] = np.arange(len(order))
    return place[rows]
