"""contention: compute from timelines how much computation and traffic slowed each other."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.prober import programs
from dovetail.timeline import Timeline


def stretch(streams: Sequence[programs.Stream], timelines: Sequence[Timeline]) -> tuple[float, float | None]:
    """Return the slowdowns of computation and of traffic (None: fewer than 2 messages ended during the computation).

    `streams` and `timelines` are of one round: computations in isolation, traffic in isolation, and both together.
    Computations that ended after the last message do not count, unless all did.
    """
    alone, quiet, both = (programs.ends_of(timeline) for timeline in timelines)
    products = streams[2].products[0]
    quiet_s = max((both[row][1] for row in streams[2].receives[0]), default=0.0)
    count = sum(both[row][1] <= quiet_s for row in products) or len(products)

    def busy_s(spans: programs.Spans, rows: list[int]) -> float:
        return sum(spans[row][1] - spans[row][0] for row in rows[:count])

    compute = busy_s(both, products) / busy_s(alone, streams[0].products[0])
    came = sum(both[row][1] <= both[products[-1]][1] for row in streams[2].receives[0])
    if came < 2:
        return compute, None
    begin = both[products[0]][0], min(start for start, _ in quiet.values())
    passed = both[streams[2].receives[0][came - 1]][1] - begin[0]
    usual = quiet[streams[1].receives[0][came - 1]][1] - begin[1]
    return compute, max(passed / max(usual, 1e-9), 1e-3)
