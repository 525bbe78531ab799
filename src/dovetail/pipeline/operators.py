"""operators: choose the operator class of a nest whose iterations depend on one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.pipeline.band_operator import BandOperator
from dovetail.pipeline.bands import check_line
from dovetail.pipeline.operator import PipelineOperator, pipeline_operator
from dovetail.pipeline.sweeps import pipelined_of

if TYPE_CHECKING:
    from dovetail.loops.nest import Nest


def pipeline_of(nest: Nest, name: str = "") -> type[PipelineOperator]:
    """Return the class of operators for a pipeline: in tiles, or, over one axis, in bands of steps.

    Its name is the nest's unless `name` is given. Raises OperatorError if the nest is no pipeline.
    """
    found = pipelined_of(nest)
    if len(found.shape) == 1:
        check_line(found)
    return pipeline_operator(BandOperator if len(found.shape) == 1 else PipelineOperator, nest, found, name, nest.about)
