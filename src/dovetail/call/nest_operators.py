"""operators: the class of operators for a nest: of a stencil, or of a pipeline where iterations need one another."""

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
    """Return the class of operators for a nest: a stencil, or a pipeline where iterations need one another.

    It goes by the nest's name unless `name` is given. Raises OperatorError, with the reason, where the nest is neither.

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
                nest.dependences()  # where they are not uniform, that is the reason
            raise (no_stencil if nest.levels and "need one another" not in no_stencil.what else no_pipeline) from None


def nests_in(names: Mapping[str, Any]) -> dict[str, Nest]:
    """Return what of a file's names is a nest."""
    return {name: value for name, value in names.items() if isinstance(value, Nest)}
