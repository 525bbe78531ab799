"""double_tree: all-reduce on two binary trees, each with half of the data; no rank is an inner node of both."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm


def double_tree_all_reduce(num_ranks: int, *, pieces: int = 4, in_place: bool = True, **settings: Any) -> Algorithm:
    """Reduce to the root of each of two trees, then broadcast, pipelined in `pieces` chunks per tree.

    Logarithmic latency at full bandwidth: inner ranks of one tree are leaves of the other (Sanders, Speck, Träff 2009).
    """
    p = Algorithm("double_tree_all_reduce", "all_reduce", num_ranks, chunks=2 * pieces, in_place=in_place, **settings)
    trees = [_edges_up(num_ranks, tree) for tree in (0, 1)]
    for piece in range(pieces):
        for tree, edges in enumerate(trees):
            index = 2 * piece + tree
            sums = [p.chunk(rank, "input", index) for rank in range(num_ranks)]
            for child, parent in edges:
                sums[parent] = sums[parent].reduce(sums[child], "output", index, ch=tree)
            root = edges[-1][1] if edges else 0
            sums[root].copy(root, "output", index)
            for child, parent in reversed(edges):
                p.chunk(parent, "output", index).copy(child, ch=tree)
    return p


def _edges_up(num_ranks: int, tree: int) -> list[tuple[int, int]]:
    """Return the edges (child, parent), children before their parents.

    Rank 0 is the root of tree 0. If rank r > 0 has lowest bit b, its parent is the one of r − b and r + b whose lowest
    bit is 2·b; if that rank does not exist, r − b. Tree 1 is tree 0 with rank r replaced by R − 1 − r (R even), or by
    (r + 1) mod R (R odd).

    >>> _edges_up(4, 0), _edges_up(4, 1)
    ([(1, 2), (3, 2), (2, 0)], [(2, 1), (0, 1), (1, 3)])
    """
    edges = []
    for rank in sorted(range(1, num_ranks), key=lambda rank: (rank & -rank, rank)):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        edges.append((rank, parent if parent < num_ranks else rank ^ bit))
    if tree == 0:
        return edges
    turned = [(num_ranks - 1 - r if num_ranks % 2 == 0 else (r + 1) % num_ranks) for r in range(num_ranks)]
    return [(turned[child], turned[parent]) for child, parent in edges]
