"""causes: what made the ranks wait: each wait is attributed to what the late rank did beyond the waiting one.

A wait of rank A for rank B lasts w seconds. Since A and B last met, B spent w seconds more than A until B did what A
waited for. These seconds are shared among the activities in which B spent more than A; the share of B's own waits is
passed on to these waits, and so back to their causes. This is the delay analysis of Böhme, Geimer, Wolf and Arnold,
"Identifying the root causes of wait states in large-scale parallel applications" (ICPP 2010), which Scalasca uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.cause_patterns import Pattern, pattern_of
from dovetail.advise.disturbance import Disturbance
from dovetail.advise.rank_activity import Activity, RankActivity, rank_activity
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.wait_rows import Waits

Array = NDArray[Any]
SCHEMA = "dovetail.causes/1"
MOST_PASSES = 200  # waits are passed on along chains of at most this many
LEFT_SHARE = 1e-4  # chains are followed until at most this share of all waits is not attributed
LEAST_SHARE = 0.01  # causes of a smaller share of all waits are left out


@dataclass(frozen=True)
class Cause:
    """One root cause of waits: an activity, and how much waiting it caused.

    Attributes
    ----------
    activity : Activity
        What the late ranks did, and where.
    seconds : float
        Seconds of waits that it caused, over all ranks that waited.
    by_rank_s : tuple of float
        The same by the rank that was late.
    pattern : Pattern
        Which ranks were late, and when.
    """

    activity: Activity
    seconds: float
    by_rank_s: tuple[float, ...] = field(repr=False)
    pattern: Pattern

    @property
    def rank(self) -> int:
        """Return the rank that was late most."""
        return int(np.argmax(self.by_rank_s))

    def to_json(self) -> dict[str, Any]:
        """Return the cause as an object; times in seconds."""
        root = {"rank": self.rank, "place": self.activity.place}
        found = {"cause": self.activity.kind, "root": root, "waits_s": self.seconds, "by_rank_s": list(self.by_rank_s)}
        return {**found, "pattern": self.pattern.words, "confidence": self.pattern.confidence}


@dataclass(frozen=True)
class Causes:
    """All root causes of a trace, largest first.

    `waited_s`: seconds of all waits. `attributed_s`: seconds that reached a cause. `seconds`: from the end of MPI_Init
    to the begin of MPI_Finalize, the mean of all ranks. `disturbed`: sentences on what others took of the ranks' cores,
    if it is too much to trust times. `crowded`: a sentence if there are more ranks than cores.
    """

    causes: tuple[Cause, ...]
    waited_s: float
    attributed_s: float
    seconds: float
    num_ranks: int
    disturbed: tuple[str, ...] = ()
    crowded: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; times in seconds, causes as objects."""
        names = ("waited_s", "attributed_s", "seconds", "num_ranks")
        found = [{**it.to_json(), "share": it.seconds / self.attributed_s} for it in self.causes]
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in names},
            "crowded": list(self.crowded),
            "causes": found,
        }


def causes(trace: Trace | TraceFile) -> Causes:
    """Return what made the ranks of a traced program wait.

    Parameters
    ----------
    trace : Trace or TraceFile
        The run. A trace on disk is read a chunk at a time.

    Returns
    -------
    Causes
        Root causes of at least `LEAST_SHARE` of all waiting, largest first.
    """
    return causes_of(rank_activity(trace))


def causes_of(ranks: RankActivity, shares: Shares | None = None) -> Causes:
    """Return the causes of the waits of known activities; `shares`: of these waits, if they are known."""
    shares = shares or excesses(ranks)
    costs_s = passed_on(ranks, shares, ranks.waits.until_s - ranks.waits.start_s)
    direct_s = shares.of_activities * costs_s
    by_rank_s = np.stack([np.bincount(ranks.waits.cause, row, ranks.num_ranks) for row in direct_s])
    total_s = by_rank_s.sum()
    found = []
    for which in np.argsort(-by_rank_s.sum(axis=1), kind="stable").tolist():
        seconds = float(by_rank_s[which].sum())
        if seconds <= LEAST_SHARE * total_s:
            break
        pattern = pattern_of(ranks, which, direct_s[which])
        found.append(Cause(ranks.activities[which], seconds, tuple(by_rank_s[which].tolist()), pattern))
    disturbed = ranks.lost.warnings if ranks.lost is not None else ()
    return Causes(
        tuple(found), ranks.waited_s, float(total_s), ranks.seconds, ranks.num_ranks, disturbed, ranks.crowded
    )


@dataclass(frozen=True)
class Shares:
    """How each wait divides among causes.

    `of_activities`: shape (activities, waits), the late rank's activities. `of_waits`: shape (waits,), its own waits.
    Both add up to 1 per wait, or to 0 where the late rank did nothing that takes time. `from_s`, `to_s`: on the axis of
    all waits of all ranks laid end to end, those of the late rank between the meeting and the end of the wait.
    """

    of_activities: Array
    of_waits: Array
    from_s: Array
    to_s: Array


def excesses(ranks: RankActivity, left: tuple[float, float] = (1.0, 1.0)) -> Shares:
    """Return how each wait divides among the activities, and waits, in which the late rank spent more time.

    `left`: shares that count of what others, and other ranks, took of the ranks' cores.
    """
    waits, met_s = ranks.waits, ranks.met_s
    count = len(waits.rank)
    more = np.zeros((len(ranks.activities), count), "f4")
    own_s, from_s, to_s, base_s = np.zeros(count), np.zeros(count), np.zeros(count), 0.0
    for rank in range(ranks.num_ranks):
        activities, waited = ranks.of_rank(rank)
        late, early = np.flatnonzero(waits.cause == rank), np.flatnonzero(waits.rank == rank)
        late = late[np.argsort(waits.until_s[late], kind="stable")]
        for row, intervals in zip(more, activities, strict=True):
            row[late] += _between(intervals, met_s[late], waits.until_s[late])
            row[early] -= _between(intervals, met_s[early], waits.start_s[early])
        from_s[late] = waited.seconds_until(met_s[late])
        to_s[late] = waited.seconds_until(waits.until_s[late])
        own_s[late] += to_s[late] - from_s[late]
        own_s[early] -= _between(waited, met_s[early], waits.start_s[early])
        from_s[late] += base_s
        to_s[late] += base_s
        base_s += float(waited.before_s[-1])
    np.maximum(more, 0.0, out=more)
    if ranks.lost is not None:
        _put_down_to_lost_cores(ranks.lost, waits, more, left)
    own_s = np.where(to_s > from_s, np.maximum(own_s, 0.0), 0.0)
    total = more.sum(axis=0, dtype="f8") + own_s
    scale = np.divide(1.0, total, out=np.zeros(count), where=total > 0)
    return Shares((more * scale).astype("f4"), own_s * scale, from_s, to_s)


def _put_down_to_lost_cores(lost: Disturbance, waits: Waits, more: Array, left: tuple[float, float]) -> None:
    """Put as much of the late ranks' excess down to others, and to other ranks, as these took of the ranks' cores.

    Others are the last row but one, other ranks the last.

    The kernel reports lost time by intervals, each longer than most waits. In an interval, others are the cause of the
    same share of each wait for a rank: what the rank lost over what the ranks that waited for it most waited.
    """
    more[-2:] = 0.0
    excess_s = more.sum(axis=0, dtype="f8")
    about = waits.cause, waits.rank, waits.until_s, excess_s
    taken_s = lost.lost_s * left[0], lost.crowded_s * left[1]
    shares = np.stack([lost.shares(lost_s, *about) for lost_s in taken_s])
    shares /= np.maximum(shares.sum(axis=0), 1.0)
    more *= (1.0 - shares.sum(axis=0)).astype("f4")
    more[-2:] = shares * excess_s


def _between(intervals: Any, from_s: Array, to_s: Array) -> Array:
    found: Array = intervals.seconds_until(to_s) - intervals.seconds_until(from_s)
    return found


def passed_on(ranks: RankActivity, shares: Shares, weight_s: Array) -> Array:
    """Return the cost of each wait: its weight, and that of the waits that it caused, directly or along a chain."""
    waits = ranks.waits
    bounds_s = np.concatenate([[0.0], np.cumsum(waits.until_s - waits.start_s)])  # waits are ordered by rank and start
    length_s = shares.to_s - shares.from_s
    rate = np.divide(shares.of_waits, length_s, out=np.zeros(len(length_s)), where=length_s > 0)
    spread, costs_s, fresh_s = _Spread(shares.from_s, shares.to_s, bounds_s), weight_s, weight_s
    for _ in range(MOST_PASSES):
        fresh_s = spread.over_waits(fresh_s * rate)
        costs_s = costs_s + fresh_s
        if fresh_s.sum() <= LEFT_SHARE * weight_s.sum():
            break
    return costs_s


class _Spread:
    """Adds up, over the waits laid end to end, what many ranges contribute at a constant rate each."""

    def __init__(self, from_s: Array, to_s: Array, bounds_s: Array) -> None:
        self.sides = [
            (order, side_s[order], np.searchsorted(side_s[order], bounds_s, side="right"))
            for side_s in (from_s, to_s)
            for order in [np.argsort(side_s, kind="stable")]
        ]
        self.bounds_s = bounds_s

    def over_waits(self, rate: Array) -> Array:
        """Return the sum for each wait."""
        parts = []
        for order, side_s, at in self.sides:
            sums, moments = (np.concatenate([[0.0], np.cumsum(x)]) for x in (rate[order], rate[order] * side_s))
            parts.append(sums[at] * self.bounds_s - moments[at])
        found: Array = np.maximum(np.diff(parts[0] - parts[1]), 0.0)
        return found
