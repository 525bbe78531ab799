"""Programs of matmul_all_reduce, by their tiles."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir import Program, Schedule
from dovetail.matmul import MatmulAllReduce


def program(
    operator: MatmulAllReduce, ranks: int, tiles: Sequence[int], by: str = "library", rows: int | None = None
) -> Program:
    """The operator with these rows in each tile, reduced `by` the library or messages of our own of so many rows."""
    return operator.program(Schedule.of("given", tiles=tuple(tiles), by=by, rows_per_message=rows), ranks)
