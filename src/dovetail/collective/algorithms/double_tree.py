"""Double binary tree: two trees in which no rank is inside both, each with half of the data."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm


def double_tree_all_reduce(num_ranks: int, *, pieces: int = 4, in_place: bool = True, **settings: Any) -> Algorithm:
    """Up to the root and down again along two trees, `pieces` chunks one after another in each, so that they overlap.

    Logarithmic latency at full bandwidth: who forwards in one tree is a leaf of the other (Sanders, Speck, Träff 2009).
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
    """Edges (child, parent), children before their parents. Tree 1 is tree 0 mirrored, or, of odd size, turned by one.

    Rank 0 is the root of tree 0; rank r > 0, with lowest bit b, has parent r − b or, where that rank exists, the one
    of r − b and r + b whose lowest bit is 2·b.

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
