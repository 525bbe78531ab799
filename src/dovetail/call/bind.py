"""bind: an operator bound to a user's arrays and ranks, proved and compiled once, to be called again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.call.nests import NestOnRanks, nest_on_ranks
from dovetail.loops import Nest


def bind(nest: Nest, comm: Any, grid: Sequence[int], **asked: Any) -> NestOnRanks:
    """Bind a nest on a grid shared among the ranks of an mpi4py communicator, to be called again and again.

    What comes back has `block`, where this rank's part of the grid lies, and is called with this rank's blocks of
    the arrays (of a pipeline, `blocks` by name). Of either may be asked `steps`, `dtype`, `cut` (parts by axis) and
    `overlapped`. Of a stencil `depth` (steps between exchanges), `tile` (rows that take these steps together),
    `test` (steps between tests of convergence), and `shares` (rows of each part along the first axis, or
    "measured": by the speeds of the ranks). Of a pipeline `mapped` (the axis whose tiles are on one rank) and
    `grain` (positions of it that are a tile); over one axis `grain` and `depth` (steps of a band). What is not, is
    as `dovetail tune` found it on these ranks; else ghosts come before every sweep of a stencil, and a pipeline has
    eight tiles for each rank.
    """
    return nest_on_ranks(nest, comm, grid, **asked)
