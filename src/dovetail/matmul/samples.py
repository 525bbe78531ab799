"""samples: products of rows, and of slices of K, in isolation, for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir import Builder, Kind, Region
from dovetail.matmul.product import MODES


def add_products(
    b: Builder, ranks: int, rows: Sequence[int], held: int, names: tuple[str, str, str] = ("A", "B", "P")
) -> dict[int, list[int]]:
    """Append products of these numbers of rows on every rank; return the ops' rows by rank.

    They walk through an A of `held` rows, so that its rows come from memory, not from a cache.
    """
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
    """Append products of slices of K, of these numbers of rows, on every rank; return the ops' rows by rank.

    As in schedules with slices, block of rows follows block within `held` rows, and each slice of a block adds to the
    one before.
    """
    g, weights, p = names
    b.buffer(g, "input", held * slices), b.buffer(weights, "input", slices), b.buffer(p, "scratch", held)
    lane = b.lane("compute", "compute")
    first, further = (b.kernel("matmul", MODES, accumulate=adds) for adds in (False, True))
    added: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    start = block = done = 0  # begin and rows of the current block, and the number of its slices multiplied so far
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
