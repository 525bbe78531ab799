"""microbenchmarks: sweeps and row copies in isolation, of given numbers of rows, for measuring their cost."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir import Builder, Kind, Region
from dovetail.ir.proof.terms import each
from dovetail.stencil.storage import far_name, move_name, plane_name
from dovetail.stencil.sweeps import RowSweep, Stencil


def add_sweeps(
    stencil: Stencil, sweep: RowSweep, far: int, b: Builder, ranks: int, amounts: Sequence[int]
) -> dict[int, list[int]]:
    """Append, on every rank, one sweep of each number of rows in `amounts`; return the ops' rows by rank.

    All sweeps work on the same rows; if `far`, on consecutive ones among `far` rows, so that they come from memory.
    """
    name = far_name(sweep.name) if far else sweep.name
    lane, call = b.lane("compute", "compute"), b.kernel(name, each(len(sweep.operands)))
    shifts = [sum(operand.shift) for operand in sweep.operands]
    most, low = max(far, *amounts, 0), max(0, *(-shift for shift in shifts))
    for array, depth in stencil.depth.items():
        for plane in range(depth):
            b.buffer(plane_name(array, plane), "input", most + low + max(0, *shifts))
    found = dict[int, list[int]]()
    for rank in range(ranks):
        found[rank], at = [], 0
        for rows in amounts:
            at = at if far and at + rows <= most else 0
            reads, writes = _sampled(stencil, sweep, low + at, rows)
            found[rank].append(b.add(Kind.compute, rank, lane, call=call, reads=reads, writes=writes))
            at += rows
    return found


def add_moves(array: str, way: str, b: Builder, ranks: int, amounts: Sequence[int]) -> dict[int, list[int]]:
    """Append, for each of `amounts` (rows), a copy into a plane with margins ("enter"), or out of one ("leave")."""
    most, plane = max(amounts, default=0), plane_name(array, 0)
    there = f"{array}_out" if way == "leave" else array
    lane, call = b.lane("compute", "compute"), b.kernel(move_name(way, array), ("each",))
    b.buffer(plane, "input", most), b.buffer(there, "output" if way == "leave" else "input", most)
    source, target = (plane, there) if way == "leave" else (there, plane)
    return {
        rank: [
            b.add(Kind.compute, rank, lane, call=call, reads=[Region(source, 0, n)], writes=[Region(target, 0, n)])
            for n in amounts
        ]
        for rank in range(ranks)
    }


def _sampled(stencil: Stencil, sweep: RowSweep, low: int, rows: int) -> tuple[list[Region], list[Region]]:
    """Return the regions that a sweep of `rows` rows from `low` on reads and writes; it writes the last plane."""
    depth = stencil.depth
    reads = [
        Region(plane_name(o.array, (depth[o.array] - 1 - o.back) % depth[o.array]), low + sum(o.shift), rows)
        for o in sweep.operands
    ]
    return reads, [Region(plane_name(sweep.target, depth[sweep.target] - 1), low, rows)]
