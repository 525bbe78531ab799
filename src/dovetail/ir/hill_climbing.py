"""neighbours: a schedule varied step by step, as long as the next is predicted to be faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.ir.operator import Costs
from dovetail.ir.schedule import Schedule

WORTH = 2e-4  # a step must save this share
NEAR_EFFORT = 12_000  # at most, of looking at neighbours of a schedule
Neighbours = Callable[[Schedule], Iterable[Schedule]]


def varied(costs: Costs, schedule: Schedule, neighbours: Neighbours, most_effort: int = NEAR_EFFORT) -> Schedule:
    """A schedule after every step to a neighbour of it that the simulation finds faster, until so much effort is
    spent."""
    best, best_s, effort, gained = schedule, costs.predicted_s(schedule), 0, True
    while gained:
        gained = False
        for each in neighbours(best):
            if each.parameters == best.parameters or effort >= most_effort:
                continue
            found_s, effort = costs.predicted_s(each), effort + costs.effort(each)
            if found_s < (1 - WORTH) * best_s:
                best, best_s, gained = each, found_s, True
                break
    return best
