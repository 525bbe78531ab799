"""cause_patterns: which ranks are late, and when: one rank always, ranks by turns, every s-th time, ever more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.rank_activity import RankActivity

Array = NDArray[Any]
MOSTLY = 0.8  # share of the waits, or of the times, that makes a pattern
GROWS = 2.0  # waits of the last third over those of the first
FEW = 6  # fewer times show no pattern in time
DOING = {"work": "works", "io": "reads or writes files", "pickle": "pickles objects", "call": "is in MPI"}
DOING |= {"poll": "pauses between polls", "start": "starts", "stolen": "loses its core to others"}
DOING |= {"crowded": "loses its core to other ranks"}
SEVERAL = {"works": "work", "pauses": "pause", "pickles": "pickle", "starts": "start", " is ": " are "}
SEVERAL |= {"reads or writes": "read or write", "loses its core": "lose their cores"}


@dataclass(frozen=True)
class Pattern:
    """Who was late and when.

    Attributes
    ----------
    words : str
        In words.
    moves : bool
        Whether different ranks were late at different times.
    every : int
        The waits come at every n-th time only; 1: at most times.
    grows : bool
        Whether the waits grow along the run.
    times : int
        How often the late ranks did this.
    confidence : str
        "high", "medium" or "low": by how often the same was seen.
    """

    words: str
    moves: bool = False
    every: int = 1
    grows: bool = False
    times: int = 0
    confidence: str = "low"


def pattern_of(ranks: RankActivity, which: int, cost_s: Array) -> Pattern:
    """Return the pattern of one activity's costs, given by wait.

    The n-th time of an activity on a rank is the n-th of the rank's stretches between two calls that may wait for
    others in which the activity occurs. Calls that do not wait, as the C library's I/O, do not divide a stretch.
    """
    kind = ranks.activities[which].kind
    series = _series(ranks, which, cost_s)
    by_rank, times = series.sum(axis=1), series.shape[1]
    leader, total_s = int(np.argmax(by_rank)), float(by_rank.sum())
    top, at_time = np.argmax(series, axis=0), series.sum(axis=0)
    counts = at_time > 0.1 * at_time.max(initial=0.0)
    is_one = by_rank[leader] >= MOSTLY * total_s
    moves = not is_one and int(np.count_nonzero(counts)) >= FEW and len(np.unique(top[counts])) > 1
    who = f"rank {leader}" if is_one else _several(by_rank) if not moves else "one rank at a time, not always the same,"
    every, grows = _period(at_time), _grows(at_time)
    words = f"{who} {DOING[kind]} longer"
    if not (is_one or moves):
        for one, several in SEVERAL.items():
            words = words.replace(one, several)
    words += f", every {every}th time" if every > 1 else ""
    words += ", more and more" if grows else ""
    seen = int(np.count_nonzero(counts))
    confidence = "high" if seen >= FEW and (is_one or moves) else "medium" if seen >= 3 else "low"
    return Pattern(words, moves, every, grows, times, confidence)


def _several(by_rank: Array) -> str:
    order = [int(rank) for rank in np.argsort(-by_rank, kind="stable") if by_rank[rank] > 0.1 * by_rank.sum()]
    return "ranks " + ", ".join(map(str, sorted(order[:8]))) + (" and others" if len(order) > 8 else "")


def _series(ranks: RankActivity, which: int, cost_s: Array) -> Array:
    """Return the costs by rank and time, of shape (ranks, times)."""
    nth = np.zeros(len(cost_s), "i8")
    chosen = cost_s > 0
    for rank in np.unique(ranks.waits.cause[chosen]).tolist():
        starts_s = ranks.of_rank(rank)[0][which].start_s
        at = np.flatnonzero(chosen & (ranks.waits.cause == rank))
        _, time_of = np.unique(ranks.stretches(rank, starts_s), return_inverse=True)  # ascending, as the starts are
        nth[at] = time_of[np.maximum(np.searchsorted(starts_s, ranks.waits.until_s[at]) - 1, 0)]
    times = int(nth.max(initial=-1)) + 1
    cell = ranks.waits.cause[chosen] * times + nth[chosen]
    return np.bincount(cell, cost_s[chosen], ranks.num_ranks * times).reshape(ranks.num_ranks, times)


def _period(at_time: Array) -> int:
    """Return the distance of the times that cost much, if most have the same; 1: none, or each costs as much.

    >>> _period(np.array([0, 0, 9.0] * 6)), _period(np.ones(20))
    (3, 1)
    """
    much = np.flatnonzero(at_time > 0.25 * np.percentile(at_time, 95)) if len(at_time) else at_time
    if len(much) < FEW:
        return 1
    apart, count = np.unique(np.diff(much), return_counts=True)
    best = int(np.argmax(count))
    return int(apart[best]) if count[best] >= MOSTLY * count.sum() else 1


def _grows(at_time: Array) -> bool:
    """Return whether the last third costs more than GROWS times the first, and the middle lies between.

    >>> _grows(np.arange(30.0)), _grows(np.ones(30))
    (True, False)
    """
    if len(at_time) < 3 * FEW:
        return False
    first, middle, last = (float(part.sum()) for part in np.array_split(at_time, 3))
    return last > GROWS * first and first <= middle <= last
