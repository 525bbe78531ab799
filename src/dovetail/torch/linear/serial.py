"""serial: a call without overlap: the whole product and one collective, or no collective at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.torch.linear.kinds import COLUMNS, GATHER, GATHERS, SCATTER
from dovetail.torch.linear.scratch import LEAST, Scratch
from dovetail.torch.linear.wire import Wire

Made = tuple[Any, list[Any], Any]  # the gathered input, a result for each weight, and what `later` returns


def products(inputs: Sequence[Any], weights: Sequence[Any], first: Sequence[Any], out: Any = None) -> Any:
    """Return `Σ inputs[i] · weights[i] + first[0]`, in `out` if given."""
    if first[0] is None:
        out = inputs[0].mm(weights[0]) if out is None else torch.mm(inputs[0], weights[0], out=out)
    else:
        out = torch.addmm(first[0], inputs[0], weights[0], out=out)
    for place in range(1, len(inputs)):
        out.addmm_(inputs[place], weights[place])
    return out


def each_product(matrix: Any, weights: Sequence[Any], first: Sequence[Any]) -> list[Any]:
    """Return `matrix · weights[i] + first[i]` for each i."""
    return [
        matrix.mm(by) if row is None else torch.addmm(row, matrix, by) for by, row in zip(weights, first, strict=True)
    ]


class Serial:
    """One collective, waited for at once. `run`: as that of `Lanes`."""

    def __init__(self, kind: str, ranks: int) -> None:
        self.kind, self.ranks = kind, ranks

    def run(
        self,
        group: Any,
        wire: Wire,
        inputs: Sequence[Any],
        weights: Sequence[Any],
        first: Sequence[Any],
        later: Callable[[], Any] | None = None,
    ) -> Made:
        """Return the gathered input, the results, and what `later` returns."""
        if self.kind == GATHER:
            whole = inputs[0].new_empty((inputs[0].shape[0] * self.ranks, inputs[0].shape[1]))
            wire.begin(group, self.kind, whole, inputs[0]).wait()
            return whole, each_product(whole, weights, first), None
        if self.kind == COLUMNS:
            rows, depth = inputs[0].shape
            parts = inputs[0].new_empty((self.ranks, rows, depth))
            wire.begin(group, GATHER, parts.view(-1, depth), inputs[0]).wait()
            whole = parts.transpose(0, 1).reshape(rows, -1)
            return whole, each_product(whole, weights, first), None
        if self.kind == SCATTER:
            rows, columns = inputs[0].shape[0], weights[0].shape[1]
            scratch = Scratch(inputs[0].dtype, [(rows, columns)]) if rows * columns >= LEAST else None
            made = products(inputs, weights, first, scratch and scratch.matrices[0])
            out = made.new_empty((rows // self.ranks, columns))
            wire.begin(group, self.kind, out, made).wait()
            if scratch:
                scratch.give_back()
            return None, [out], None if later is None else later()
        out = products(inputs, weights, first)
        wire.begin(group, self.kind, out, out).wait()
        return None, [out], None if later is None else later()


class Alone:
    """No collective: the group has one rank, or there are no rows. `run`: as that of `Lanes`."""

    def __init__(self, kind: str, ranks: int) -> None:
        self.kind, self.ranks = kind, ranks

    def run(
        self,
        group: Any,
        wire: Wire,
        inputs: Sequence[Any],
        weights: Sequence[Any],
        first: Sequence[Any],
        later: Callable[[], Any] | None = None,
    ) -> Made:
        """Return a copy of the input, the results, and what `later` returns."""
        if self.kind in GATHERS:
            whole = inputs[0].repeat(1, self.ranks if self.kind == COLUMNS else 1)
            return whole, each_product(whole, weights, first), None
        return None, [products(inputs, weights, first)], None if later is None else later()
