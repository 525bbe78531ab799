"""measure: run schedules interleaved with serial, in jobs that share a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dovetail.core import RunError
from dovetail.ir import Kind, Operator, Program, Schedule
from dovetail.run.executor import Executor
from dovetail.run.job import EACH_S, Job, JobResult, Outcome, Variant
from dovetail.run.options import RunOptions

MOST_REPEATS = 5000  # runs per timing
HOPE = 0.4  # assumed ratio of real to predicted time: too many runs per timing cost less than too few
HEAT_ROUNDS = 4
LAUNCHES = 3  # launches of the ranks that share the rounds of a final: the speed of calls changes with each launch
MOST_ROUNDS = 25  # of a final whose rounds are short
WORTH_S = 1.5  # seconds that a final may spend on more rounds than asked for
TOGETHER = 24  # most variants in one job of short runs
SHORT_S = 2e-3  # runs below this share a job with those of other entries
LONG_S = 0.25  # longer runs without computation need no round to warm up
START_S = 1.0  # approximate seconds to start a job
STALL_S = 30.0  # seconds without progress that count as a stall; long, because ranks that share few cores are slow
PATIENCE = 4.0  # a stall lasts at least this many times the slowest run, because ranks wait for a rank that computes
MOST_FAILURES = 4  # attempts at a job that fails
LEAST_HEAT = 2  # fewer schedules than this go to the final without a heat


@dataclass(frozen=True)
class Entry:
    """One operator to choose a schedule for.

    Attributes
    ----------
    name : str
        Name in notes and progress.
    operator, ranks : Operator, int
        What to compute, and on how many ranks.
    serial : Schedule
        The schedule to beat.
    predicted : mapping
        Schedule → predicted seconds, best first.
    beside : mapping
        Name → variant that the final measures, too.
    """

    name: str
    operator: Operator
    ranks: int
    serial: Schedule
    predicted: Mapping[Schedule, float]
    beside: Mapping[str, Variant] = field(default_factory=dict)

    @property
    def listed(self) -> tuple[Schedule, ...]:
        """Return the schedules other than serial, best predicted first."""
        return tuple(each for each in self.predicted if each != self.serial)

    @property
    def predicted_s(self) -> float:
        """Return seconds of the best predicted schedule."""
        return min(self.predicted.values(), default=EACH_S)

    @property
    def longest_s(self) -> float:
        """Return seconds of the slowest predicted schedule."""
        return max(self.predicted.values(), default=EACH_S)

    @cached_property
    def computes(self) -> bool:
        """Return whether the operator has computations, not only communication."""
        return bool((self.program(self.serial).kind == Kind.compute).any())

    def program(self, schedule: Schedule) -> Program:
        """Return the program of a schedule; cached."""
        if schedule.parameters not in self._programs:
            self._programs[schedule.parameters] = self.operator.program(schedule, self.ranks)
        return self._programs[schedule.parameters]

    def variant(self, schedule: Schedule, repeats: int = 1, *, spans: bool = False, check: bool = False) -> Variant:
        """Return the job variant that runs a schedule; `repeats`: runs per timing."""
        program = self.program(schedule)
        stall_s = max(STALL_S if not self.computes else RunOptions.stall_s, PATIENCE * self.longest_s)
        options = RunOptions.of(schedule, repeats=repeats, spans=spans, stall_s=stall_s)
        about = f"{self.name}: {schedule}", program, self.operator.workload(program, schedule), options, check
        plain = self.operator.reference(schedule, self.ranks) if check else None
        return Variant(*about, None if plain is None else (plain, self.operator.workload(plain, schedule)))

    @cached_property
    def _programs(self) -> dict[object, Program]:
        return {}


Outcomes = dict[int, dict[Schedule, Outcome]]  # by entry


@dataclass(frozen=True)
class Measurer:
    """Measures schedules of `entries` on `executor`. Entries are named by their index.

    `fastest_s`: entry → seconds of its fastest schedule so far. `failed`: (entry, family) → error; a family that made
    a job fail is not run again.
    """

    entries: Sequence[Entry]
    executor: Executor
    seed: int
    rounds: int
    fastest_s: dict[int, float] = field(default_factory=dict)
    failed: dict[tuple[int, str], str] = field(default_factory=dict)

    def run_s(self, at: int) -> float:
        """Return measured seconds of a run, else predicted ones times measured / predicted of the entry before."""
        if at in self.fastest_s:
            return self.fastest_s[at]
        before = max((other for other in self.fastest_s if other < at), default=None)
        scale = 1.0 if before is None else self.fastest_s[before] / max(self.entries[before].predicted_s, 1e-9)
        return self.entries[at].predicted_s * min(max(scale, 0.5), 10.0)

    def repeats(self, at: int) -> int:
        """Return the runs per timing: one if the entry computes, else as many as fill the timing."""
        if self.entries[at].computes:
            return 1
        return repeats_worth(self.fastest_s.get(at) or HOPE * self.run_s(at))

    def heat_s(self, group: Sequence[int], schedules: int | None = None) -> float:
        """Estimate seconds of a heat with `schedules` schedules of each entry (default: all)."""
        counts = [len(self.entries[at].listed[:schedules]) for at in group]
        return START_S + (HEAT_ROUNDS + 1) * self._round_s(group, counts)

    def heat(self, group: Sequence[int], limit_s: float) -> Outcomes:
        """Measure serial and the best predicted schedules that fit the limit; none if fewer than LEAST_HEAT fit."""
        most = max(len(self.entries[at].listed) for at in group)
        count = next((n for n in range(most, 0, -1) if self.heat_s(group, n) <= limit_s), 0)
        if count < min(LEAST_HEAT, most):
            return {at: {} for at in group}
        found, _ = self.measure({at: self.entries[at].listed[:count] for at in group}, HEAT_ROUNDS, limit_s, self.seed)
        self.note(found)
        return found

    def note(self, found: Outcomes) -> None:
        """Update `fastest_s` with new outcomes."""
        for at, outcomes in found.items():
            best_s = min((o.median_s for o in outcomes.values()), default=float("inf"))
            self.fastest_s[at] = min(best_s, self.fastest_s.get(at, best_s))

    def final_s(self, group: Sequence[int], schedules: int) -> float:
        """Estimate seconds of a final."""
        rounds = -(-self.rounds // LAUNCHES) + 2  # one to warm up, one to check
        beside = [schedules + len(self.entries[at].beside) for at in group]
        return LAUNCHES * (START_S + rounds * self._round_s(group, beside))

    def final(self, asked: Mapping[int, Sequence[Schedule]], limit_s: float) -> list[tuple[Outcomes, JobResult]]:
        """Interleave the given schedules and serial, in several launches; check results in the first."""
        counts = [len(each) + len(self.entries[at].beside) for at, each in asked.items()]
        round_s = self._round_s(list(asked), counts)
        enough = -(-rounds_worth(self.rounds, round_s) // LAUNCHES)
        rounds = min(max(int((limit_s / LAUNCHES - START_S) / round_s) - 1, 1), enough)
        return [
            self.measure(asked, rounds, limit_s / LAUNCHES, self.seed + 1 + launch, final=True, check=launch == 0)
            for launch in range(LAUNCHES)
        ]

    def measure(
        self,
        asked: Mapping[int, Sequence[Schedule]],
        rounds: int,
        limit_s: float,
        seed: int,
        *,
        final: bool = False,
        check: bool = False,
    ) -> tuple[Outcomes, JobResult]:
        """Measure serial and the given schedules of each entry interleaved in one job; drop schedules that fail.

        A final also measures `Entry.beside`; those outcomes are in the job's result, by name. Raises RunError if serial
        fails, if the error names no schedule, or after MOST_FAILURES attempts.
        """
        for _ in range(MOST_FAILURES):
            runs = {
                (at, schedule): self.entries[at].variant(
                    schedule, self.repeats(at), spans=check and self.entries[at].computes, check=check
                )
                for at, schedules in asked.items()
                for schedule in dict.fromkeys([self.entries[at].serial, *schedules])
                if (at, schedule.family) not in self.failed
            }
            beside = [each for at in asked for each in self.entries[at].beside.values()] if final else []
            warmup = int(any(self.entries[at].computes for at in asked) or max(map(self.run_s, asked)) < LONG_S)
            try:
                named = (replace(each, name=f"{i} {each.name}") for i, each in enumerate(runs.values()))
                result = self.executor.execute(Job((*named, *beside), rounds, warmup, seed, limit_s))
            except RunError as error:
                self._note_failure(runs, error)
                continue
            found: Outcomes = {at: {} for at in asked}
            for (at, schedule), outcome in zip(runs, result.outcomes, strict=False):
                found[at][schedule] = outcome
            return found, result
        raise RunError(f"{MOST_FAILURES} jobs failed, each for another schedule", found="; ".join(self.failed.values()))

    def _note_failure(self, runs: Mapping[tuple[int, Schedule], Variant], error: RunError) -> None:
        names = {f"variant '{i} {each.name}'": key for i, (key, each) in enumerate(runs.items())}
        guilty = [key for name, key in names.items() if name in error.what]
        if not guilty or guilty[0][1] == self.entries[guilty[0][0]].serial:
            raise error
        at, schedule = guilty[0]
        self.failed[at, schedule.family] = error.what

    def _round_s(self, group: Sequence[int], schedules: Sequence[int]) -> float:
        timings = [max(self.run_s(at) * self.repeats(at), EACH_S) for at in group]
        runs = (each * (count + 1) for each, count in zip(timings, schedules, strict=True))
        return sum(runs)


def rounds_worth(rounds: int, round_s: float) -> int:
    """Return the number of rounds: `rounds`, or more if they take little time, since more rounds show smaller gains.

    >>> rounds_worth(9, 10.0), rounds_worth(9, 0.1), rounds_worth(9, 1e-4)
    (9, 15, 25)
    """
    return max(rounds, min(MOST_ROUNDS, int(WORTH_S / max(round_s, 1e-9))))


def repeats_worth(seconds: float) -> int:
    """Return the number of runs that fill a timing, given the seconds of one.

    >>> repeats_worth(1.0), repeats_worth(1e-4), repeats_worth(1e-9)
    (1, 40, 5000)
    """
    return max(1, min(MOST_REPEATS, round(EACH_S / max(seconds, 1e-9))))


def groups(entries: Mapping[int, tuple[int, float]]) -> list[list[int]]:
    """Group entries into jobs. Short runs share a job, because starting a job takes time; each long run gets its own.

    `entries`: entry → (number of variants, seconds of a run).

    >>> groups({0: (9, 1e-5), 1: (9, 2e-5), 2: (9, 5e-5), 3: (9, 1e-2), 4: (9, 4e-2)})
    [[0, 1], [2], [3], [4]]
    """
    found: list[list[int]] = []
    room = 0
    for at, (count, seconds) in sorted(entries.items()):
        if seconds >= SHORT_S or count > room:
            found.append([])
            room = TOGETHER if seconds < SHORT_S else 0
        found[-1].append(at)
        room -= count
    return found


def over(outcome: Outcome, base: Outcome) -> float:
    """Return the median, over rounds, of the ratio of `outcome` to `base`, measured in the same job."""
    return float(np.median(np.divide(outcome.seconds, base.seconds)))


class Clock:
    """A budget of seconds, shared among groups of entries."""

    def __init__(self, budget_s: float) -> None:
        self.begin_s, self.budget_s = time.monotonic(), budget_s

    @property
    def spent(self) -> float:
        """Return the share of the budget that has passed, 0 to 1."""
        return min((time.monotonic() - self.begin_s) / max(self.budget_s, 1e-9), 1.0)

    def shares(
        self, groups: Sequence[list[int]], cost_s: Callable[[list[int]], float], part: float
    ) -> Iterator[tuple[list[int], float]]:
        """Yield each group with a fair share of what is left of `part` of the budget; the first group always."""
        for place, group in enumerate(groups):
            left_s = self.begin_s + part * self.budget_s - time.monotonic()
            if place and left_s <= 0:
                return
            yield group, fill([cost_s(each) for each in groups[place:]], max(left_s, 0.0))[0]


def fill(costs: Sequence[float], total: float) -> list[float]:
    """Share `total` fairly (max-min): each gets its cost, or an equal share of what the cheaper ones leave.

    >>> fill([1, 1, 10, 20], 12), fill([1, 2], 12)
    ([1, 1, 5.0, 5.0], [1, 2])
    """
    given = [0.0] * len(costs)
    for done, place in enumerate(sorted(range(len(costs)), key=lambda i: costs[i])):
        given[place] = min(costs[place], total / (len(costs) - done))
        total -= given[place]
    return given
