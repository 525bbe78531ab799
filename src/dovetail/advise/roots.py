"""roots: the root cause of the waits in some calls of a trace: which rank was late, where, and doing what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.advise.causes import Shares, excesses, passed_on
from dovetail.advise.rank_activity import RankActivity, rank_activity
from dovetail.trace import Trace


@dataclass(frozen=True)
class Root:
    """What made ranks wait: `kind` as in `Activity`, or "calls" if nothing waited; the late rank; where it was."""

    kind: str
    rank: int
    place: str


class Roots:
    """Finds roots of the waits of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def _ranks(self) -> RankActivity:
        return rank_activity(self.trace)

    @cached_property
    def _shares(self) -> Shares:
        return excesses(self._ranks)

    def of(self, rows: Sequence[int], place: str) -> Root:
        """Return the root of most of the waits in the calls at these rows of the trace.

        Without waits, the calls themselves cost the time: then the rank is that of the first, and the place `place`.
        """
        at, col = np.array([row for row in rows if row >= 0], "i8"), self.trace.columns
        waits = self._ranks.waits
        calls = set(zip(col["rank"][at].tolist(), col["start_s"][at].tolist(), strict=True))
        pairs = zip(waits.rank.tolist(), waits.start_s.tolist(), strict=True)
        weight = np.where([pair in calls for pair in pairs], waits.until_s - waits.start_s, 0.0)
        call_s = float((col["end_s"][at] - col["start_s"][at]).sum())
        if weight.sum() <= 0.1 * call_s:
            return Root("calls", int(col["rank"][at[0]]) if len(at) else -1, place)
        return self._largest(weight)

    def _largest(self, weight: Any) -> Root:
        """Return the rank and activity with most of the weight, once each wait's share of waits is passed on."""
        ranks, shares = self._ranks, self._shares
        found = np.zeros((len(ranks.activities), ranks.num_ranks))
        passed = passed_on(ranks, shares, weight)
        for which, row in enumerate(shares.of_activities):
            found[which] = np.bincount(ranks.waits.cause, row * passed, ranks.num_ranks)
        at, rank = divmod(int(np.argmax(found)), ranks.num_ranks)
        activity = ranks.activities[at]
        return Root(activity.kind, rank, activity.place)
