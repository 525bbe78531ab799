"""column: a column-parallel Linear: each rank's rows of the weight times an input that is gathered, or replicated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate, Shard

from dovetail.torch.linear.axes import merged, unmerged
from dovetail.torch.linear.products import all_gather_linear, linear_of_replicated
from dovetail.torch.styles.late import source_of
from dovetail.torch.styles.layer import Layer, Left, on_axis
from dovetail.torch.styles.siblings import Siblings


class Part(NamedTuple):
    """This rank's rows of an input that is cut along `axis`; None: all of it."""

    rows: Any
    axis: int | None


class ColumnLayer(Layer):
    """`ColwiseParallel` of a Linear."""

    siblings: Siblings | None = None

    def join(self, siblings: Siblings) -> None:
        """Share gathers with these layers."""
        self.siblings = siblings
        siblings.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        """Return the layer of a copy of the module; copies made at once share gathers among themselves."""
        made = super().__deepcopy__(memo)
        if self.siblings is not None and isinstance(made, ColumnLayer):
            made.join(memo.setdefault(id(self.siblings), Siblings()))
        return made

    @property
    def takes(self) -> tuple[Any, ...]:
        """What input the layer takes: its width, dtype, and group."""
        return self.module.in_features, self.module.weight.dtype, self.name

    def overlapped(self, input: Any) -> Any:
        """Return this rank's columns of the output, for all rows."""
        part = self._part(input)
        if part.axis is None or self.siblings is None or torch.compiler.is_compiling():
            (out,) = results([self], part)
        else:
            out = self.siblings.result(self, input, part, results)
        return self.delivered(out, Shard(out.dim() - 1), (*out.shape[:-1], self.module.weight.shape[0]))

    def _part(self, input: Any) -> Part:
        if input.dim() < 2:
            raise Left("the input has one axis")
        last = input.dim() - 1
        source = source_of(input)
        own, placement = self.placed(input if source is None else source)
        placement = on_axis(placement, last + 1)
        if isinstance(placement, Replicate):
            return Part(own, None)
        if type(placement) is not Shard or placement.dim == last:
            raise Left(f"its input is {placement}")
        if isinstance(input, DTensor) and input.shape[placement.dim] % self.ranks:
            raise Left(f"{input.shape[placement.dim]} rows of its input are not shared evenly by {self.ranks} ranks")
        return Part(own, placement.dim)


def results(layers: Sequence[ColumnLayer], part: Part) -> list[Any]:
    """Return the result of each layer for the same input, which is gathered once. They are contiguous."""
    weights, biases = zip(*[each.parameters() for each in layers], strict=True)
    rows, axis, name = part.rows, part.axis, layers[0].name
    is_deep = rows.dim() > 3
    if axis is None:
        outs = linear_of_replicated(rows.flatten(0, -2) if is_deep else rows, weights, biases, name)
        return [each.view(*rows.shape[:-1], each.shape[-1]) for each in outs] if is_deep else outs
    if is_deep:
        outs = all_gather_linear(merged(rows, axis), weights, biases, name)
        outs = [unmerged(each, rows.shape, axis) for each in outs]
    else:
        outs = all_gather_linear(rows, weights, biases, name, dim=axis)
    return [each.contiguous() for each in outs]
