"""samples: products of rows, and of slices of K, alone, as what they cost is measured."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir import Builder, Kind, Region
from dovetail.matmul.product import MODES


def add_products(
    b: Builder, ranks: int, rows: Sequence[int], held: int, names: tuple[str, str, str] = ("A", "B", "P")
) -> dict[int, list[int]]:
    """Append products of these numbers of rows on every rank, walking through an A of `held` rows, so that it is cold;
    returns their rows in the program, by rank."""
    a, weights, p = names
    b.buffer(a, "input", held), b.buffer(weights, "input", 1), b.buffer(p, "scratch", held)
    lane, call = b.lane("compute", "compute"), b.kernel("matmul", ("each", "all"))
    added: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    start = 0
    for count in rows:
        start = start if start + count <= held else 0
        reads, writes = [Region(a, start, count), Region(weights, 0, 1)], [Region(p, start, count)]
        for rank in range(ranks):
            added[rank].append(b.add(Kind.compute, rank, lane, reads=reads, writes=writes, call=call))
        start += count
    return added


def add_slices(
    b: Builder, ranks: int, rows: Sequence[int], held: int, slices: int, names: tuple[str, str, str] = ("G", "B0", "P")
) -> dict[int, list[int]]:
    """Append products of slices of K, of these numbers of rows, on every rank: block of rows after block, each slice
    added to the one before, as schedules of slices have them in `held` rows; returns their rows in the program, by
    rank."""
    g, weights, p = names
    b.buffer(g, "input", held * slices), b.buffer(weights, "input", slices), b.buffer(p, "scratch", held)
    lane = b.lane("compute", "compute")
    first, further = (b.kernel("matmul", MODES, accumulate=adds) for adds in (False, True))
    added: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    start = block = done = 0  # the block of rows that is multiplied, and how many of its slices were
    for count in rows:
        if done == slices or count > block:
            start = start + block if start + block + count <= held else 0
            block, done = count, 0
        reads = [Region(g, done * held + start, count), Region(weights, done, 1)]
        for rank in range(ranks):
            call, writes = further if done else first, [Region(p, start, count)]
            added[rank].append(b.add(Kind.compute, rank, lane, reads=reads, writes=writes, call=call))
        done += 1
    return added
