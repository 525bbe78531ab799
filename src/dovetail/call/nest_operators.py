"""nest_operators: which kind of operator a loop nest is: a stencil, or a pipeline if iterations need one another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dovetail.core import OperatorError
from dovetail.loops import Nest
from dovetail.pipeline.operator import PipelineOperator
from dovetail.pipeline.operators import pipeline_of
from dovetail.stencil.operator import StencilOperator, stencil_operator


@lru_cache(maxsize=256)
def operator_of(nest: Nest, name: str = "") -> type[StencilOperator | PipelineOperator]:
    """Return the class of operators for a nest: stencils, or pipelines if iterations of a step need one another.

    The class is called `name`; default: the nest's name. Raises OperatorError, with the reason, for any other nest.

    >>> from dovetail.loops.problems import jacobi2d, sync_p2p
    >>> [operator_of(each).families[1] for each in (jacobi2d, sync_p2p)]
    ['overlap', 'blocking']
    """
    try:
        return stencil_operator(nest, name)
    except OperatorError as no_stencil:
        try:
            return pipeline_of(nest, name)
        except OperatorError as no_pipeline:
            if "is not the point of its loops" in no_pipeline.what:
                nest.dependences()  # raises if dependences are not uniform, which is the better reason
            raise (no_stencil if nest.levels and "need one another" not in no_stencil.what else no_pipeline) from None


def nests_in(names: Mapping[str, Any]) -> dict[str, Nest]:
    """Return those of a file's global names that are nests."""
    return {name: value for name, value in names.items() if isinstance(value, Nest)}
