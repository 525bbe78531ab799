"""pairs: every rank sends to every other rank directly."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm
from dovetail.collective.ref import Ref


def all_pairs_all_reduce(num_ranks: int, *, in_place: bool = True, aside: bool = False, **settings: Any) -> Algorithm:
    """Each rank adds up one chunk of all ranks, then sends the sum to all: 2 steps (seed 002, section 7.1.2).

    `aside`: receive into scratch before adding, so that messages to a rank may arrive at once.
    """
    p = Algorithm("all_pairs_all_reduce", "all_reduce", num_ranks, chunks=num_ranks, in_place=in_place, **settings)
    sums = [p.chunk(rank, "input", rank) for rank in range(num_ranks)]
    add_from_all(p, sums, "output", aside=aside)
    sums = [total.copy(rank, "output", rank) for rank, total in enumerate(sums)]
    copy_to_all(p, sums)
    return p


def flat_all_reduce(num_ranks: int, *, in_place: bool = True, **settings: Any) -> Algorithm:
    """Each rank sends all it has to every other one and adds what comes, in the order of ranks: 1 step, for short
    messages, with equal bits on all ranks."""
    p = Algorithm("flat_all_reduce", "all_reduce", num_ranks, in_place=in_place, **settings)
    ranks, all_parts = range(num_ranks), []
    for rank in ranks:
        parts = [p.chunk(other, "input", 0) for other in ranks]
        all_parts.append([part.copy(rank, "inbox", i) if rank else part for i, part in enumerate(parts)])
    for rank, parts in enumerate(all_parts):
        total = parts[0]
        for part in parts[1:]:
            total = total.reduce(part, "output", 0)
        total.copy(rank, "output", 0)
    return p


def direct_all_gather(
    num_ranks: int, *, in_place: bool = False, kind: str = "all_gather", **settings: Any
) -> Algorithm:
    """Each rank sends its part to every other rank: 1 step."""
    p = Algorithm(f"direct_{kind}", kind, num_ranks, in_place=in_place, **settings)
    copy_to_all(p, [p.chunk(rank, "input", 0).copy(rank, "output", rank) for rank in range(num_ranks)])
    return p


def direct_reduce_scatter(
    num_ranks: int, *, in_place: bool = False, kind: str = "reduce_scatter", **settings: Any
) -> Algorithm:
    """Each rank receives its part from every other rank and adds them up: 1 step."""
    p = Algorithm(f"direct_{kind}", kind, num_ranks, in_place=in_place, **settings)
    sums = [p.chunk(rank, "input", rank) for rank in range(num_ranks)]
    add_from_all(p, sums, "output", 0)
    for rank, total in enumerate(sums):
        total.copy(rank, "output", 0)
    return p


def add_from_all(p: Algorithm, sums: list[Ref], buffer: str, index: int | None = None, *, aside: bool = False) -> None:
    """Add to chunk r, at rank r, the input chunk r of all other ranks; `buffer` gets the sum."""
    for step in range(1, len(sums)):
        for rank, total in enumerate(sums):
            other = p.chunk((rank + step) % len(sums), "input", rank)
            other = other.copy(rank, "scratch", step - 1) if aside else other
            sums[rank] = total.reduce(other, buffer, index)


def copy_to_all(p: Algorithm, held: list[Ref]) -> None:
    """Copy each rank's chunk to the same place on every other rank."""
    for step in range(1, len(held)):
        for rank, chunk in enumerate(held):
            chunk.copy((rank + step) % len(held))
