"""unexplained: the largest cause of waits, as a finding of its own, where no change that a replay knows removes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.cause_patterns import Pattern
from dovetail.advise.causes import Cause
from dovetail.advise.finding import Finding
from dovetail.advise.remedy import CAUSE, duration, gap_s
from dovetail.advise.replay import changed_s
from dovetail.advise.roots import Roots
from dovetail.trace.analysis.replay_model import ReplayModel, Step

Array = NDArray[Any]
LEAST_SHARE = 0.05  # share of the makespan that the cause must cost, and of a rank's time, on average, that waits take
MOSTLY = 0.5  # a remedy that saves this share of what the cause costs explains it


def unexplained(
    model: ReplayModel, findings: Sequence[Finding], replayed_s: float, roots: Roots | None
) -> Iterator[Finding]:
    """Yield the largest cause of waits, with what it costs at most, if no finding saves about as much.

    It saves 0 s: no replay shows how much of it can be saved; not more than ranks wait for it.
    """
    cause = roots.worst() if roots is not None and len(model.steps) > 1 else None
    if cause is None or roots is None:
        return
    ranks, place = late_ranks(cause.by_rank_s, cause.pattern), cause.activity.place
    if cause.seconds / len(model.steps) < LEAST_SHARE * replayed_s:
        return
    bound_s = min(replayed_s - changed_s(without_cause(model, cause, ranks, roots)), cause.seconds)
    if bound_s < LEAST_SHARE * replayed_s or any(it.saves_s >= MOSTLY * bound_s for it in findings):
        return
    evidence = f"{cause.pattern.words}: others wait {duration(cause.seconds)} for this work"
    action = (
        "no change that a replay knows ends these waits: make this work shorter, share it, or do it after others have "
    )
    action += "what they wait for (the bound is without it)"
    about = CAUSE, place, evidence, action, 0.0, "work", (cause.rank, place), "medium", bound_s
    yield Finding(*about, is_sure=False)


def without_cause(model: ReplayModel, cause: Cause, ranks: set[int], roots: Roots) -> ReplayModel:
    """Return the model in which these ranks do the work of a cause in no time."""
    return model.with_steps(
        [
            _quick(steps, *roots.work_of(cause, rank, steps)) if rank in ranks else steps
            for rank, steps in enumerate(model.steps)
        ]
    )


def _quick(steps: Sequence[Step], until_start_s: Array, until_end_s: Array) -> list[Step]:
    """Return a rank's steps without the work that was done, by the trace, before each one's call.

    The arrays have, by step, the seconds of that work up to the begin, and up to the end, of its call.
    """
    before_s = np.concatenate([[0.0], until_end_s[:-1]])
    less_s = np.minimum(np.maximum(until_start_s - before_s, 0.0), [gap_s(step) for step in steps])
    return [step._replace(seconds=step.seconds - less) for step, less in zip(steps, less_s.tolist(), strict=True)]


def late_ranks(by_rank_s: Sequence[float], pattern: Pattern) -> set[int]:
    """Return the ranks that the pattern of a cause names."""
    least_s = 0.1 * sum(by_rank_s) if pattern.moves or max(by_rank_s) < 0.8 * sum(by_rank_s) else max(by_rank_s)
    return {rank for rank, seconds in enumerate(by_rank_s) if seconds >= least_s}
