"""recursive: exchanges over distances that double or halve: a logarithmic number of steps, for any number of ranks.

With 2^k ranks, partners exchange. Otherwise each step shifts chunks around the circle of ranks (as Bruck's all_gather
does), or each rank beyond 2^k first passes its data to a neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.collective.algorithm import Algorithm


def recursive_halving_doubling_all_reduce(num_ranks: int, *, in_place: bool = True, **settings: Any) -> Algorithm:
    """Reduce-scatter by recursive halving, then all-gather by recursive doubling (Rabenseifner).

    2·⌈log2 R⌉ steps; bandwidth-optimal.
    """
    name = "recursive_halving_doubling_all_reduce"
    p = Algorithm(name, "all_reduce", num_ranks, chunks=num_ranks, in_place=in_place, **settings)
    have = [p.chunk(rank, "input", 0, num_ranks) for rank in range(num_ranks)]
    if num_ranks & (num_ranks - 1):
        for rank in range(num_ranks):
            have[rank].copy(rank, "output", 0)
        _add_round(p, "output")
        _copy_round(p)
        return p
    for distance in reversed(list(_doubling(num_ranks))):
        halves = [chunk.split(2) for chunk in have]
        for rank in range(num_ranks):
            half = 1 if rank & distance else 0
            mine, other = halves[rank][half], halves[rank ^ distance][half]
            have[rank] = mine.reduce(other, "output", mine.index)
    have = [chunk.copy(rank, "output", chunk.index) for rank, chunk in enumerate(have)]
    for distance in _doubling(num_ranks):
        got = [have[rank ^ distance].copy(rank) for rank in range(num_ranks)]
        have = [chunk.group(other) for chunk, other in zip(have, got, strict=True)]
    return p


def recursive_doubling_all_reduce(num_ranks: int, *, in_place: bool = True, **settings: Any) -> Algorithm:
    """Partners exchange and add their whole sums: ⌈log2 R⌉ steps with 2^k ranks, else 2 more. For short messages."""
    p = Algorithm("recursive_doubling_all_reduce", "all_reduce", num_ranks, in_place=in_place, **settings)
    power = 1 << (num_ranks.bit_length() - 1)
    extra = num_ranks - power  # for i < extra, rank 2i + 1 sends its array to rank 2i and waits for the result
    members = [2 * i for i in range(extra)] + list(range(2 * extra, num_ranks))
    sums = [p.chunk(rank, "input", 0) for rank in members]
    for i in range(extra):
        sums[i] = sums[i].reduce(p.chunk(2 * i + 1, "input", 0), "output", 0)
    for distance in _doubling(power):
        got = [sums[i ^ distance] for i in range(power)]
        if in_place or distance > 1 or extra:  # the sum overwrites what the partner reads: receive into scratch
            got = [other.copy(rank, "inbox") for other, rank in zip(got, members, strict=True)]
        sums = [total.reduce(other, "output", 0) for total, other in zip(sums, got, strict=True)]
    sums = [total.copy(total.rank, "output", 0) for total in sums]
    for i in range(extra):
        sums[i].copy(2 * i + 1)
    return p


def recursive_doubling_all_gather(num_ranks: int, *, in_place: bool = False, **settings: Any) -> Algorithm:
    """In every step each rank doubles its parts by exchanging all of them with a partner: ⌈log2 R⌉ steps."""
    p = Algorithm("recursive_doubling_all_gather", "all_gather", num_ranks, in_place=in_place, **settings)
    have = [p.chunk(rank, "input", 0).copy(rank, "output", rank) for rank in range(num_ranks)]
    if num_ranks & (num_ranks - 1):
        _copy_round(p)
        return p
    for distance in _doubling(num_ranks):
        got = [have[rank ^ distance].copy(rank) for rank in range(num_ranks)]
        have = [chunk.group(other) for chunk, other in zip(have, got, strict=True)]
    return p


def recursive_halving_reduce_scatter(num_ranks: int, *, in_place: bool = False, **settings: Any) -> Algorithm:
    """Every step sends partial sums of half as many parts, half as far: ⌈log2 R⌉ steps. Partial sums are in scratch."""
    p = Algorithm("recursive_halving_reduce_scatter", "reduce_scatter", num_ranks, in_place=in_place, **settings)
    for rank in range(num_ranks):
        p.chunk(rank, "input", 0, num_ranks).copy(rank, "partial", 0)
    _add_round(p, "partial")
    for rank in range(num_ranks):
        p.chunk(rank, "partial", rank).copy(rank, "output", 0)
    return p


def _add_round(p: Algorithm, buffer: str) -> None:
    """Add up chunk r of `buffer` at rank r: the messages of `_copy_round` in reverse."""
    for distance in reversed(list(_doubling(p.num_ranks))):
        for rank in range(p.num_ranks):
            to = (rank + distance) % p.num_ranks
            for start, count in runs(to, min(distance, p.num_ranks - distance), p.num_ranks):
                p.chunk(to, buffer, start, count).reduce(p.chunk(rank, buffer, start, count))


def _copy_round(p: Algorithm) -> None:
    """Copy output chunk r of rank r to all ranks.

    Before the step of distance d, rank r has chunks r to r + d − 1; it receives the following ones from rank r + d.
    """
    for distance in _doubling(p.num_ranks):
        for rank in range(p.num_ranks):
            source = (rank + distance) % p.num_ranks
            for start, count in runs(source, min(distance, p.num_ranks - distance), p.num_ranks):
                p.chunk(source, "output", start, count).copy(rank)


def runs(start: int, count: int, around: int) -> Iterator[tuple[int, int]]:
    """Yield the runs (start, count) of `count` neighbours on a circle: two runs if they pass its end.

    >>> list(runs(6, 4, 8)), list(runs(1, 2, 8))
    ([(6, 2), (0, 2)], [(1, 2)])
    """
    first = min(count, around - start)
    yield start, first
    if count > first:
        yield 0, count - first


def _doubling(num_ranks: int) -> Iterator[int]:
    """Yield 1, 2, 4, … below `num_ranks`."""
    distance = 1
    while distance < num_ranks:
        yield distance
        distance *= 2
