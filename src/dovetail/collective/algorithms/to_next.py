"""All-to-next: rank i's array goes to rank i + 1, as in a pipeline."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm
from dovetail.collective.algorithms.nodes import ranks_per_node


def direct_all_to_next(num_ranks: int, *, in_place: bool = False, **settings: Any) -> Algorithm:
    """Each rank sends its array to the next one."""
    p = Algorithm("direct_all_to_next", "all_to_next", num_ranks, in_place=in_place, **settings)
    for rank in reversed(range(num_ranks - 1)):
        p.chunk(rank, "input", 0).copy(rank + 1, "output", 0)
    return p


def all_to_next(num_ranks: int, *, nodes: int = 1, in_place: bool = False, **settings: Any) -> Algorithm:
    """As direct_all_to_next inside a node; all ranks of a node, each with its NIC, carry what leaves it.

    The last rank of a node scatters its array, every rank sends its piece to its like on the next node, and the first
    rank there gathers them (seed 002, section 7.4, figure 10). Better for long arrays, worse for short ones.
    """
    size = ranks_per_node(num_ranks, nodes)
    p = Algorithm("all_to_next", "all_to_next", num_ranks, chunks=size, in_place=in_place, **settings)
    for rank in reversed(range(num_ranks - 1)):
        whole = p.chunk(rank, "input", 0, size)
        if (rank + 1) % size:
            whole.copy(rank + 1, "output", 0)
            continue
        home = rank + 1 - size
        for place, piece in enumerate(whole.split(size)):
            out = piece.copy(home + place, "outbox", 0) if home + place != rank else piece
            if place:
                out = out.copy(rank + 1 + place, "inbox", 0)
            out.copy(rank + 1, "output", place)
    return p
