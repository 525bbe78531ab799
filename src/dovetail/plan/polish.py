"""polish: tile lengths moved, split and merged as long as the simulation gets faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dovetail.plan.candidates import Candidate, Scored, score
from dovetail.plan.task import Task
from dovetail.plan.tiles import Tiling

SIMULATIONS = 240  # at most, of each candidate that is polished
WORTH = 2e-4  # a move must save this share
FINEST = 8  # rows by which tiles are moved at least

Tiles = tuple[int, ...]


def polished(task: Task, ranked: Iterable[Scored]) -> Iterator[Candidate]:
    """The best overlapped candidate of each all-reduce, its tiles moved until no move of the simulation gains.

    The exact optimum is that of a pipeline with one contention factor; the simulation knows when either side is
    really going on. Only where the machine's product was measured: a published rate has no grain finer than `align`.
    """
    if task.options.align is not None or not _measured(task):
        return
    best: dict[str, Candidate] = {}
    for each in ranked:
        if each.family != "serial" and len(each.candidate.tiling.tiles) > 1:
            best.setdefault(each.candidate.all_reduce, each.candidate)
    for candidate in best.values():
        tiles = climb(candidate.tiling.tiles, _simulated_s(task, candidate), task.align, task.floor)
        if tiles != candidate.tiling.tiles and (task.options.max_tiles or len(tiles)) >= len(tiles):
            steps: dict[str, float | int | str] = {"floor": task.floor, "count": len(tiles), "polished": 1}
            yield Candidate(Tiling("optimal", tiles, steps), candidate.all_reduce, candidate.rows_per_message)


def climb(tiles: Tiles, seconds_of: Callable[[Tiles], float], align: int, floor: int, most: int = SIMULATIONS) -> Tiles:
    """The tiles after taking every move that gains, in steps from `align` down to FINEST rows, `most` looks at most.

    >>> climb((4, 4), lambda tiles: max(tiles[0], 8 - tiles[0] / 3) if len(tiles) == 2 else 9.0, 2, 1)
    (6, 2)
    """
    best, best_s, looks = tiles, seconds_of(tiles), 1
    seen, step = {tiles}, max(align, 1)
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
            if step <= FINEST:
                break
            step = max(step // 2, 1)
    return best


def moves(tiles: Tiles, step: int, floor: int = 1) -> Iterator[Tiles]:
    """Neighbours of a tiling: `step` rows moved from a tile to another at the ends or next to it, a tile split, two
    merged.

    >>> list(moves((4, 2), 1))
    [(3, 3), (5, 1), (2, 2, 2), (4, 1, 1), (6,)]
    """
    last = len(tiles) - 1
    far = ((0, last), (last // 2, last), (0, last // 2))
    for a, b in dict.fromkeys([*((i, i + 1) for i in range(last)), *far]):
        for give, take in ((a, b), (b, a)):
            if a != b and tiles[give] - step >= max(floor, 1):
                changed = list(tiles)
                changed[give] -= step
                changed[take] += step
                yield tuple(changed)
    for i, rows in enumerate(tiles):
        if rows // 2 >= max(floor, 1):
            yield (*tiles[:i], rows - rows // 2, rows // 2, *tiles[i + 1 :])
    for i in range(last):
        yield (*tiles[:i], tiles[i] + tiles[i + 1], *tiles[i + 2 :])


def _simulated_s(task: Task, candidate: Candidate) -> Callable[[Tiles], float]:
    def seconds_of(tiles: Tiles) -> float:
        changed = Candidate(Tiling("optimal", tiles), candidate.all_reduce, candidate.rows_per_message)
        found = score(task, [changed])
        return found[0].predicted_s if found else float("inf")

    return seconds_of


def _measured(task: Task) -> bool:
    return all(task.model.kernel_curve(work.key).startswith("kernel:") for work in task.wish.works(task.ranks))
