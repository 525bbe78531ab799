"""across: steps of one rank whose tiles are columns of the products: each reads a part of the weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.ir import Program
from dovetail.torch.linear.kinds import SCATTER
from dovetail.torch.linear.lanes import BEGIN, LATER, PRODUCT, WAIT, Lanes
from dovetail.torch.linear.scratch import Scratch
from dovetail.torch.linear.serial import Made
from dovetail.torch.linear.wire import Wire, advance


class AcrossLanes(Lanes):
    """As `Lanes`, for the reductions `C = reduce(Σ_i A_i · B_i)`. A tile is a few columns of B_i, and so of C.

    A product reads few columns of the weight faster than many times the whole weight for few rows. The tile is
    contiguous, as its collective wants it, and its result is copied into C.
    """

    across = True

    def __init__(self, program: Program, rank: int, kind: str, rows: int) -> None:
        super().__init__(program, rank, kind)
        self.parts = program.num_ranks if kind == SCATTER else 1  # in a product: the parts of all ranks
        lengths = [step.rows for step in self.steps if step.what == PRODUCT]
        assert len(lengths) == sum(step.what == BEGIN for step in self.steps), "a tile is one product"
        self.scale = rows / sum(lengths)
        self.columns = tuple(self._columns(lengths))

    def _columns(self, lengths: Sequence[int]) -> list[slice]:
        ends = [sum(lengths[: place + 1]) // self.parts for place in range(len(lengths))]
        return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def run(
        self,
        group: Any,
        wire: Wire,
        inputs: Sequence[Any],
        weights: Sequence[Any],
        first: Sequence[Any],
        later: Callable[[], Any] | None = None,
    ) -> Made:
        """Return None, the result, and what `later` returns."""
        rows, width = inputs[0].shape[0], weights[0].shape[1]
        shapes = [(rows, width), (rows // self.parts, width)][: 1 + (self.kind == SCATTER)]
        scratch = Scratch(inputs[0].dtype, shapes)
        products, results = scratch.matrices[0].view(-1), scratch.matrices[-1].view(-1)
        out = inputs[0].new_empty(shapes[-1])
        works: list[Any] = []
        found, made = None, 0
        for what, number, *_ in self.steps:
            if what == PRODUCT:
                multiply(_tile(products, rows, self.columns[made]), self.columns[made], inputs, weights, first[0])
                made += 1
            elif what == BEGIN:
                if works:
                    advance(works[-1])
                columns = self.columns[len(works)]
                pair = _tile(results, len(out), columns), _tile(products, rows, columns)
                works.append(wire.begin(group, self.kind, *pair))
            elif what == WAIT:
                works[number].wait()
                out[:, self.columns[number]] = _tile(results, len(out), self.columns[number])
            elif what == LATER and later is not None:
                found = later()
        scratch.give_back()
        return None, [out], found


def _tile(flat: Any, rows: int, columns: slice) -> Any:
    """Return the memory of these columns of a matrix with `rows` rows, as a matrix without gaps."""
    return flat[rows * columns.start : rows * columns.stop].view(rows, columns.stop - columns.start)


def multiply(out: Any, columns: slice, inputs: Sequence[Any], weights: Sequence[Any], row: Any) -> None:
    """Write `Σ_i inputs[i] · weights[i][:, columns] + row[columns]` to `out`."""
    by = weights[0][:, columns]
    if row is None:
        torch.mm(inputs[0], by, out=out)
    else:
        torch.addmm(row[columns], inputs[0], by, out=out)
    for other, weight in zip(inputs[1:], weights[1:], strict=True):
        torch.addmm(out, other, weight[:, columns], out=out)
