"""shortlist: which of the predicted schedules are worth measuring."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.planner.costs import Scored

MOST = 8  # schedules to measure
LONG_S = 5e-3  # bandwidth dominates longer runs: predictions are good, and measurements expensive
HOPELESS, HOPELESS_LONG = 4.0, 1.7  # schedules predicted slower than this multiple of the best are not measured


def shortlist(ranked: Sequence[Scored], most: int = MOST) -> list[Scored]:
    """Return the schedules to measure beside serial, best predicted first.

    The best of each promising family comes before the second best of any, as predictions err more between families than
    within one. Of several programs with equally many ops and equal predictions, only one is returned.
    """
    found: dict[tuple[float, int, bool], Scored] = {}
    leaders: dict[str, Scored] = {}
    for each in ranked:
        alike = float(f"{each.predicted_s:.6e}"), each.program.num_ops, each.schedule.slice_bytes > 0
        if not each.schedule.is_serial and found.setdefault(alike, each) is each:
            leaders.setdefault(each.family, each)
    best_s = min((each.predicted_s for each in found.values()), default=0.0)
    limit_s = best_s * (HOPELESS if best_s < LONG_S else HOPELESS_LONG)
    hopeful = [each for each in found.values() if each.predicted_s <= limit_s]
    first = sorted(hopeful, key=lambda each: leaders[each.family] is not each)[:most]
    return sorted(first, key=lambda each: each.predicted_s)
