"""plan: the styles of a plan of `parallelize_module`, each replaced by one that overlaps if there is one."""

from __future__ import annotations

from copy import copy
from typing import Any

from torch import nn
from torch.distributed.tensor import distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
)

from dovetail.core import OperatorError
from dovetail.torch.linear.agreement import check_backend
from dovetail.torch.linear.layers import note
from dovetail.torch.styles.column import ColumnLayer
from dovetail.torch.styles.late import LateInput
from dovetail.torch.styles.layer import Layer
from dovetail.torch.styles.row import RowLayer
from dovetail.torch.styles.siblings import Siblings

LAYERS: dict[type, type[Layer]] = {ColwiseParallel: ColumnLayer, RowwiseParallel: RowLayer}
Families = dict[tuple[str, str], list[Siblings]]  # by parent module and group


def wrapped(plan: Any) -> Any:
    """Return a plan with its styles replaced. Raises OperatorError if `plan` is none."""
    if isinstance(plan, ParallelStyle):
        return Overlapped(plan, "", {})
    if isinstance(plan, dict):
        return _named(plan, "")
    hint = "a ParallelStyle, or a dict of them by module names, as parallelize_module takes"
    raise OperatorError("overlapped takes a plan of parallelize_module", found=type(plan).__name__, hint=hint)


def _named(plan: dict[str, Any], prefix: str) -> dict[str, Any]:
    families: Families = {}
    made: dict[str, Any] = {}
    for key, style in plan.items():
        name = f"{prefix}{key}"
        if isinstance(style, dict):
            made[key] = _named(style, f"{name}.")
        elif isinstance(style, ParallelStyle):
            made[key] = Overlapped(style, name, families)
        else:
            raise OperatorError(f"the plan of '{name}' is no ParallelStyle", found=type(style).__name__)
    return made


class Overlapped(ParallelStyle):  # type: ignore[misc]
    """A style whose linear layers run by the operators of `dovetail.torch`.

    `families`: by parent module, the layers that may share a gather, one list item for each module that the style's
    name stands for.
    """

    def __init__(self, style: ParallelStyle, name: str, families: Families) -> None:
        self.style, self.name, self._families = style, name, families
        self._turn = 0

    def __repr__(self) -> str:
        return f"overlapped({self.style!r})"

    def _apply(self, module: nn.Module, mesh: Any) -> nn.Module:
        group = _group_of(mesh)
        self.style.src_data_rank = self.src_data_rank  # what parallelize_module gave
        kind = LAYERS.get(type(self.style))
        why = _why_not(self.style, module)
        if kind is not None and not why:
            distribute_module(module, mesh, self.style._partition_linear_fn)
            layer = kind(module, copy(self.style), mesh, group, self._title(module))
            if isinstance(layer, ColumnLayer):
                layer.join(self._siblings(group))
            module.forward = layer
            return module
        if isinstance(self.style, PrepareModuleInput | PrepareModuleInputOutput):
            LateInput.of(self.style, group)._apply(module, mesh)
        else:
            self.style._apply(module, mesh)
        if why:
            note(group, f"{self._title(module)}: left to PyTorch, because {why}")
        return module

    def _title(self, module: nn.Module) -> str:
        sizes = f" {module.in_features} × {module.out_features}" if isinstance(module, nn.Linear) else ""
        return f"{self.name or 'model'} ({type(self.style).__name__} of {type(module).__name__}{sizes})"

    def _siblings(self, group: Any) -> Siblings:
        """Return the layers of this layer's parent: the parents are counted by the modules that the name stands for."""
        family = self._families.setdefault((self.name.rpartition(".")[0], group.group_name), [])
        self._turn += 1
        while len(family) < self._turn:
            family.append(Siblings())
        return family[self._turn - 1]


def _why_not(style: ParallelStyle, module: nn.Module) -> str:
    """Return why a style's layer is left to PyTorch; empty if it is none that the operators could run."""
    if isinstance(style, tuple(LAYERS)) and type(style) not in LAYERS:
        return f"{type(style).__name__} is a style of its own"
    if type(style) not in LAYERS:
        return ""
    if not isinstance(module, nn.Linear):
        return f"{type(module).__name__} is no Linear"
    if type(module).forward is not nn.Linear.forward or "forward" in vars(module):
        return "its forward is not that of Linear"
    return ""


def _group_of(mesh: Any) -> Any:
    """Return the group of a mesh. Raises OperatorError unless it is one of CPU ranks with backend "dovetail"."""
    if mesh.device_type != "cpu" or mesh.ndim != 1:
        found = f"a mesh of {mesh.ndim} dimensions on {mesh.device_type}"
        raise OperatorError("overlapped plans run on a mesh of one dimension, of CPUs", found=found, hint='mesh["tp"]')
    group = mesh.get_group()
    check_backend(group)
    return group
