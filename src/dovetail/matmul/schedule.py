"""Schedules of a matrix product with all-reduce: rows in tiles, each reduced while the next is computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dovetail.core import PlanError, parse_count
from dovetail.ir import Builder, Kind, Program, Region, Term
from dovetail.matmul.wish import MatmulAllReduce
from dovetail.passes import Make, inline_collectives, slice_messages


def program(
    wish: MatmulAllReduce,
    ranks: int,
    tiles: Sequence[int],
    algorithms: Make | None = None,
    rows_per_message: int | None = None,
    depth: int = 16,
) -> Program:
    """The wish as a Program that computes `tiles` (rows, in this order) and all-reduces each as soon as it is there.

    Buffers: A input (m slots, a row of k_r), B input (1 slot), P scratch and C output (m slots, a row of n). Each tile
    is all-reduced by the library's own call, on lane `net`, or by `algorithms` (`collective.family("ring")`, say; see
    `passes.inline_collectives`): our own messages on lanes `send` and `recv`, of at most `rows_per_message` rows; their
    channels hold `depth` messages (times the number of slices that `rows_per_message` makes of one). Any number of
    ranks; one tile is the serial schedule. Raises PlanError where the tiles do not add up to m.
    Source: seed 000 (tiling along M).
    """
    ranks, rows = parse_count(ranks, "ranks", least=1), check_tiles(wish, tiles)
    tiled = _tiled(wish, ranks, rows)
    ours = tiled if algorithms is None else inline_collectives(tiled, algorithms, depth)
    if rows_per_message is None:
        return ours
    if Kind.collective in ours.columns["kind"]:
        raise PlanError("the library's all-reduce chooses its own messages", hint="leave out rows_per_message")
    return slice_messages(ours, rows_per_message)


def check_tiles(wish: MatmulAllReduce, tiles: Sequence[int]) -> tuple[int, ...]:
    """The tiles as a tuple of positive numbers of rows that add up to m (no tiles for m = 0), or PlanError.

    >>> check_tiles(MatmulAllReduce(10, 4, 4), [4, 4])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.PlanError: the tiles do not add up to m = 10 rows
      found       [4, 4], 8 rows
      try         make the last tile 2 rows longer
    """
    rows = tuple(parse_count(tile, "a tile", least=1) for tile in tiles)
    missing = wish.m - sum(rows)
    if missing:
        hint = f"make the last tile {abs(missing)} rows {'longer' if missing > 0 else 'shorter'}" if rows else None
        found = f"{list(rows)}, {sum(rows)} rows"
        raise PlanError(f"the tiles do not add up to m = {wish.m} rows", found=found, hint=hint)
    return rows


def _tiled(wish: MatmulAllReduce, ranks: int, tiles: tuple[int, ...]) -> Program:
    """Compute lane and net lane, the library's all_reduce on each tile."""
    b, everyone = Builder("matmul_all_reduce", ranks), range(ranks)
    b.buffer("A", "input", wish.m)
    b.buffer("B", "input", 1)
    b.buffer("P", "scratch", wish.m)
    b.buffer("C", "output", wish.m)
    compute, net = b.lane("compute", "compute"), b.lane("net", "net")
    matmul, reduce = b.kernel("matmul", ("each", "all")), b.collective("all_reduce", everyone)
    whole, weights = Region("A", 0, wish.m), Region("B", 0, 1)
    b.post(everyone, Region("C", 0, wish.m), [Term("matmul", ((rank, whole), (rank, weights))) for rank in everyone])
    for rank in everyone:
        for tile, (start, count) in enumerate(zip(accumulate(tiles, initial=0), tiles, strict=False), start=1):
            line = f"tile {tile} of {len(tiles)} ({count} rows)"
            a, p, c = (Region(name, start, count) for name in "APC")
            done = b.add(Kind.compute, rank, compute, reads=[a, weights], writes=[p], call=matmul, line=line)
            b.add(Kind.collective, rank, net, reads=[p], writes=[c], call=reduce, after=[done], line=line)
    return b.build()
