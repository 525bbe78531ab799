"""local_search: move, split and merge tiles as long as the simulated time falls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dovetail.ir import Schedule
from dovetail.ir.hill_climbing import WORTH, Neighbours, varied
from dovetail.ir.operator import Costs

SIMULATIONS = 240  # most simulations per schedule
EFFORT = 20_000  # most simulated effort (see `Costs.effort`) per schedule
KINDS = 3  # number of kinds of schedules; of each, neighbours of the best are tried
MOVED = 16  # most tiles whose ends are moved: with more, each is too short for a move to matter
FINEST = 8  # tiles are moved by at least this many rows
FINER = 4  # factor by which steps become finer once no coarser move gains
SHARE = 512  # tiles are also moved by at least rows / SHARE

Tiles = tuple[int, ...]


def moved(costs: Costs, ranked: Sequence[Schedule], align: int, floor: int) -> Iterator[Schedule]:
    """Yield, for each way of communicating, the best overlapped schedule with its tiles moved until no move gains.

    `optimal` assumes a pipeline with constant contention factors; the simulation knows when compute and communication
    really overlap. Schedules with a tile below `floor` rows are left out, because moves would keep such tiles.
    """
    best: dict[str, Schedule] = {}
    for each in ranked:
        if not each.is_serial and 1 < len(each.tiles) <= MOVED and min(each.tiles) >= floor:
            best.setdefault(each["by"], each)
    most = costs.options["max_tiles"]
    for schedule in best.values():
        looks = max(EFFORT // costs.effort(schedule), 1)
        tiles = climb(schedule.tiles, _simulated_s(costs, schedule), align, floor, min(looks, SIMULATIONS))
        if tiles != schedule.tiles and (most or len(tiles)) >= len(tiles):
            yield schedule.with_parameters(tiles=tiles).as_of("optimal", floor=floor, count=len(tiles), moved=1)


def better(
    costs: Costs, ranked: Sequence[Schedule], neighbours: Neighbours, align: int | None, floor: int
) -> Iterator[Schedule]:
    """Yield the best schedule of each of the fastest kinds, improved by local search; with `align`, also the new best
    with its tiles moved.

    Kinds differ in parameters other than tile lengths, or in having one tile or several. Yields nothing if the user
    asked for particular lengths.
    """
    asked = (costs.options[name] is not None for name in ("floor", "align", "max_tiles", "rows_per_message"))
    if not ranked or any(asked):
        return
    first: dict[Any, Schedule] = {}
    for each in ranked:
        if not each.is_serial:
            alike = each.with_parameters(tiles=None, rows_per_message=None).parameters
            first.setdefault((alike, len(each.tiles) > 1), each)

    def near(base: Schedule) -> Iterator[Schedule]:
        return (each for each in neighbours(base) if min(each.tiles, default=floor) >= floor)

    best = ranked[0]
    for each in list(first.values())[:KINDS]:
        found = as_optimal(each, varied(costs, each, near), floor)
        if found.parameters != each.parameters:
            yield found
            best_s, found_s = costs.predicted_s(best), costs.predicted_s(found)
            best = found if found_s < (1 - WORTH) * best_s else best
    if align and best is not ranked[0]:
        yield from moved(costs, [best], align, floor)


def as_optimal(base: Schedule, found: Schedule, floor: int) -> Schedule:
    """Return `found`, the result of a local search from `base`; in the family "optimal" if its tiles were changed."""
    return found if found.tiles == base.tiles else found.as_of("optimal", floor=floor, count=len(found.tiles))


def hopeful(costs: Costs, ranked: Sequence[Schedule]) -> list[Schedule]:
    """Return the schedules, best first, whose way of communicating may win once tiles are moved or messages sliced.

    A way may win if the busiest lane or link of its best schedule, or of that schedule with a single tile, works less
    time than the best schedule takes. Pieces usually take no less time than the whole, so a single tile gives a lower
    bound; cost curves may have jumps, so the schedule's own tiles count, too.
    """
    tiled = [each for each in ranked if each.tiles]
    first: dict[str, Schedule] = {}
    for each in tiled:
        if not each.is_serial:
            first.setdefault(each["by"], each)
    limit_s = (1 - WORTH) * min(map(costs.predicted_s, ranked[:1]), default=0.0)
    ways = {by for by, each in first.items() if any(costs.busy_s(one) < limit_s for one in (each, joined(each)))}
    return [each for each in tiled if each["by"] in ways]


def joined(schedule: Schedule) -> Schedule:
    """Return the schedule with one tile."""
    return schedule.with_parameters(tiles=(sum(schedule.tiles),))


def climb(tiles: Tiles, seconds_of: Callable[[Tiles], float], align: int, floor: int, most: int = SIMULATIONS) -> Tiles:
    """Return the tiles after every move that gains, in steps from `align` down to FINEST rows; at most `most` trials.

    >>> climb((4, 4), lambda tiles: max(tiles[0], 8 - tiles[0] / 3) if len(tiles) == 2 else 9.0, 2, 1)
    (6, 2)
    """
    best, best_s, looks = tiles, seconds_of(tiles), 1
    seen, step, finest = {tiles}, max(align, 1), max(FINEST, sum(tiles) // SHARE)
    while looks < most:
        gained = False
        for moved in moves(best, step, floor):
            if moved in seen or looks >= most:
                continue
            seen.add(moved)
            looks += 1
            found_s = seconds_of(moved)
            if found_s < (1 - WORTH) * best_s:
                best, best_s, gained = moved, found_s, True
                break
        if not gained:
            if step <= finest:
                break
            step = max(step // FINER, 1)
    return best


def moves(tiles: Tiles, step: int, floor: int = 1) -> Iterator[Tiles]:
    """Yield the neighbours of a tiling: two adjacent tiles merged; one tile halved; a quarter of the first or the last
    split off; `step` rows moved between adjacent tiles, or between first, middle and last tile.

    No move makes a tile shorter than `floor` rows; tiles that are shorter already may stay so.

    >>> list(moves((4, 2), 1))
    [(6,), (2, 2, 2), (4, 1, 1), (1, 3, 2), (3, 3), (5, 1)]
    """
    last = len(tiles) - 1
    for i in range(last):
        yield (*tiles[:i], tiles[i] + tiles[i + 1], *tiles[i + 2 :])
    for i, rows in enumerate(tiles):
        if rows // 2 >= max(floor, 1):
            yield (*tiles[:i], rows - rows // 2, rows // 2, *tiles[i + 1 :])
    first, end = tiles[0] // 4, tiles[last] // 4
    if first >= max(floor, 1):
        yield (first, tiles[0] - first, *tiles[1:])
    if end >= max(floor, 1):
        yield (*tiles[:last], tiles[last] - end, end)
    far = ((0, last), (last // 2, last), (0, last // 2))
    for a, b in dict.fromkeys([*((i, i + 1) for i in range(last)), *far]):
        for give, take in ((a, b), (b, a)):
            if a != b and tiles[give] - step >= max(floor, 1):
                changed = list(tiles)
                changed[give] -= step
                changed[take] += step
                yield tuple(changed)


def _simulated_s(costs: Costs, schedule: Schedule) -> Callable[[Tiles], float]:
    return lambda tiles: costs.predicted_s(schedule.with_parameters(tiles=tiles))
