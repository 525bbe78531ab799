"""hierarchical: all-reduce within nodes first, then between nodes."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm
from dovetail.collective.algorithms.nodes import ranks_per_node
from dovetail.collective.algorithms.ring import add_around, copy_around


def hierarchical_all_reduce(num_ranks: int, *, nodes: int = 1, in_place: bool = True, **settings: Any) -> Algorithm:
    """Reduce-scatter within each node, all-reduce between the nodes' g-th ranks, all-gather within each node.

    All three are rings. With N nodes of G ranks only 2·(N − 1) steps cross nodes, each with 1/G of the data (seed 002,
    section 7.1.3).
    """
    p = Algorithm("hierarchical_all_reduce", "all_reduce", num_ranks, chunks=num_ranks, in_place=in_place, **settings)
    size = ranks_per_node(num_ranks, nodes)
    shares = [(place * nodes, nodes) for place in range(size)]
    inside = [range(node * size, (node + 1) * size) for node in range(nodes)]
    for ring in inside:
        for share, total in zip(shares, add_around(p, ring, shares), strict=True):
            total.copy(total.rank, "output", share[0])
    for place, (first, count) in enumerate(shares):
        across = range(place, num_ranks, size)
        sums = add_around(p, across, [(first + i, 1) for i in range(count)], source="output")
        copy_around(p, across, sums)
    for ring in inside:
        copy_around(p, ring, [p.chunk(rank, "output", *share) for rank, share in zip(ring, shares, strict=True)])
    return p
