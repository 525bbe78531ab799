"""wishes: the class of wishes for a nest: of a stencil, or of a pipeline where iterations need one another."""

from __future__ import annotations

from dovetail.core import WishError
from dovetail.loops.nest import Nest, about_nest
from dovetail.loops.order import carries
from dovetail.loops.pipeline_wish import PipelineWish, pipeline_wish
from dovetail.loops.record import Loop
from dovetail.loops.wish import StencilWish, stencil_wish


def wish_of(nest: Nest, name: str = "") -> type[StencilWish | PipelineWish]:
    """By the nest's name unless another is given. WishError, with the reason, where it is neither.

    >>> from dovetail.loops.problems import jacobi2d, sync_p2p
    >>> [wish_of(each).families[1] for each in (jacobi2d, sync_p2p)]
    ['overlap', 'blocking']
    """
    return pipeline_of(nest, name) if _needs_order(nest) else stencil_wish(nest, name)


def pipeline_of(nest: Nest, name: str = "") -> type[PipelineWish]:
    """The class of wishes for a pipeline."""
    return pipeline_wish(nest, name, about_nest(nest))


def _needs_order(nest: Nest) -> bool:
    """Whether a loop over a grid carries something, or what a pipeline can and a stencil cannot is in the nest."""
    if nest.levels:
        return False
    try:
        stencil_wish(nest)
    except WishError:
        inner = (loop for statement in nest.statements for loop in statement.loops[-1:])
        return any(carries(nest, loop) for loop in inner) or isinstance(nest.body[0], Loop)
    return False
