"""arena: contenders run in turn with the library's own call, in jobs that share out a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.core import RunError
from dovetail.plan.contenders import Aim, Contender, workload
from dovetail.plan.selection import Choice
from dovetail.run.job import Executor, Job, JobResult, Outcome, Variant
from dovetail.run.options import RunOptions

BY_LIBRARY = Choice()
EACH_S = 4e-3  # a timing is of as many runs as fill this
MOST_REPEATS = 5000
HEAT_ROUNDS = 4
LAUNCHES = 3  # of the ranks anew, among which the rounds of a final are shared; calls change their speed with each
MOST_ROUNDS = 25
WORTH_S = 1.5  # of rounds more than asked for
TOGETHER = 24  # variants of one job, where they are short
SHORT_S = 2e-3  # runs below this share a job with those of other sizes
LONG_S = 0.25  # runs above this need no round to warm up
START_S = 1.0  # of a job, about
STALL_S = 30.0  # without progress; hosts that share few cores are slow to move
MOST_FAILURES = 4  # of one job
LEAST_HEAT = 2  # contenders; with fewer there is nothing to find out before the final
Outcomes = dict[int, dict[Choice, Outcome]]  # by size


@dataclass(frozen=True)
class Arena:
    """What is measured, and on what: the contenders at each size, and the ranks that run them.

    `fastest_s`: seconds of the fastest at each size, as far as measured. `failed`: what algorithm broke
    a job at which size, and how; it is not run there again.
    """

    aim: Aim
    executor: Executor
    seed: int
    rounds: int
    lists: dict[int, list[Contender]]
    fastest_s: dict[int, float] = field(default_factory=dict)
    failed: dict[tuple[int, str], str] = field(default_factory=dict)

    def run_s(self, size: int) -> float:
        """Seconds of one run at a size, about: as measured, else as predicted, scaled as the next smaller size was."""
        if size in self.fastest_s:
            return self.fastest_s[size]
        smaller = max((at for at in self.fastest_s if at < size), default=None)
        scale = 1.0 if smaller is None else self.fastest_s[smaller] / max(self._predicted_s(smaller), 1e-9)
        return self._predicted_s(size) * min(max(scale, 0.5), 10.0)

    def repeats(self, size: int) -> int:
        """Runs of a timing: by what was measured, else by a hopeful guess, for too many cost less than too few."""
        return repeats_worth(self.fastest_s.get(size) or min(self.run_s(size), hoped_s(self.aim, size)))

    def heat_s(self, group: Sequence[int], contenders: int | None = None) -> float:
        """What a heat takes, about, with so many contenders at each size (all of them unless said)."""
        counts = [len(self.lists[size][:contenders]) for size in group]
        return START_S + (HEAT_ROUNDS + 1) * self._round_s(group, counts)

    def heat(self, group: Sequence[int], limit_s: float) -> Outcomes:
        """As many of the best predicted as the time allows, and the library; nothing where it allows too few."""
        most = max(len(self.lists[size]) for size in group)
        count = next((n for n in range(most, 0, -1) if self.heat_s(group, n) <= limit_s), 0)
        if count < min(LEAST_HEAT, most):
            return {size: {} for size in group}
        asked = {size: [each.choice for each in self.lists[size][:count]] for size in group}
        found, _ = self.measure(asked, HEAT_ROUNDS, limit_s, self.seed)
        self.fastest_s.update({size: min(o.median_s for o in found[size].values()) for size in group})
        return found

    def final_s(self, group: Sequence[int], contenders: int) -> float:
        """What a final takes, about."""
        rounds = -(-self.rounds // LAUNCHES) + 2  # one to warm up, one to check
        return LAUNCHES * (START_S + rounds * self._round_s(group, [contenders] * len(group)))

    def final(self, asked: Mapping[int, Sequence[Choice]], limit_s: float) -> tuple[list[Outcomes], list[JobResult]]:
        """The choices asked for and the library, in turn, in every launch; results are checked in the first."""
        round_s = self._round_s(list(asked), [len(choices) for choices in asked.values()])
        enough = -(-rounds_worth(self.rounds, round_s) // LAUNCHES)
        rounds = min(max(int((limit_s / LAUNCHES - START_S) / round_s) - 1, 1), enough)
        ran = [
            self.measure(asked, rounds, limit_s / LAUNCHES, self.seed + 1 + launch, "posts" if launch == 0 else None)
            for launch in range(LAUNCHES)
        ]
        return [found for found, _ in ran], [result for _, result in ran]

    def measure(
        self, asked: Mapping[int, Sequence[Choice]], rounds: int, limit_s: float, seed: int, check: str | None = None
    ) -> tuple[Outcomes, JobResult]:
        """The library and the choices asked for at each size, all interleaved in one job; without those that break it.

        RunError where the library itself does, or nobody in particular.
        """
        for _ in range(MOST_FAILURES):
            runs = {
                (size, choice): variant(self.aim, choice, size, self.repeats(size), check)
                for size, choices in asked.items()
                for choice in [BY_LIBRARY, *choices]
                if (size, choice.algorithm) not in self.failed
            }
            warmup = int(max(map(self.run_s, asked)) < LONG_S)
            try:
                result = self.executor.execute(Job(tuple(runs.values()), rounds, warmup, seed, limit_s))
            except RunError as error:
                self._note_failure(runs, error)
                continue
            found: Outcomes = {size: {} for size in asked}
            for (size, choice), outcome in zip(runs, result.outcomes, strict=True):
                found[size][choice] = outcome
            return found, result
        raise RunError(f"jobs of {self.aim.collective} break again and again", found="; ".join(self.failed.values()))

    def _note_failure(self, runs: Mapping[tuple[int, Choice], Variant], error: RunError) -> None:
        guilty = [key for key, each in runs.items() if f"variant '{each.name}'" in error.what]
        if not guilty or guilty[0][1].is_library:
            raise error
        size, choice = guilty[0]
        self.failed[size, choice.algorithm] = error.what

    def predicted(self, size: int) -> dict[Choice, float]:
        return {each.choice: each.predicted_s for each in self.lists[size]}

    def _predicted_s(self, size: int) -> float:
        return min((each.predicted_s for each in self.lists[size]), default=EACH_S)

    def _round_s(self, group: Sequence[int], contenders: Sequence[int]) -> float:
        timings = [max(self.run_s(size) * self.repeats(size), EACH_S) for size in group]
        runs = (each * (count + 1) for each, count in zip(timings, contenders, strict=True))
        return sum(runs)


def variant(aim: Aim, choice: Choice, num_bytes: int, repeats: int = 1, check: str | None = None) -> Variant:
    """A choice at one size, as a job runs it: without stamps, the library by its blocking call."""
    program = aim.program(choice)
    blocking = choice.is_library and aim.collective != "all_to_next"
    how = RunOptions(slice_bytes=choice.slice_bytes, blocking=blocking)
    options = replace(how, repeats=repeats, spans=False, stall_s=STALL_S)
    return Variant(f"{num_bytes} {choice}", program, workload(aim, program, num_bytes), options, check)


def rounds_worth(rounds: int, round_s: float) -> int:
    """More rounds than asked for where they cost little, so that small gains can be told from noise.

    >>> rounds_worth(9, 10.0), rounds_worth(9, 0.1), rounds_worth(9, 1e-4)
    (9, 15, 25)
    """
    return max(rounds, min(MOST_ROUNDS, int(WORTH_S / max(round_s, 1e-9))))


def hoped_s(aim: Aim, num_bytes: int) -> float:
    """Seconds of a run where all goes well, to begin with: on one node, or across a good network.

    >>> [round(hoped_s(Aim("broadcast", 2, nodes), 1 << 20) * 1e6) for nodes in (1, 2)]
    [1059, 8449]
    """
    return 10e-6 + num_bytes * 1e-9 if aim.nodes == 1 else 60e-6 + num_bytes * 8e-9


def repeats_worth(seconds: float) -> int:
    """As many runs as fill a timing.

    >>> repeats_worth(1.0), repeats_worth(1e-4), repeats_worth(1e-9)
    (1, 40, 5000)
    """
    return max(1, min(MOST_REPEATS, round(EACH_S / max(seconds, 1e-9))))


def groups(sizes: Mapping[int, tuple[int, float]]) -> list[list[int]]:
    """Sizes that share a job, given how many variants each has and what a run takes: short runs together, for a job
    takes a while to start; long ones alone.

    >>> groups({64: (9, 1e-5), 1024: (9, 2e-5), 4096: (9, 5e-5), 1 << 20: (9, 1e-2), 4 << 20: (9, 4e-2)})
    [[64, 1024], [4096], [1048576], [4194304]]
    """
    found: list[list[int]] = []
    room = 0
    for size, (count, seconds) in sorted(sizes.items()):
        if seconds >= SHORT_S or count > room:
            found.append([])
            room = TOGETHER if seconds < SHORT_S else 0
        found[-1].append(size)
        room -= count
    return found


class Clock:
    """A budget of seconds, and how it is shared out."""

    def __init__(self, budget_s: float) -> None:
        self.begin_s, self.budget_s = time.monotonic(), budget_s

    @property
    def spent(self) -> float:
        """The share of the budget that is."""
        return min((time.monotonic() - self.begin_s) / max(self.budget_s, 1e-9), 1.0)

    def shares(
        self, groups: Sequence[list[int]], cost_s: Callable[[list[int]], float], part: float
    ) -> Iterator[tuple[list[int], float]]:
        """Groups in turn, each with its share of what is left of that part of the budget; the first one always."""
        for place, group in enumerate(groups):
            left_s = self.begin_s + part * self.budget_s - time.monotonic()
            if place and left_s <= 0:
                return
            yield group, fill([cost_s(each) for each in groups[place:]], max(left_s, 0.0))[0]


def fill(costs: Sequence[float], total: float) -> list[float]:
    """`total` shared so that each gets what it costs, or else as much as any other that does not.

    >>> fill([1, 1, 10, 20], 12), fill([1, 2], 12)
    ([1, 1, 5.0, 5.0], [1, 2])
    """
    given = [0.0] * len(costs)
    for done, place in enumerate(sorted(range(len(costs)), key=lambda i: costs[i])):
        given[place] = min(costs[place], total / (len(costs) - done))
        total -= given[place]
    return given
