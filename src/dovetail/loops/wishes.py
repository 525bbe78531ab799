"""wishes: the class of wishes for a nest: of a stencil, or of a pipeline where iterations need one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.core import WishError
from dovetail.loops.wish import StencilWish, stencil_wish

if TYPE_CHECKING:
    from dovetail.loops.nest import Nest
    from dovetail.loops.pipeline_wish import PipelineWish


def wish_of(nest: Nest, name: str = "") -> type[StencilWish | PipelineWish]:
    """By the nest's name unless another is given. WishError, with the reason, where it is neither.

    >>> from dovetail.loops.problems import jacobi2d, sync_p2p
    >>> [wish_of(each).families[1] for each in (jacobi2d, sync_p2p)]
    ['overlap', 'blocking']
    """
    try:
        return stencil_wish(nest, name)
    except WishError as no_stencil:
        try:
            return pipeline_of(nest, name)
        except WishError as no_pipeline:
            if "is not the point of its loops" in no_pipeline.what:
                nest.dependences()  # where they are not uniform, that is the reason
            raise (no_stencil if nest.levels and "need one another" not in no_stencil.what else no_pipeline) from None


def pipeline_of(nest: Nest, name: str = "") -> type[PipelineWish]:
    """The class of wishes for a pipeline, of tiles, or over one axis of bands of steps."""
    from dovetail.loops.line import check_line
    from dovetail.loops.line_wish import LineWish
    from dovetail.loops.pipeline_wish import PipelineWish, pipeline_wish
    from dovetail.loops.pipelined import pipelined_of

    found = pipelined_of(nest)
    if len(found.shape) == 1:
        check_line(found)
    return pipeline_wish(LineWish if len(found.shape) == 1 else PipelineWish, nest, found, name, nest.about)
