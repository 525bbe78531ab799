"""job: Programs to run interleaved on one set of ranks, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Program, Workload
from dovetail.run.load import Load
from dovetail.run.options import LEVELS, Level, RunOptions
from dovetail.timeline import Timeline

EACH_S = 4e-3  # a timing repeats short runs for about this many seconds


@dataclass(frozen=True)
class Variant:
    """One Program of a job.

    With `check`, an extra run compares all slots that post-conditions name with float64. With `against`, a reference
    program and its workload, it compares all outputs with those of that program, run with reference kernels."""

    name: str
    program: Program
    workload: Workload
    options: RunOptions = field(default_factory=RunOptions)
    check: bool = False
    against: tuple[Program, Workload] | None = None


@dataclass(frozen=True)
class Job:
    """Variants to run interleaved (a b c, c a b, …), with random inputs from `seed`.

    At least `rounds` rounds follow `warmup`, more if other processes disturbed some; none begins after `budget_s`
    seconds."""

    variants: tuple[Variant, ...]
    rounds: int = 5
    warmup: int = 1
    seed: int = 0
    budget_s: float = 120.0
    keep_all: bool = False  # keep the Timeline of every round, not only of the median one

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the programs."""
        return self.variants[0].program.num_ranks

    @property
    def level(self) -> Level:
        """The least level of thread support that MPI must have."""
        return max((variant.options.level for variant in self.variants), key=LEVELS.index)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one variant.

    `seconds`: makespan of one run in each round, from each rank's own start to its end, of the slowest rank.
    `timelines`: of the median round, or of every round; none without spans. `max_rel_error`: against a
    higher-precision reference; None if unchecked. `num_wrong`: elements beyond their error bound, over all ranks.
    """

    name: str
    seconds: tuple[float, ...]
    timelines: tuple[Timeline, ...]
    max_rel_error: float | None = None
    tolerance: float | None = None
    num_wrong: int | None = None

    @property
    def median_s(self) -> float:
        """Median of `seconds`."""
        return float(np.median(self.seconds))

    def over(self, other: Outcome) -> float:
        """Return the median over rounds of this variant's seconds divided by those of `other`, in the same job.

        A disturbance of a whole round slows both.
        """
        return float(np.median(np.divide(self.seconds, other.seconds)))

    @property
    def is_wrong(self) -> bool:
        """Whether results were checked and found wrong."""
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
    """Outcomes in the order of the job's variants, and facts of the hosts that ran it.

    `rounds`: rounds in the outcomes. `disturbed`: rounds that other processes disturbed, whether repeated or not.
    `load`: share of the ranks' cores that other processes took from the first round to the last. `exchange_s`: for each
    round, seconds in which ranks 0 and 1 exchange a word after it; NaN unless each rank has a core.
    """

    outcomes: tuple[Outcome, ...]
    rounds: int
    disturbed: int
    facts: dict[str, Any] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    exchange_s: tuple[float, ...] = ()

    def __getitem__(self, name: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.name == name)


Seconds = NDArray[np.float64]


def disturbed_rounds(seconds: Seconds) -> NDArray[np.bool_]:
    """Return the rounds (axis 0) in which some variant (axis 1) took far longer than its median.

    Far: more than 5 scaled median absolute deviations, and at least 15 %. Steady noise is a spread, not a disturbance.

    >>> disturbed_rounds(np.array([[1.0], [1.02], [0.98], [3.0], [1.01]])).tolist()
    [False, False, False, True, False]
    """
    median = np.median(seconds, axis=0)
    deviation = 1.4826 * np.median(np.abs(seconds - median), axis=0)
    return np.asarray((seconds > median + np.maximum(5 * deviation, 0.15 * median)).any(axis=1))


class Rounds(NamedTuple):
    """Seconds by round and variant of the rounds that count; the number of disturbed rounds; indices of the rounds that
    count, among all that ran (warm-up included)."""

    seconds: Seconds
    disturbed: int
    kept: list[int]


def run_rounds(
    job: Job,
    run_one: Callable[[Variant, int], float],
    now_s: Callable[[], float],
    loaded: Callable[[], NDArray[np.bool_]] | None = None,
) -> Rounds:
    """Run the rounds of a job.

    `run_one(variant, round)` returns a makespan in seconds. After each round, `loaded()` returns for every round so far
    whether other processes or the hypervisor disturbed it. Both, and `now_s`, return the same on all ranks.

    Each round permutes the variants, equally on every rank, so that no variant profits from what its predecessor leaves
    behind (burst credit of a link, a warm cache). Disturbed rounds are repeated, at most `rounds` of them, and a
    disturbed warm-up once. If fewer than three undisturbed rounds remain, disturbed rounds count, and then outliers,
    too: the disturbance is then the machine's own. Rounds numbered below 0 are warm-up.
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
    """Run one round; return the seconds of each variant."""
    row = [0.0] * len(job.variants)
    for place in np.random.default_rng([job.seed, index + job.warmup]).permutation(len(row)):
        row[place] = run_one(job.variants[place], index)
    return row
