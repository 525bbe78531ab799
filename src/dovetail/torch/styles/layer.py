"""layer: the forward pass of a linear layer that a style of `parallelize_module` has cut over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard
from torch.nn.functional import linear

from dovetail.torch.linear.layers import note
from dovetail.torch.styles.private import AsyncCollectiveTensor


class Left(Exception):
    """A call that is left to PyTorch, and why."""


class Layer:
    """A module's forward. Derived classes compute it by an operator, or raise Left before data move.

    `style`: holds the layouts of inputs and outputs. `title`: the layer's name for `explain`.
    """

    desired_input: ClassVar[tuple[Placement, ...]] = (Replicate(),)

    def __init__(self, module: nn.Module, style: Any, mesh: Any, group: Any, title: str) -> None:
        self.module, self.style, self.mesh, self.title = module, style, mesh, title
        self.group, self.name, self.ranks = group, group.group_name, group.size()
        self._said: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        """Return the layer of the copy of its module that is being made; the mesh is the same."""
        return type(self)(memo[id(self.module)], self.style, self.mesh, self.group, self.title)

    def __call__(self, input: Any) -> Any:
        """Return what the module returns."""
        try:
            return self.overlapped(input)
        except Left as left:
            if not torch.compiler.is_compiling():
                self._say(f"{self.title}: calls are left to PyTorch, because {left}")
        return self.by_torch(input)

    def overlapped(self, input: Any) -> Any:
        """Return the output by an operator. Raises Left if none serves the call."""
        raise NotImplementedError

    def by_torch(self, input: Any) -> Any:
        """Return the output as the style alone computes it."""
        style = self.style
        given = style._prepare_input_fn(style.input_layouts, self.desired_input, self.module, (input,), self.mesh)
        out = linear(given, self.module.weight, self.module.bias)
        return style._prepare_output_fn(style.output_layouts, style.use_local_output, self.module, out, self.mesh)

    def placed(self, input: Any) -> tuple[Any, Placement]:
        """Return this rank's tensor and its placement. Raises Left if the input is on another mesh."""
        if not isinstance(input, DTensor):
            return awaited(input), self.style.input_layouts[0]
        if input.device_mesh != self.mesh:
            raise Left("the input is on another mesh")
        return awaited(input.to_local()), input.placements[0]

    def parameters(self) -> tuple[Any, Any]:
        """Return this rank's weight and bias."""
        bias = self.module.bias
        return self.module.weight.to_local(), None if bias is None else bias.to_local()

    def delivered(self, out: Any, placement: Placement, shape: Sequence[int]) -> Any:
        """Return the output as the style lays it out: this rank's tensor or a DTensor. `shape`: of all ranks'."""
        style = self.style
        axes = len(shape)
        is_there = on_axis(style.output_layouts[0], axes) == placement
        if is_there and style.use_local_output:
            return out
        strides = torch.empty(tuple(shape), device="meta").stride()
        made = DTensor.from_local(
            out, self.mesh, (placement,), run_check=False, shape=torch.Size(shape), stride=strides
        )
        layouts = made.placements if is_there else style.output_layouts
        return style._prepare_output_fn(layouts, style.use_local_output, self.module, made, self.mesh)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            note(self.group, text)


def awaited(tensor: Any) -> Any:
    """Return the tensor once its collective is done."""
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def on_axis(placement: Placement, axes: int) -> Placement:
    """Return a placement whose axis is counted from the first."""
    return Shard(placement.dim % axes) if type(placement) is Shard else placement
