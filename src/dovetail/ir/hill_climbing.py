"""hill_climbing: improve a schedule step by step, while some neighbour is predicted to be faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.ir.operator import Costs
from dovetail.ir.schedule import Schedule

WORTH = 2e-4  # least share of the predicted time that a step must save
NEAR_EFFORT = 12_000  # default limit on the `Costs.effort` spent on neighbours, in simulated ops
Neighbours = Callable[[Schedule], Iterable[Schedule]]


def varied(costs: Costs, schedule: Schedule, neighbours: Neighbours, most_effort: int = NEAR_EFFORT) -> Schedule:
    """Return the schedule that hill climbing from `schedule` ends at.

    Each step goes to the first neighbour that the simulation predicts to be faster. The search ends when there is none,
    or after `most_effort` simulated ops.
    """
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
