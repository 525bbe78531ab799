"""grid_operator: GridOperator, the base class of the operators for stencils and pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.core import OperatorError, parse_count
from dovetail.ir import Schedule, Workload
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.operator import OfFields
from dovetail.loops.analysis.checks import check_bounds
from dovetail.loops.grid.blocks import grid_of, grid_text
from dovetail.loops.types import check_types

if TYPE_CHECKING:
    from dovetail.loops.nest import Nest


@dataclass(frozen=True)
class GridOperator(OfFields):
    """A nest on a grid for `steps` steps. Every rank has a block of each array.

    Parameters
    ----------
    grid : tuple of int
        Points along each axis. A string such as "512x512", or one number, is read as such a tuple.
    """

    by_size: ClassVar[bool] = False
    nest: ClassVar[Nest]

    grid: tuple[int, ...]
    steps: int = 1
    dtype: str = "float64"

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", grid_of(self.grid))
        parse_count(self.steps, "steps")
        if len(self.grid) != len(self.shape):
            axes = "x".join(map(str, self.shape))
            raise OperatorError(
                f"{self.name} needs a grid of {len(self.shape)} axes", found=grid_text(self.grid), hint=axes
            )
        check_types(self.nest, self.dtypes)
        check_bounds(self.nest, self.sizes)

    @property
    def shape(self) -> Sequence[str | int]:
        """The number of points along each axis: a name of the nest, or a number."""
        raise NotImplementedError

    @property
    def written(self) -> Sequence[str]:
        """The arrays that a call returns."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return a document; its grid is the text that the command line takes."""
        return {**super().to_json(), "grid": grid_text(self.grid)}

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each array."""
        return {name: array.dtype or self.dtype for name, array in self.nest.arrays.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The nest's sizes and parameters."""
        pairs = zip(self.shape, self.grid, strict=True)
        return {s: n for s, n in pairs if isinstance(s, str)} | dict.fromkeys(self.nest.parameters, self.steps)

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return a rank's block of each of the nest's arrays, in their order."""
        return [self.block_of(name, schedule, ranks, "") for name in self.nest.arrays]

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return a rank's block of each array that is written."""
        return [self.block_of(name, schedule, ranks, "_out") for name in self.written]

    def block_of(self, name: str, schedule: Schedule, ranks: int, suffix: str) -> ArraySpec:
        """Return the spec of an array of which each rank has a block, in the buffer of that name and `suffix`."""
        raise NotImplementedError

    @staticmethod
    def scaled(schedule: Schedule, name: str, most: float = inf) -> Iterator[Schedule]:
        """Yield the schedule with a parameter halved, and doubled, where that is within 1 to `most`."""
        for other in (schedule[name] // 2, schedule[name] * 2):
            if 1 <= other <= most:
                yield schedule.with_parameters(**{name: other})

    def signed(self, workload: Workload) -> Workload:
        """Return a workload whose random inputs are not negative if the nest takes square roots."""
        return workload.unsigned() if self.nest.takes_roots else workload
