"""scatter_all_gather: broadcast a long array by a scatter and an all-gather; the root sends less than two arrays."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm


def scatter_all_gather_broadcast(num_ranks: int, *, root: int = 0, in_place: bool = True, **settings: Any) -> Algorithm:
    """The root scatters parts, which then travel around a ring of all ranks: R steps.

    The root sends 2·(R − 1)/R arrays; in a tree it sends ⌈log2 R⌉ arrays. Source: Van de Geijn's algorithm (Thakur,
    Rabenseifner and Gropp 2005).
    """
    name = "scatter_all_gather_broadcast"
    p = Algorithm(name, "broadcast", num_ranks, chunks=num_ranks, root=root, in_place=in_place, **settings)
    p.chunk(root, "input", 0, num_ranks).copy(root, "output", 0)
    others = [rank for rank in range(num_ranks) if rank != root]
    for rank in others:
        p.chunk(root, "output", rank).copy(rank, "output", rank)
    for step in range(num_ranks - 1):
        for rank in others:
            before = (rank - 1) % num_ranks
            p.chunk(before, "output", (before - step) % num_ranks).copy(rank)
    return p
