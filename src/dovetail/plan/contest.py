"""contest: contenders and the library's own call measured in turn, size by size; the winners become a Selection."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dovetail.core import PlanError, RunError, Say
from dovetail.machine import Machine
from dovetail.plan.arena import BY_LIBRARY, Arena, Clock, groups
from dovetail.plan.contenders import Aim, shortlist
from dovetail.plan.selection import Choice, Point, Selection, rows_of
from dovetail.run.job import Executor, Outcome
from dovetail.run.load import Load

FINALISTS = 3
HEATS = 0.5  # of the budget
LEAST_GAIN = 0.01  # of the library's time
TWO_ERRORS = 3.7  # standard errors of a median, in half interquartile ranges over the root of the count
FEW = 4.0  # over the degrees of freedom: few rounds tell little of their own spread (by simulation, 2 to 26 rounds)


@dataclass(frozen=True)
class Judged:
    """What came of one size: the choice, its seconds and the library's in one interleaved job, and all that was tried.

    `tried`: medians in seconds of each choice measured, in the job that measured it first. `wrong`: elements that
    a choice computed wrongly, where it did; `max_rel_error` of the choice taken, against float64. `disturbed`: rounds
    that were, in the final; `load`: what others took of the ranks' cores in it.
    """

    num_bytes: int
    choice: Choice
    point: Point
    tried: Mapping[Choice, float]
    predicted: Mapping[Choice, float] = field(default_factory=dict)
    max_rel_error: float | None = None
    wrong: Mapping[Choice, int] = field(default_factory=dict)
    disturbed: int = 0
    load: Load = field(default_factory=Load)

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
        checks |= self.load.to_json()
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
        dtype = self.aim.dtype if self.aim.reduces else ""
        return Selection(facts, rows_of(self.aim.collective, self.aim.ranks, self.aim.nodes, picked, dtype))


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

    In heats the best predicted are measured in turn; the best of those, and the winners at neighbouring sizes, then
    meet the library's call in a final of about `rounds` rounds, in several launches, and are held against float64. Ours
    is chosen only where it is right, and faster than the library's beyond the noise. Long runs get fewer contenders and
    rounds where `budget_s` seconds are short; no job is begun after them, and sizes not reached are left out, with a
    note.
    """
    wanted = sorted({aim.bytes_of(size) for size in sizes})
    if not wanted:
        raise PlanError("no sizes to choose for", hint="at least one number of bytes")
    clock, tell = Clock(budget_s), say or (lambda what, done: None)
    arena = Arena(aim, executor, seed, rounds, {size: shortlist(aim, size, machine, most) for size in wanted})
    together = groups({size: (1 + len(listed), arena.run_s(size)) for size, listed in arena.lists.items()})
    tried: dict[int, dict[Choice, float]] = {}
    for group, limit_s in clock.shares(together, arena.heat_s, HEATS):
        tell(f"heats up to {group[-1]} bytes", 0.1 + 0.9 * clock.spent)
        with suppress(RunError):  # the final will tell
            found = arena.heat(group, limit_s)
            tried |= {size: {choice: outcome.median_s for choice, outcome in found[size].items()} for size in group}
    last = {size: finalists(size, tried, [each.choice for each in arena.lists[size]]) for size in wanted}
    judged, facts, broken = list[Judged](), dict[str, Any](), list[RunError]()
    together = groups({size: (1 + len(choices), arena.run_s(size)) for size, choices in last.items()})
    for group, limit_s in clock.shares(together, lambda sizes: arena.final_s(sizes, FINALISTS), 1.0):
        tell(f"finals up to {group[-1]} bytes", 0.1 + 0.9 * clock.spent)
        try:
            launches, results = arena.final({size: last[size] for size in group}, limit_s)
        except RunError as error:
            broken.append(error)
            continue
        facts, disturbed = results[0].facts, sum(result.disturbed for result in results)
        load = Load.worst([result.load for result in results])
        for size in group:
            outcomes = [launch[size] for launch in launches]
            judged.append(judge(size, outcomes, tried.get(size, {}), arena.predicted(size), disturbed, load))
    if broken and not judged:
        raise broken[0]
    return Contest(aim, tuple(judged), facts, tuple(_notes(wanted, judged, arena.failed, broken)))


def _notes(
    wanted: Sequence[int],
    judged: Sequence[Judged],
    failed: Mapping[tuple[int, str], str],
    broken: Sequence[RunError],
) -> Iterator[str]:
    missing = [str(size) for size in wanted if size not in {each.num_bytes for each in judged}]
    if missing:
        yield f"Not measured: {', '.join(missing)} bytes; {broken[0].what if broken else 'the budget was spent'}."
    for text in Load.worst([each.load for each in judged]).warnings:
        yield f"{text}."
    for (size, algorithm), why in failed.items():
        yield f"{algorithm} was left out at {size} bytes: {why}."
    for each in judged:
        for choice, count in each.wrong.items():
            yield f"{choice} computed {count} wrong elements at {each.num_bytes} bytes and was passed over."


def judge(
    num_bytes: int,
    launches: Sequence[Mapping[Choice, Outcome]],
    tried: Mapping[Choice, float],
    predicted: Mapping[Choice, float],
    disturbed: int = 0,
    load: Load | None = None,
) -> Judged:
    """The fastest over all launches that is right, if it beats the library's call beyond the noise; else the library's.

    `tried`: medians of an earlier job, in which it must not have been slower than the library's either.
    """
    common = [choice for choice in launches[0] if all(choice in launch for launch in launches)]
    outcomes = {choice: pooled([launch[choice] for launch in launches]) for choice in common}
    library = outcomes[BY_LIBRARY]
    right = {c: o for c, o in outcomes.items() if not c.is_library and not o.num_wrong}
    best = min(right, key=lambda choice: right[choice].median_s, default=BY_LIBRARY)
    slower_before = tried.get(best, 0.0) > tried.get(BY_LIBRARY, math.inf)
    pairs = [(launch[best], launch[BY_LIBRARY]) for launch in launches]
    slower_now = outcomes[best].median_s > library.median_s
    if best.is_library or slower_before or slower_now or not beats(pairs):
        best = BY_LIBRARY
    taken = outcomes[best]
    point = Point(num_bytes, taken.median_s, library.median_s, predicted.get(best), taken.spread)
    known = {**{choice: outcome.median_s for choice, outcome in outcomes.items()}, **tried}
    wrong = {choice: outcome.num_wrong for choice, outcome in outcomes.items() if outcome.num_wrong}
    return Judged(num_bytes, best, point, known, predicted, taken.max_rel_error, wrong, disturbed, load or Load())


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
    errors = TWO_ERRORS * (1 + FEW / max(count - 1, 1))
    noise = max(LEAST_GAIN, errors * (high - low) / 2 / math.sqrt(count))
    return bool(middle < 1.0 - noise and all(np.median(each) <= 1.0 for each in ratios))


def finalists(size: int, tried: Mapping[int, Mapping[Choice, float]], listed: Sequence[Choice]) -> list[Choice]:
    """The fastest of ours at one size (the best predicted where none was tried), and those that won at the next smaller
    and larger size.

    >>> a, b, c = (Choice(name) for name in "abc")
    >>> tried = {1: {c: 1.0}, 2: {Choice(): 1.0, a: 2.0, b: 3.0}, 3: {}, 4: {b: 1.0}}
    >>> [[str(each) for each in finalists(size, tried, [b, c])] for size in (2, 3)]
    [['a', 'b', 'c'], ['b', 'c', 'a']]
    """
    best = {at: sorted((s, c) for c, s in known.items() if not c.is_library) for at, known in tried.items()}
    own = [choice for _, choice in best.get(size, ())] or list(listed)
    near = [b if a == size else a for a, b in pairwise(sorted({*tried, size})) if size in (a, b)]
    found = own[: FINALISTS - 1] + [best[at][0][1] for at in near if best[at]]
    return list(dict.fromkeys(found))
