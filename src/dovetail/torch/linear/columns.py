"""columns: steps of one rank that gather columns of a matrix, and add up the products by each rank's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from dovetail.ir import Op, Program
from dovetail.torch.linear.kinds import COLUMNS, GATHER
from dovetail.torch.linear.lanes import BEGIN, COPY, PRODUCT, WAIT, Lanes, Step
from dovetail.torch.linear.serial import Made
from dovetail.torch.linear.wire import HALVES, Wire


class Column(NamedTuple):
    """Rows of the columns that rank `source` has, of the gathered matrix or of a weight's rows that multiply them."""

    source: int
    start: int = 0
    rows: int = 0


class ColumnLanes(Lanes):
    """As `Lanes`, for `C = Σ_q A_q · B[q]`: A_q (m, k) are the columns of rank q, B[q] (k, n) a part of the weight.

    In half types each product is rounded, and they are added up in float32.
    """

    def __init__(self, program: Program, rank: int) -> None:
        self.rank = rank
        super().__init__(program, rank, COLUMNS)

    def run(
        self,
        group: Any,
        wire: Wire,
        inputs: Sequence[Any],
        weights: Sequence[Any],
        first: Sequence[Any],
        later: Callable[[], Any] | None = None,
    ) -> Made:
        """Return the gathered input if it is wanted, and a result for each weight."""
        (own,) = inputs
        rows, depth = own.shape
        buffers: dict[str, Any] = {"A": own}
        for name, count in self.makes:
            width = depth if name[0] in "Gg" else weights[int(name[1:] or 0)].shape[1]
            is_wide = name[0] == "C" and own.dtype in HALVES
            buffers[name] = own.new_empty((count, width), dtype=torch.float32 if is_wide else None)
        whole: Any = buffers["gathered"].view(rows, -1) if "gathered" in buffers else None
        works: list[Any] = []
        for what, number, reads, writes, _ in self.steps:
            if what == PRODUCT:
                part, (source, start, count) = reads[0].of(buffers), reads[1]
                by = weights[number][source * depth : (source + 1) * depth]
                out = buffers[f"C{number}"][start : start + count]
                _add_product(out, part, by, is_first=source == self.rank)
            elif what == BEGIN:
                works.append(wire.begin(group, GATHER, writes.of(buffers), reads.of(buffers)))
            elif what == WAIT:
                works[number].wait()
            elif what == COPY:
                source, start, count = writes
                whole[start : start + count, source * depth : (source + 1) * depth] = reads.of(buffers)
        return whole, [buffers[name].to(own.dtype) for name in self.results], None

    def _product(self, op: Op) -> Step:
        read, by, write = op.reads[0], op.reads[1], op.writes[0]
        column = Column(by.offset, write.offset, write.count)
        return Step(PRODUCT, int(by.buffer[1:]), (self._part(read), column), None, read.count)

    def _copy(self, op: Op) -> Step:
        read, write = op.reads[0], op.writes[0]
        first, source = divmod(write.offset, write.stride)
        return Step(COPY, 0, self._part(read), Column(source, first, write.blocks), read.count)


def _add_product(out: Any, part: Any, by: Any, *, is_first: bool) -> None:
    """Add `part · by` to `out`, or write it there if it is the first; `out` may have a wider dtype."""
    if out.dtype == part.dtype:
        torch.mm(part, by, out=out) if is_first else out.addmm_(part, by)
    elif is_first:
        out.copy_(part.mm(by))
    else:
        out.add_(part.mm(by))
