"""row: a row-parallel Linear: products of each rank's columns, added up over the ranks."""

from __future__ import annotations

from typing import Any, ClassVar

from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from dovetail.torch.linear.axes import merged, unmerged
from dovetail.torch.linear.products import linear_all_reduce, linear_reduce_scatter
from dovetail.torch.styles.layer import Layer, Left, awaited, on_axis


class RowLayer(Layer):
    """`RowwiseParallel` of a Linear."""

    desired_input: ClassVar[tuple[Placement, ...]] = (Shard(-1),)

    def overlapped(self, input: Any) -> Any:
        """Return the sum of the ranks' products, or this rank's part of it."""
        axes = input.dim()
        target = on_axis(self.style.output_layouts[0], axes)
        self._check(input, target)
        own = self._columns(input)
        weight, bias = self.parameters()
        shape = (*own.shape[:-1], weight.shape[0])
        if isinstance(target, Replicate):
            rows = own if axes <= 3 else own.flatten(0, -2)
            out = linear_all_reduce(rows, weight, bias, self.name)
            return self.delivered(out if axes <= 3 else out.view(shape), target, shape)
        if axes <= 3:
            out = linear_reduce_scatter(own, weight, bias, self.name, dim=target.dim)
        else:
            out = linear_reduce_scatter(merged(own, target.dim), weight, bias, self.name)
            out = unmerged(out, own.shape, target.dim).contiguous()
        return self.delivered(out, target, shape)

    def _check(self, input: Any, target: Placement) -> None:
        axes = input.dim()
        if axes < 2:
            raise Left("the input has one axis")
        if isinstance(target, Replicate):
            return
        if type(target) is not Shard or target.dim == axes - 1:
            raise Left(f"its output layout is {target}")
        if input.shape[target.dim] % self.ranks:
            raise Left(f"{input.shape[target.dim]} rows of its output are not shared evenly by {self.ranks} ranks")

    def _columns(self, input: Any) -> Any:
        """Return this rank's columns of the input."""
        own, placement = self.placed(input)
        if on_axis(placement, input.dim()) == Shard(input.dim() - 1):
            return own
        style = self.style
        given = style._prepare_input_fn(style.input_layouts, self.desired_input, self.module, (input,), self.mesh)
        if on_axis(given.placements[0], input.dim()) != Shard(input.dim() - 1):
            raise Left(f"its input is {given.placements[0]}")
        return awaited(given.to_local())
