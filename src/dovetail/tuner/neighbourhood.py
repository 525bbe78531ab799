"""neighbourhood: measure neighbours of the fastest schedule (local search)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.ir import Schedule
from dovetail.run.job import Outcome
from dovetail.tuner.measure import HEAT_ROUNDS, Clock, Measurer, over

STEPS = 2  # of the local search
WORTH = 0.02  # the search goes on if a step gained at least this share
HEATS = 0.6  # no step begins after this share of the budget


def search(
    measurer: Measurer,
    at: int,
    heat: Mapping[Schedule, Outcome],
    clock: Clock,
    say: Callable[[str, float], None],
) -> dict[Schedule, float]:
    """Measure neighbours of an entry's fastest schedule; return seconds of all schedules tried, its heat included.

    Jobs differ in speed. To be comparable, a schedule's seconds are serial's seconds in the heat times the schedule's
    median ratio to serial; a neighbour's are those of the schedule that it varies times the ratio of the two.
    """
    entry = measurer.entries[at]
    serial_s = heat[entry.serial].median_s
    tried = {schedule: serial_s * over(outcome, heat[entry.serial]) for schedule, outcome in heat.items()}
    for step in range(STEPS):
        best = min(tried, key=lambda schedule: tried[schedule])
        if (best == entry.serial and step) or clock.spent > HEATS:
            break
        others = [schedule for schedule in tried if schedule != entry.serial]
        base = best if best != entry.serial else min(others, key=lambda s: tried[s], default=best)
        moves = [schedule for schedule in entry.operator.neighbours(base) if schedule not in tried]
        if not moves:
            break
        say("measuring variations", 0.1 + 0.9 * clock.spent)
        found, _ = measurer.measure({at: [base, *moves]}, HEAT_ROUNDS, float("inf"), measurer.seed + 100 + step)
        measurer.note(found)
        outcomes = found[at]
        tried |= {s: tried[base] * over(outcomes[s], outcomes[base]) for s in moves if s in outcomes}
        if min((tried[s] for s in moves if s in tried), default=tried[base]) > (1 - WORTH) * tried[base]:
            break
    return tried
