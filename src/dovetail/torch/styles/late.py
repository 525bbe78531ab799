"""late: inputs of modules that are gathered when something reads them; layers that gather do not."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import PrepareModuleInput
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.utils._pytree import tree_map_only

from dovetail.torch.linear.layers import note
from dovetail.torch.styles import private


class LateGather(torch.Tensor):  # type: ignore[misc]
    """A tensor that is gathered from the ranks' parts by the first operator that reads it; all ranks call it."""

    __torch_function__ = private.plain_torch_function

    @staticmethod
    def __new__(cls, part: Any, axis: int, group: Any) -> Any:
        shape = list(part.shape)
        shape[axis] *= group.size()
        return private.empty_shell(cls, shape, part)

    def __init__(self, part: Any, axis: int, group: Any) -> None:
        self.part, self.axis, self.group = part, axis, group
        self.whole: Any = None

    def gathered(self) -> Any:
        """Return the whole tensor."""
        if self.whole is None:
            self.whole = private.all_gather_tensor(self.part.contiguous(), self.axis, self.group).wait()
        return self.whole

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(cls, LateGather.gathered, (args, kwargs or {}))
        return func(*args, **kwargs)


class Later(torch.autograd.Function):  # type: ignore[misc]
    """A replicated DTensor of one that is cut along an axis, gathered late."""

    @staticmethod
    def forward(ctx: Any, source: Any) -> Any:
        ctx.placements = source.placements
        late = LateGather(source._local_tensor, source.placements[0].dim, source.device_mesh.get_group())
        return private.replicated(late, source)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.redistribute(placements=ctx.placements)


class LateInput(PrepareModuleInput):  # type: ignore[misc]
    """`PrepareModuleInput` that gathers late."""

    group: Any = None
    _said: str = ""

    @classmethod
    def of(cls, style: Any, group: Any) -> Any:
        """Return a style like `style` that gathers late; of a subclass with its own rules, that style."""
        made = copy(style)
        if hasattr(made, "prepare_module_input"):
            made.prepare_module_input = cls.of(made.prepare_module_input, group)
        elif type(made) is PrepareModuleInput:
            made.__class__, made.group = cls, group
        return made

    def _prepare_input_arg(self, input: Any, mesh: Any, input_layout: Any, desired_layout: Any) -> Any:
        is_gathered = type(input_layout) is Shard and isinstance(desired_layout, Replicate)
        if not is_gathered or torch.compiler.is_compiling():
            return super()._prepare_input_arg(input, mesh, input_layout, desired_layout)
        given = input
        if isinstance(input, torch.Tensor) and not isinstance(input, DTensor):
            given = DTensor.from_local(input, mesh, (input_layout,), run_check=False)
        why = self._why_not(given)
        if why:
            if why != self._said:
                self._said = why
                note(self.group, f"an input of PrepareModuleInput: gathered by PyTorch, because {why}")
            return super()._prepare_input_arg(given, mesh, input_layout, desired_layout)
        late = Later.apply(given)
        late._dovetail_source = given
        return late

    def _why_not(self, given: Any) -> str:
        if self.use_local_output:
            return "use_local_output=True gives the module a whole tensor"
        placement: Any = given.placements[0] if isinstance(given, DTensor) else None
        if type(placement) is not Shard:
            return f"it is {placement}"
        ranks = given.device_mesh.size()
        if given.shape[placement.dim] % ranks:
            return f"{given.shape[placement.dim]} rows are not shared evenly by {ranks} ranks"
        return ""


def source_of(input: Any) -> Any:
    """Return the cut tensor that an input would be gathered from, or None."""
    return getattr(input, "_dovetail_source", None)
