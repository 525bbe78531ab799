"""variations: neighbours of a measured schedule: with other progress settings, message slices, or tile lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dovetail.ir import Schedule

MANY_PARTS = 16  # number of parts of a message to try besides two and four


def variations(schedule: Schedule, messages: int = 1) -> Iterator[Schedule]:
    """Yield the neighbours of a schedule: with other progress settings, other slices of its messages (`messages` per
    tile), and other tile lengths.

    >>> [s.tiles for s in variations(Schedule.of("optimal", tiles=(64, 128), by="library"))][-3:]
    [(192,), (64, 64, 64), (32, 160)]
    """
    yield from driven_otherwise(schedule)
    if schedule["by"] != "library":
        yield from cut_otherwise(schedule, -(-max(schedule.tiles, default=0) // messages))
    yield from retiled_from(schedule)


def driven_otherwise(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules with other progress: by thread or polls, without slicing messages, with or without row blocks."""
    other = "thread" if schedule.progress == "poll" else "poll"
    yield replace(schedule, progress=other)  # type: ignore[arg-type]
    if schedule.slice_bytes:
        yield replace(schedule, slice_bytes=0)
    longest = max(schedule.tiles, default=0)
    if schedule.progress == "poll" and longest >= 2:
        yield replace(schedule, block_rows=0 if schedule.block_rows else -(-longest // 2))


def cut_otherwise(schedule: Schedule, longest: int) -> Iterator[Schedule]:
    """Yield schedules with messages in twice or four times as many parts, or whole; whole ones also in MANY_PARTS."""
    if longest < 4:
        return
    most = schedule.get("rows_per_message")
    for parts in (2, 4):
        yield schedule.with_parameters(rows_per_message=round_up(-(-(most or longest) // parts)))
    yield schedule.with_parameters(rows_per_message=None if most else round_up(-(-longest // MANY_PARTS)))


def round_up(rows: int) -> int:
    """Round up to two significant binary digits. The bounds of pieces then have a large common divisor, which makes
    proofs faster.

    >>> [round_up(rows) for rows in (1, 3, 5, 330)]
    [1, 3, 6, 384]
    """
    shift = max(rows.bit_length() - 2, 0)
    return -(-rows >> shift) << shift


def floor_of(schedule: Schedule) -> int:
    """Return the least rows of a tile that the schedule's rule promises: 1 unless the schedule is "optimal".

    >>> floor_of(Schedule.of("optimal").as_of("optimal", floor=96)), floor_of(Schedule.of("uniform"))
    (96, 1)
    """
    return int(schedule.steps.get("floor", 1)) if schedule.family == "optimal" else 1


def retiled_from(schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedule with the tile lengths of `retiled` that keep its floor (see `floor_of`).

    >>> base = Schedule.of("optimal", tiles=(64, 128)).as_of("optimal", floor=64)
    >>> [s.tiles for s in retiled_from(base)]
    [(192,), (64, 64, 64)]
    """
    floor = floor_of(schedule)
    for tiles in retiled(schedule.tiles):
        if min(tiles) >= floor:
            yield schedule.with_parameters(tiles=tiles)


def retiled(tiles: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield tilings with the two shortest adjacent tiles merged, the longest tile halved, and half of the first or last
    tile moved to its neighbour; a single tile with a quarter or a half split off."""
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
