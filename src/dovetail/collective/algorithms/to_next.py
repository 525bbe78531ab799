"""to_next: all-to-next: rank i sends its array to rank i + 1, as in a pipeline."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm
from dovetail.collective.algorithms.nodes import ranks_per_node


def direct_all_to_next(num_ranks: int, *, in_place: bool = False, **settings: Any) -> Algorithm:
    """Each rank sends its array to the next rank: 1 step."""
    p = Algorithm("direct_all_to_next", "all_to_next", num_ranks, in_place=in_place, **settings)
    for rank in reversed(range(num_ranks - 1)):
        p.chunk(rank, "input", 0).copy(rank + 1, "output", 0)
    return p


def all_to_next(num_ranks: int, *, nodes: int = 1, in_place: bool = False, **settings: Any) -> Algorithm:
    """Within a node as direct_all_to_next; between nodes, all ranks of a node send a piece, so that all NICs are used.

    The last rank of a node scatters its array within the node. Rank g sends its piece to rank g of the next node, whose
    first rank gathers the pieces (seed 002, section 7.4, figure 10). Faster for long arrays, slower for short ones.
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
