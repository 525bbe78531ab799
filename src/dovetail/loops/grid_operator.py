"""grid_operator: GridOperator, the base class of the operators for stencils and pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dovetail.core import OperatorError, parse_count
from dovetail.ir import Schedule, Workload
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.operator import OfFields
from dovetail.loops.blocks import grid_of
from dovetail.loops.checks import check_bounds
from dovetail.loops.types import check_types

if TYPE_CHECKING:
    from dovetail.loops.nest import Nest


@dataclass(frozen=True)
class GridOperator(OfFields):
    """A nest on a grid, e.g. "512x512", for so many steps. Every rank has a block of each array."""

    by_size: ClassVar[bool] = False
    nest: ClassVar[Nest]

    grid: str
    steps: int = 1
    dtype: str = "float64"

    def __post_init__(self) -> None:
        parse_count(self.steps, "steps")
        if len(self.points_by_axis) != len(self.shape):
            axes = "x".join(map(str, self.shape))
            raise OperatorError(f"{self.name} needs a grid of {len(self.shape)} axes", found=self.grid, hint=axes)
        check_types(self.nest, self.dtypes)
        check_bounds(self.nest, self.sizes)

    @property
    def shape(self) -> Sequence[str | int]:
        """The nest's name, or number, of points along each axis."""
        raise NotImplementedError

    @property
    def written(self) -> Sequence[str]:
        """The arrays that a call returns."""
        raise NotImplementedError

    @property
    def points_by_axis(self) -> tuple[int, ...]:
        return grid_of(self.grid)

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each array."""
        return {name: array.dtype or self.dtype for name, array in self.nest.arrays.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The nest's sizes and parameters."""
        pairs = zip(self.shape, self.points_by_axis, strict=True)
        return {s: n for s, n in pairs if isinstance(s, str)} | dict.fromkeys(self.nest.parameters, self.steps)

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """A rank's block of each of the nest's arrays, in their order."""
        return [self.block_of(name, schedule, ranks, "") for name in self.nest.arrays]

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """A rank's block of each array that is written."""
        return [self.block_of(name, schedule, ranks, "_out") for name in self.written]

    def block_of(self, name: str, schedule: Schedule, ranks: int, suffix: str) -> ArraySpec:
        """Return the spec of an array of which each rank has a block, in the buffer of that name and `suffix`."""
        raise NotImplementedError

    def signed(self, workload: Workload) -> Workload:
        """Return a workload whose inputs, where they are drawn, have the signs that the nest can take."""
        return workload.unsigned() if self.nest.takes_roots else workload
