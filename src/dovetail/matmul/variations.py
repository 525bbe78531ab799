"""variations: schedules next to one that was measured: driven otherwise, tiles merged, split or moved between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dovetail.ir import Schedule

MANY_PARTS = 16  # of a message, where two or four gain nothing yet, or rows are long


def variations(schedule: Schedule, messages: int = 1) -> Iterator[Schedule]:
    """Neighbours of a schedule: other progress, other cuts of its messages (`messages` per tile), tiles merged, split,
    or their ends moved.

    >>> [s.tiles for s in variations(Schedule.of("optimal", tiles=(64, 128), by="library"))][-3:]
    [(192,), (64, 64, 64), (32, 160)]
    """
    yield from driven_otherwise(schedule)
    if schedule["by"] != "library":
        yield from cut_otherwise(schedule, -(-max(schedule.tiles, default=0) // messages))
    yield from (schedule.with_parameters(tiles=tiles) for tiles in retiled(schedule.tiles))


def driven_otherwise(schedule: Schedule) -> Iterator[Schedule]:
    """By the other way of progress, messages whole that travel in slices, polls between row blocks or none."""
    other = "thread" if schedule.progress == "poll" else "poll"
    yield replace(schedule, progress=other)  # type: ignore[arg-type]
    if schedule.slice_bytes:
        yield replace(schedule, slice_bytes=0)
    longest = max(schedule.tiles, default=0)
    if schedule.progress == "poll" and longest >= 2:
        yield replace(schedule, block_rows=0 if schedule.block_rows else -(-longest // 2))


def cut_otherwise(schedule: Schedule, longest: int) -> Iterator[Schedule]:
    """Our own messages cut in two or four, and whole; whole ones in sixteen, too."""
    if longest < 4:
        return
    most = schedule.get("rows_per_message")
    for parts in (2, 4):
        yield schedule.with_parameters(rows_per_message=round_up(-(-(most or longest) // parts)))
    yield schedule.with_parameters(rows_per_message=None if most else round_up(-(-longest // MANY_PARTS)))


def round_up(rows: int) -> int:
    """To two binary digits, so that all bounds of pieces have a large common divisor, by which proofs go.

    >>> [round_up(rows) for rows in (1, 3, 5, 330)]
    [1, 3, 6, 384]
    """
    shift = max(rows.bit_length() - 2, 0)
    return -(-rows >> shift) << shift


def retiled(tiles: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The two shortest neighbours merged, the longest tile split, rows moved from the first and the last tile; of one
    tile, a quarter or a half split off."""
    if len(tiles) < 2:
        yield from ((rows - rows // parts, rows // parts) for rows in tiles for parts in (4, 2) if rows >= parts)
        return
    least = min(range(len(tiles) - 1), key=lambda i: tiles[i] + tiles[i + 1])
    yield (*tiles[:least], tiles[least] + tiles[least + 1], *tiles[least + 2 :])
    big = max(range(len(tiles)), key=lambda i: tiles[i])
    if tiles[big] >= 2:
        yield (*tiles[:big], tiles[big] - tiles[big] // 2, tiles[big] // 2, *tiles[big + 1 :])
    if tiles[0] >= 2:
        yield (tiles[0] - tiles[0] // 2, tiles[1] + tiles[0] // 2, *tiles[2:])
    if tiles[-1] >= 2 and len(tiles) > 2:
        yield (*tiles[:-2], tiles[-2] + tiles[-1] // 2, tiles[-1] - tiles[-1] // 2)
