"""Job: Programs to be run in turn on one set of ranks, and what came of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Program, Workload
from dovetail.run.load import Load
from dovetail.run.options import RunOptions
from dovetail.timeline import Timeline


@dataclass(frozen=True)
class Variant:
    """One Program of a job. With `check`, all that its post-conditions name is held against float64, after a run of its
    own; where there is a plain program to check `against`, with its workload, all that this one leaves in its outputs,
    its kernels run by their references."""

    name: str
    program: Program
    workload: Workload
    options: RunOptions = field(default_factory=RunOptions)
    check: bool = False
    against: tuple[Program, Workload] | None = None


@dataclass(frozen=True)
class Job:
    """Variants run interleaved (a b c, c a b, …): at least `rounds` rounds after `warmup`, more where some were
    disturbed, and none begun after `budget_s` seconds. `seed` makes the random inputs."""

    variants: tuple[Variant, ...]
    rounds: int = 5
    warmup: int = 1
    seed: int = 0
    budget_s: float = 120.0
    keep_all: bool = False  # keep the Timeline of every round, not of the median one alone

    @property
    def num_ranks(self) -> int:
        return self.variants[0].program.num_ranks


@dataclass(frozen=True)
class Outcome:
    """What one variant did. `seconds`: each round's makespan, the slowest rank's from its own start, of one run.

    `timelines`: that of the median round, or of every round; none without spans. `max_rel_error`: against a
    higher-precision reference, None where not asked. `num_wrong`: elements, on all ranks, beyond their error bound.
    """

    name: str
    seconds: tuple[float, ...]
    timelines: tuple[Timeline, ...]
    max_rel_error: float | None = None
    tolerance: float | None = None
    num_wrong: int | None = None

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    def over(self, other: Outcome) -> float:
        """The median, over the rounds of one job, of this variant's seconds over another's: what slows a whole round
        slows both."""
        return float(np.median(np.divide(self.seconds, other.seconds)))

    @property
    def is_wrong(self) -> bool:
        """Whether its results were checked, and wrong."""
        if self.num_wrong is not None or self.max_rel_error is None or self.tolerance is None:
            return bool(self.num_wrong)
        return not self.max_rel_error <= self.tolerance

    @property
    def spread(self) -> float:
        """Half the interquartile range over the median: 0.01 is 1 %."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float((high - low) / 2 / self.median_s) if self.median_s else 0.0


@dataclass(frozen=True)
class JobResult:
    """Outcomes in the order of the job's variants, and the facts of the machine that ran it.

    `rounds`: those that the outcomes hold; `disturbed`: of all that ran, those that were repeated, or kept for want of
    better ones. `load`: what others took of the ranks' cores from the first to the last.
    """

    outcomes: tuple[Outcome, ...]
    rounds: int
    disturbed: int
    facts: dict[str, Any] = field(default_factory=dict)
    load: Load = field(default_factory=Load)

    def __getitem__(self, name: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.name == name)


Seconds = NDArray[np.float64]


def disturbed_rounds(seconds: Seconds) -> NDArray[np.bool_]:
    """Rounds (axis 0) in which some variant (axis 1) took far longer than its own median.

    Far is 5 scaled median absolute deviations, and at least 15 %: steady noise is a spread, not a disturbance.

    >>> disturbed_rounds(np.array([[1.0], [1.02], [0.98], [3.0], [1.01]])).tolist()
    [False, False, False, True, False]
    """
    median = np.median(seconds, axis=0)
    deviation = 1.4826 * np.median(np.abs(seconds - median), axis=0)
    return np.asarray((seconds > median + np.maximum(5 * deviation, 0.15 * median)).any(axis=1))


class Rounds(NamedTuple):
    """Seconds by round and variant, of the rounds kept; how many were disturbed; and which were kept, of all that ran,
    those to warm up included."""

    seconds: Seconds
    disturbed: int
    kept: list[int]


def run_rounds(
    job: Job,
    run_one: Callable[[Variant, int], float],
    now_s: Callable[[], float],
    loaded: Callable[[], NDArray[np.bool_]] | None = None,
) -> Rounds:
    """Drive the rounds: `run_one(variant, round)` returns the makespan; `loaded`, asked after each round, says of every
    one so far whether other programs or the hypervisor disturbed it. They and `now_s` answer alike on all ranks.

    Each round takes the variants in another order, the same on every rank: what one leaves behind (a link's spare
    tokens, a warm cache) favours no other. Disturbed rounds are repeated, at most `rounds` of them, and a disturbed
    warm-up once. Where fewer than three were left, those disturbed from outside stay in, and then the outliers too: the
    disturbance is the machine's own. Round numbers under 0 are warm-up.
    """
    begin, rows, outside, warm = now_s(), list[list[float]](), np.zeros(0, np.bool_), 0
    ask = loaded or (lambda: np.zeros(warm + len(rows), np.bool_))
    while warm < job.warmup or (warm == job.warmup and outside[-1:].any() and now_s() - begin < job.budget_s):
        run_round(job, run_one, min(warm - job.warmup, -1))
        warm, outside = warm + 1, ask()
    for index in range(2 * job.rounds):
        rows.append(run_round(job, run_one, index))
        outside = ask()[warm:]
        outliers = disturbed_rounds(np.array(rows))
        clean = ~(outliers | outside)
        if clean.sum() >= job.rounds or now_s() - begin > job.budget_s:
            break
    enough = min(3, job.rounds)
    kept = next((good for good in (clean, ~outliers) if good.sum() >= enough), np.ones_like(clean))
    return Rounds(np.array(rows)[kept], int((~clean).sum()), (warm + np.flatnonzero(kept)).tolist())


def run_round(job: Job, run_one: Callable[[Variant, int], float], index: int) -> list[float]:
    """Seconds of each variant in one round."""
    row = [0.0] * len(job.variants)
    for place in np.random.default_rng([job.seed, index + job.warmup]).permutation(len(row)):
        row[place] = run_one(job.variants[place], index)
    return row
