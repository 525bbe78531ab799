"""The reference of `advise.causes`: one wait after the other, the latest first, and sums written out."""

from __future__ import annotations

from dovetail.advise.rank_activity import Intervals, RankActivity


def seconds(intervals: Intervals, start_s: float, end_s: float) -> float:
    pairs = zip(intervals.start_s.tolist(), intervals.length_s.tolist(), strict=True)
    return sum(max(min(begin + length, end_s) - max(begin, start_s), 0.0) for begin, length in pairs)


def costs(ranks: RankActivity) -> dict[tuple[int, int], float]:
    """Return the seconds of waits that each (rank, activity) caused."""
    waits, found = ranks.waits, dict[tuple[int, int], float]()
    of_rank = [ranks.of_rank(rank) for rank in range(ranks.num_ranks)]
    start, until = waits.start_s.tolist(), waits.until_s.tolist()
    cost = [b - a for a, b in zip(start, until, strict=True)]
    for j in sorted(range(len(cost)), key=lambda j: -until[j]):
        a, b, met = int(waits.rank[j]), int(waits.cause[j]), float(ranks.met_s[j])
        more = [
            max(seconds(late, met, until[j]) - seconds(early, met, start[j]), 0.0)
            for late, early in zip(of_rank[b][0], of_rank[a][0], strict=True)
        ]
        waited = seconds(of_rank[b][1], met, until[j])
        own = max(waited - seconds(of_rank[a][1], met, start[j]), 0.0) if waited > 0 else 0.0
        total = sum(more) + own
        if total <= 0:
            continue
        for which, value in enumerate(more):
            found[b, which] = found.get((b, which), 0.0) + cost[j] * value / total
        for k in range(len(cost)):
            if own > 0 and waits.rank[k] == b:
                common = max(min(until[k], until[j]) - max(start[k], met), 0.0)
                cost[k] += cost[j] * own / total * common / waited
    return found
