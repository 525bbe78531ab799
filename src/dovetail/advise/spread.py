"""spread: estimate the run-to-run noise of a traced program, and the overhead of tracing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dovetail.run.load import LIMIT
from dovetail.trace import Trace
from dovetail.trace.analysis.replay_model import ReplayModel, Step

LAGS = 8  # longest period of a periodic pattern that does not count as noise
SURE = 1.96 * 2**0.5  # two runs differ by less than SURE standard deviations of a run with 95 % probability


def chance_s(trace: Trace, model: ReplayModel, site: Callable[[int], str], lost_s: float | None = None) -> float:
    """Estimate from one run the difference of two runs' makespans, in seconds, that chance exceeds in 5 % of cases.

    `lost_s`: seconds that a rank lost to others, if known. Then work whose length follows no pattern, as tasks of
    different sizes, does not count as chance beyond these seconds and LIMIT, the share that `tune` lets others take.

    For every pair of consecutive call sites, estimate the variance of the time between them from differences at lags 1
    to LAGS. The smallest estimate counts, so that neither a trend nor a periodic pattern counts as noise. Variances add
    up over the run. Returns the median over ranks.
    """
    found = [_deviation_s(trace.columns["end_s"], steps, site) for steps in model.steps]
    chance_s = SURE * float(np.median(found)) if found else 0.0
    return chance_s if lost_s is None else min(chance_s, lost_s + LIMIT * model.makespan_s)


def _deviation_s(end_s: NDArray[np.float64], steps: Sequence[Step], site: Callable[[int], str]) -> float:
    rows = list(dict.fromkeys(step.row for step in steps if step.row >= 0))
    spent_s, places = np.diff(end_s[rows]), [site(row) for row in rows]
    pairs: dict[tuple[str, str], list[int]] = {}
    for i, pair in enumerate(pairwise(places)):
        pairs.setdefault(pair, []).append(i)
    return float(np.sqrt(sum(len(at) * variance(spent_s[at]) for at in pairs.values())))


def variance(values: NDArray[np.float64]) -> float:
    """Return the noise variance of a series that may have a trend and a period of at most LAGS."""
    lags = range(1, min(LAGS, len(values) // 2) + 1)
    return min((float(np.mean((values[lag:] - values[:-lag]) ** 2)) / 2 for lag in lags), default=0.0)


class Cost:
    """Overhead of tracing each call, in seconds, as the traced processes measured it."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.call_s: NDArray[np.float64] = np.zeros(0)
        if trace is None:
            return
        event_s = np.zeros((trace.num_ranks, 2))
        for about in trace.meta.get("ranks", ()):
            event_s[about["rank"]] = about.get("event_s", (0.0, 0.0))  # older traces lack it
        part, rank = trace.columns["part"], trace.columns["rank"]
        events = np.where(part == 0, 2 + trace.columns["repeats"], 0)  # an unsuccessful poll reads the clock only
        row_s = event_s[rank, 1] + event_s[rank, 0] * events  # begin, end, and one event per row
        self.call_s = np.bincount(np.arange(trace.num_rows) - part, row_s, trace.num_rows).astype("f8")

    def of_removed_s(self, before: ReplayModel, after: ReplayModel) -> float:
        """Return the tracing overhead, in seconds, of the calls that a change removes: the largest over ranks."""
        return max(map(self._of_rank_s, before.steps, after.steps), default=0.0)

    def _of_rank_s(self, before: Sequence[Step], after: Sequence[Step]) -> float:
        if not len(self.call_s):
            return 0.0
        there, left = (Counter(step.row for step in steps if step.row >= 0) for steps in (before, after))
        return sum(float(self.call_s[row]) * (1 - min(left[row] / count, 1)) for row, count in there.items())
