"""contest: contenders and the library's own call measured in turn, size by size; the winners become a Selection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from dovetail.core import PlanError
from dovetail.machine import Machine
from dovetail.plan.contenders import Aim, Contender, shortlist, workload
from dovetail.plan.selection import Choice, Point, Selection, rows_of
from dovetail.run.job import Job, JobResult, Outcome, Variant
from dovetail.run.options import RunOptions

Say = Callable[[str, float], None]  # what is being done, and the share of the whole that is done
BY_LIBRARY = Choice()
EACH_S = 4e-3  # a timing is of as many runs as fill this
MOST_REPEATS = 500
FIRST_ROUNDS = 4  # of all contenders; the best of them meet the library once more
FINALISTS = 3
LAUNCHES = 2  # of the ranks anew, among which the rounds of a final are shared
MOST_ROUNDS = 25
WORTH_S = 1.5  # of rounds more than asked for
LEAST_GAIN = 0.01  # of the library's time
TWO_ERRORS = 3.7  # standard errors of a median, in half interquartile ranges over the root of the count
TOGETHER = 24  # variants of one job, where they are short
SHORT_S = 2e-3  # runs predicted below this share a job with those of other sizes
POSTS = "posts"
START_S = 0.5  # of a job, about


class Executor(Protocol):
    """Whatever runs a job on ranks."""

    def execute(self, job: Job) -> JobResult: ...


@dataclass(frozen=True)
class Judged:
    """What came of one size: the choice, its seconds and the library's in one interleaved job, and all that was tried.

    `tried`: medians in seconds of each choice measured, in the job that measured it first. `wrong`: elements that
    a choice computed wrongly, where it did; `max_rel_error` of the choice taken, against float64. `disturbed`: rounds
    that were repeated.
    """

    num_bytes: int
    choice: Choice
    point: Point
    tried: Mapping[Choice, float]
    predicted: Mapping[Choice, float] = field(default_factory=dict)
    max_rel_error: float | None = None
    wrong: Mapping[Choice, int] = field(default_factory=dict)
    disturbed: int = 0

    @property
    def speedup(self) -> float:
        return (self.point.library_s or self.point.measured_s) / self.point.measured_s

    def to_json(self) -> dict[str, Any]:
        rivals = [
            {**choice._asdict(), "predicted_s": self.predicted.get(choice), "measured_s": seconds}
            for choice, seconds in sorted(self.tried.items(), key=lambda item: item[1])
        ]
        head = {"num_bytes": self.num_bytes, **self.choice._asdict(), **self.point._asdict(), "speedup": self.speedup}
        wrong = {str(choice): count for choice, count in self.wrong.items()}
        checks = {"max_rel_error": self.max_rel_error, "wrong": wrong, "disturbed": self.disturbed}
        return {**head, **checks, "rivals": rivals}


@dataclass(frozen=True)
class Contest:
    """Every size judged, the facts of the machine that ran it, and what could not be done, in sentences."""

    aim: Aim
    judged: tuple[Judged, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def selection(self) -> Selection:
        picked = [(each.choice, each.point) for each in self.judged]
        facts = {**self.facts, "dtype": self.aim.dtype}
        return Selection(facts, rows_of(self.aim.collective, self.aim.ranks, self.aim.nodes, picked))


def contest(
    aim: Aim,
    sizes: Iterable[int],
    machine: Machine,
    executor: Executor,
    *,
    rounds: int = 9,
    budget_s: float = 120.0,
    seed: int = 0,
    most: int = 8,
    say: Say | None = None,
) -> Contest:
    """Find the fastest way to carry out `aim` at each of `sizes` (bytes).

    The best predicted are measured in turn, `FIRST_ROUNDS` times; the best of those, and the winners at neighbouring
    sizes, then meet the library's call for `rounds` rounds in LAUNCHES jobs and are held against float64. Ours is
    chosen only where it is right, and faster than the library's beyond their noise. Jobs begun end; none is begun after
    `budget_s` seconds, and sizes that were not reached are left out, with a note.
    """
    wanted = sorted({aim.bytes_of(size) for size in sizes})
    if not wanted:
        raise PlanError("no sizes to choose for", hint="at least one number of bytes")
    clock, tell = _Clock(budget_s), say or (lambda what, done: None)
    arena = _Arena(aim, machine, executor, seed, {size: shortlist(aim, size, machine, most) for size in wanted})
    tried: dict[int, dict[Choice, float]] = {}
    for group, limit_s in clock.shares(groups(arena.lists), arena.cost_s, 0.5):
        tell(f"contenders up to {group[-1]} bytes", 0.1 + 0.4 * clock.share)
        asked = {size: [each.choice for each in arena.lists[size]] for size in group}
        found, _ = arena.measure(asked, FIRST_ROUNDS, limit_s)
        tried |= {size: {choice: o.median_s for choice, o in found[size].items()} for size in group}
        arena.fastest_s.update({size: min(tried[size].values()) for size in group})
    judged, facts = [], dict[str, Any]()
    for group, limit_s in clock.shares(groups({size: arena.lists[size] for size in tried}), arena.cost_s, 1.0):
        tell(f"the best and the library's up to {group[-1]} bytes", 0.5 + 0.5 * clock.share)
        last = {size: finalists(size, tried) for size in group}
        enough = -(-rounds_worth(rounds, arena.round_s(group)) // LAUNCHES)
        ran = [arena.measure(last, enough, limit_s / LAUNCHES, POSTS if not k else None) for k in range(LAUNCHES)]
        facts = ran[0][1].facts
        disturbed = sum(result.disturbed for _, result in ran)
        for size in group:
            launches = [found[size] for found, _ in ran]
            judged.append(judge(size, launches, tried[size], arena.predicted(size), disturbed))
    return Contest(aim, tuple(judged), facts, tuple(_notes(wanted, judged)))


def _notes(wanted: Sequence[int], judged: Sequence[Judged]) -> Iterator[str]:
    missing = [str(size) for size in wanted if size not in {each.num_bytes for each in judged}]
    if missing:
        yield f"Not reached within the budget: {', '.join(missing)} bytes."
    for each in judged:
        for choice, count in each.wrong.items():
            yield f"{choice} computed {count} wrong elements at {each.num_bytes} bytes and was passed over."


def judge(
    num_bytes: int,
    launches: Sequence[Mapping[Choice, Outcome]],
    tried: Mapping[Choice, float],
    predicted: Mapping[Choice, float],
    disturbed: int = 0,
) -> Judged:
    """The fastest over all launches that is right, if it beats the library's call beyond the noise; else the library's.

    `tried`: medians of an earlier job, in which it must not have been slower than the library's either.
    """
    outcomes = {choice: pooled([launch[choice] for launch in launches]) for choice in launches[0]}
    library = outcomes[BY_LIBRARY]
    right = {c: o for c, o in outcomes.items() if not c.is_library and not o.num_wrong}
    best = min(right, key=lambda choice: right[choice].median_s, default=BY_LIBRARY)
    slower_before = tried.get(best, 0.0) > tried.get(BY_LIBRARY, math.inf)
    pairs = [(launch[best], launch[BY_LIBRARY]) for launch in launches]
    if best.is_library or slower_before or not beats(pairs):
        best = BY_LIBRARY
    taken = outcomes[best]
    point = Point(num_bytes, taken.median_s, library.median_s, predicted.get(best), taken.spread)
    known = {**{choice: outcome.median_s for choice, outcome in outcomes.items()}, **tried}
    wrong = {choice: outcome.num_wrong for choice, outcome in outcomes.items() if outcome.num_wrong}
    return Judged(num_bytes, best, point, known, predicted, taken.max_rel_error, wrong, disturbed)


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcomes of several launches as one; what was checked is the first's."""
    return replace(outcomes[0], seconds=tuple(s for outcome in outcomes for s in outcome.seconds))


def beats(pairs: Sequence[tuple[Outcome, Outcome]]) -> bool:
    """Whether ours is faster than the library's call beyond the noise, by the ratio of the two in each round, over all
    launches (pairs of ours, library); and not slower in any: libraries change their speed from launch to launch.

    >>> slow, fast = Outcome("a", (1.0, 1.1, 0.9), ()), Outcome("b", (0.8, 0.88, 0.72), ())
    >>> beats([(fast, slow)]), beats([(slow, fast)]), beats([(slow, slow)]), beats([(fast, slow)] * 3 + [(slow, fast)])
    (True, False, False, False)
    """
    ratios = [np.array(ours.seconds) / np.array(library.seconds) for ours, library in pairs]
    low, middle, high = np.percentile(np.concatenate(ratios), [25, 50, 75])
    count = sum(map(len, ratios))
    noise = max(LEAST_GAIN, TWO_ERRORS * (high - low) / 2 / math.sqrt(count))
    return bool(middle < 1.0 - noise and all(np.median(each) <= 1.0 for each in ratios))


def finalists(size: int, tried: Mapping[int, Mapping[Choice, float]]) -> list[Choice]:
    """The fastest of ours at one size, and those that won at the next smaller and larger one.

    >>> a, b, c = (Choice(name) for name in "abc")
    >>> [str(f) for f in finalists(2, {1: {c: 1.0}, 2: {Choice(): 1.0, a: 2.0, b: 3.0}, 3: {a: 1.0}})]
    ['a', 'b', 'c']
    """
    best = {at: sorted((s, c) for c, s in known.items() if not c.is_library) for at, known in tried.items()}
    near = [b if a == size else a for a, b in pairwise(sorted(tried)) if size in (a, b)]
    found = [choice for _, choice in best[size][: FINALISTS - 1]] + [best[at][0][1] for at in near if best[at]]
    return list(dict.fromkeys(found))


def groups(lists: Mapping[int, Sequence[Contender]]) -> list[list[int]]:
    """Sizes that share a job: short runs together, for a job takes seconds to start; long ones alone."""
    found: list[list[int]] = []
    room = 0
    for size, contenders in sorted(lists.items()):
        count = 1 + len(contenders)
        short = min((each.predicted_s for each in contenders), default=0.0) < SHORT_S
        if not short or count > room:
            found.append([])
            room = TOGETHER if short else 0
        found[-1].append(size)
        room -= count
    return found


@dataclass(frozen=True)
class _Arena:
    """What is measured, and on what: the contenders at each size, and the ranks that run them."""

    aim: Aim
    machine: Machine
    executor: Executor
    seed: int
    lists: dict[int, list[Contender]]
    fastest_s: dict[int, float] = field(default_factory=dict)  # measured so far, by size

    def measure(
        self, asked: Mapping[int, Sequence[Choice]], rounds: int, budget_s: float, check: str | None = None
    ) -> tuple[dict[int, dict[Choice, Outcome]], JobResult]:
        """The library and the choices asked for at each size, all interleaved in one job: outcomes by size."""
        by_size = {size: [BY_LIBRARY, *choices] for size, choices in asked.items()}
        variants = tuple(
            variant(self.aim, choice, size, repeats_worth(self.least_s(size)), check)
            for size, choices in by_size.items()
            for choice in choices
        )
        result = self.executor.execute(Job(variants, rounds=rounds, seed=self.seed + rounds, budget_s=budget_s))
        outcomes = iter(result.outcomes)
        return {size: {choice: next(outcomes) for choice in choices} for size, choices in by_size.items()}, result

    def least_s(self, size: int) -> float:
        """Seconds of the fastest at a size, as measured, else as predicted."""
        return self.fastest_s.get(size) or min((each.predicted_s for each in self.lists[size]), default=EACH_S)

    def cost_s(self, group: Sequence[int]) -> float:
        """About what a job of a group takes, to share a budget out."""
        return START_S + FIRST_ROUNDS * self.round_s(group)

    def round_s(self, group: Sequence[int]) -> float:
        return sum(len(self.lists[size]) * max(self.least_s(size), EACH_S) for size in group)

    def predicted(self, size: int) -> dict[Choice, float]:
        return {each.choice: each.predicted_s for each in self.lists[size]}


def variant(aim: Aim, choice: Choice, num_bytes: int, repeats: int = 1, check: str | None = None) -> Variant:
    """A choice at one size, as a job runs it: without stamps, the library by its blocking call."""
    program = aim.program(choice)
    blocking = choice.is_library and aim.collective != "all_to_next"
    options = RunOptions(slice_bytes=choice.slice_bytes, repeats=repeats, spans=False, blocking=blocking)
    return Variant(f"{num_bytes} {choice}", program, workload(aim, program, num_bytes), options, check)


def rounds_worth(rounds: int, round_s: float) -> int:
    """More rounds than asked for where they cost little, so that small gains can be told from noise.

    >>> rounds_worth(9, 10.0), rounds_worth(9, 0.1), rounds_worth(9, 1e-4)
    (9, 15, 25)
    """
    return max(rounds, min(MOST_ROUNDS, int(WORTH_S / max(round_s, 1e-9))))


def repeats_worth(seconds: float) -> int:
    """As many runs as fill a timing.

    >>> repeats_worth(1.0), repeats_worth(1e-4), repeats_worth(1e-9)
    (1, 40, 500)
    """
    return max(1, min(MOST_REPEATS, round(EACH_S / max(seconds, 1e-9))))


class _Clock:
    """How much of a budget is left."""

    def __init__(self, budget_s: float) -> None:
        self.begin_s, self.budget_s = time.monotonic(), budget_s

    @property
    def share(self) -> float:
        return min((time.monotonic() - self.begin_s) / max(self.budget_s, 1e-9), 1.0)

    def shares(
        self, groups: Sequence[list[int]], cost_s: Callable[[list[int]], float], part: float
    ) -> Iterator[tuple[list[int], float]]:
        """Groups in turn, each with its share of what is left of that part of the budget; the first one always."""
        for place, group in enumerate(groups):
            left_s = self.begin_s + part * self.budget_s - time.monotonic()
            if place and left_s <= 0:
                return
            yield group, max(left_s, 0.0) * cost_s(group) / sum(map(cost_s, groups[place:]))
