"""neighbours: a schedule varied step by step, as long as the next is predicted to be faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.ir.schedule import Schedule
from dovetail.ir.wish import Costs

WORTH = 2e-4  # a step must save this share
NEAR_OPS = 8_000  # at most, of neighbours of a schedule, were each piece of a message one
Neighbours = Callable[[Schedule], Iterable[Schedule]]


def varied(
    costs: Costs, schedule: Schedule, neighbours: Neighbours, floor: int = 1, most_ops: int = NEAR_OPS
) -> Schedule:
    """A schedule after every step to a neighbour of it that the simulation finds faster, until so many ops have been
    looked at."""
    best, best_s, ops, gained = schedule, costs.predicted_s(schedule), 0, True
    while gained:
        gained = False
        for each in neighbours(best):
            known = each.parameters == best.parameters or min(each.tiles, default=floor) < floor
            if known or ops >= most_ops:
                continue
            found_s, ops = costs.predicted_s(each), ops + costs.num_ops(each)
            if found_s < (1 - WORTH) * best_s:
                tiled = each if each.tiles == best.tiles else each.as_of("optimal", floor=floor, count=len(each.tiles))
                best, best_s, gained = tiled, found_s, True
                break
    return best
