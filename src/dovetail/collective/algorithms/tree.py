"""tree: binomial trees: ⌈log2 R⌉ steps from or to a root."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.collective.algorithm import Algorithm
from dovetail.collective.algorithms.recursive import runs
from dovetail.collective.ref import Ref


def binomial_tree_broadcast(num_ranks: int, *, root: int = 0, in_place: bool = True, **settings: Any) -> Algorithm:
    """In every step, each rank that has the root's array sends it to a rank that does not have it yet."""
    p = Algorithm("binomial_tree_broadcast", "broadcast", num_ranks, root=root, in_place=in_place, **settings)
    own = p.chunk(root, "input", 0)
    _copy_down(own, num_ranks)
    own.copy(root, "output", 0)
    return p


def binomial_tree_reduce(num_ranks: int, *, root: int = 0, in_place: bool = False, **settings: Any) -> Algorithm:
    """In every step, half of the remaining ranks send their sums to the other half; partial sums are in scratch."""
    p = Algorithm("binomial_tree_reduce", "reduce", num_ranks, root=root, in_place=in_place, **settings)
    total = _add_up(p, root, "partial")
    total.copy(root, "output", 0)
    return p


def binomial_tree_all_reduce(num_ranks: int, *, in_place: bool = True, **settings: Any) -> Algorithm:
    """Reduce to rank 0, then broadcast: 2·⌈log2 R⌉ steps."""
    p = Algorithm("binomial_tree_all_reduce", "all_reduce", num_ranks, in_place=in_place, **settings)
    total = _add_up(p, 0, "output").copy(0, "output", 0)
    _copy_down(total, num_ranks)
    return p


def binomial_tree_all_gather(num_ranks: int, **settings: Any) -> Algorithm:
    """Gather to rank 0, then broadcast: 2·(R − 1) messages in all, the fewest possible; for short messages."""
    p = Algorithm("binomial_tree_all_gather", "all_gather", num_ranks, **settings)
    for rank in range(num_ranks):
        p.chunk(rank, "input", 0).copy(rank, "output", rank)
    for to, place, size in reversed(list(_edges(num_ranks))):
        p.chunk(place, "output", place, size).copy(to)
    for source, place, _ in _edges(num_ranks):
        p.chunk(source, "output", 0, num_ranks).copy(place)
    return p


def binomial_tree_reduce_scatter(num_ranks: int, **settings: Any) -> Algorithm:
    """Reduce to rank 0, then scatter: 2·(R − 1) messages in all; for short messages."""
    p = Algorithm("binomial_tree_reduce_scatter", "reduce_scatter", num_ranks, **settings)
    sums = [p.chunk(rank, "input", 0, num_ranks) for rank in range(num_ranks)]
    for to, place, _ in reversed(list(_edges(num_ranks))):
        sums[to] = sums[to].reduce(sums[place], "partial", 0)
    for source, place, size in _edges(num_ranks):
        buffer = "share" if source else sums[0].buffer
        p.chunk(source, buffer, place - source, size).copy(place, "share", 0)
    for rank in range(num_ranks):
        p.chunk(rank, "share" if rank else sums[0].buffer, 0).copy(rank, "output", 0)
    return p


def binomial_tree_gather(num_ranks: int, *, root: int = 0, **settings: Any) -> Algorithm:
    """Each rank forwards the data of its subtree as one message (two if its ranks wrap around past the last rank)."""
    p = Algorithm("binomial_tree_gather", "gather", num_ranks, root=root, **settings)
    for place in range(num_ranks):
        rank = (place + root) % num_ranks
        if place % 2 == 0 and place + 1 < num_ranks:
            p.chunk(rank, "input", 0).copy(rank, *(("subtree", 0) if place else ("output", root)))
    for to, place, size in reversed(list(_edges(num_ranks))):
        rank, buffer = (place + root) % num_ranks, "subtree" if size > 1 else "input"
        if to:
            p.chunk(rank, buffer, 0, size).copy((to + root) % num_ranks, "subtree", place - to)
            continue
        for start, count in runs(rank, size, num_ranks):
            p.chunk(rank, buffer, (start - rank) % num_ranks, count).copy(root, "output", start)
    if num_ranks == 1:
        p.chunk(0, "input", 0).copy(0, "output", 0)
    return p


def binomial_tree_scatter(num_ranks: int, *, root: int = 0, **settings: Any) -> Algorithm:
    """Each rank sends a subtree its data as one message (two if its ranks wrap around past the last rank)."""
    p = Algorithm("binomial_tree_scatter", "scatter", num_ranks, root=root, **settings)
    for source, place, size in _edges(num_ranks):
        rank, buffer = (place + root) % num_ranks, "subtree" if size > 1 else "output"
        if source:
            p.chunk((source + root) % num_ranks, "subtree", place - source, size).copy(rank, buffer, 0)
            continue
        for start, count in runs(rank, size, num_ranks):
            p.chunk(root, "input", start, count).copy(rank, buffer, (start - rank) % num_ranks)
    for place in range(2, num_ranks - 1, 2):
        rank = (place + root) % num_ranks
        p.chunk(rank, "subtree", 0).copy(rank, "output", 0)
    p.chunk(root, "input", root).copy(root, "output", 0)
    return p


def _copy_down(own: Ref, num_ranks: int) -> None:
    """Copy a chunk from one rank to the output of all ranks, down the tree."""
    have = {0: own}
    for source, place, _ in _edges(num_ranks):
        have[place] = have[source].copy((place + own.rank) % num_ranks, "output", 0)


def _add_up(p: Algorithm, root: int, buffer: str) -> Ref:
    """Add up all inputs in the root's output; return a Ref to the sum. Partial sums are in `buffer`."""
    sums = [p.chunk((place + root) % p.num_ranks, "input", 0) for place in range(p.num_ranks)]
    for to, place, _ in reversed(list(_edges(p.num_ranks))):
        sums[to] = sums[to].reduce(sums[place], buffer if to else "output", 0)
    return sums[0]


def _edges(num_ranks: int) -> Iterator[tuple[int, int, int]]:
    """Yield the tree's edges from the root down: (parent, child, number of ranks in the child's subtree).

    Ranks are counted from the root.

    >>> list(_edges(5))
    [(0, 4, 1), (0, 2, 2), (0, 1, 1), (2, 3, 1)]
    """
    distance = 1 << max(num_ranks - 1, 0).bit_length() >> 1
    while distance:
        for place in range(0, num_ranks - distance, 2 * distance):
            yield place, place + distance, min(distance, num_ranks - place - distance)
        distance //= 2
