"""contest: measure schedules interleaved with serial, first in heats, then in a final that decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dovetail.core import PlanError, RunError, Say
from dovetail.ir import Operator, Schedule
from dovetail.run.executor import Executor
from dovetail.run.job import Outcome
from dovetail.run.load import Load
from dovetail.timeline import Timeline
from dovetail.tuner.measure import LAUNCHES, Clock, Entry, Measurer, groups
from dovetail.tuner.neighbourhood import search

FINALISTS = 3  # schedules of an entry that its final compares with serial, winners of neighbouring entries included
HEATS = 0.5  # share of the budget for heats
LEAST_GAIN = 0.01  # least gain that counts, as a share of the serial time
LEAST_GAIN_S = 5e-6  # least gain of a single run: smaller ones are noise of the clock, the barrier and the call
TWO_ERRORS = 3.7  # two standard errors of a median, in units of (interquartile range / 2) / sqrt(rounds)
FEW = 4.0  # few rounds underestimate their spread: widen by 1 + FEW / (rounds - 1) (simulated for 2 to 26 rounds)


@dataclass(frozen=True)
class Judged:
    """Result of one entry.

    Attributes
    ----------
    entry : Entry
        What was measured.
    schedule : Schedule
        The schedule taken: the fastest correct one, or serial.
    taken, serial : Outcome
        Outcomes of both, pooled over all launches.
    tried : mapping
        Schedule → seconds, scaled to be comparable across jobs.
    wrong : mapping
        Schedule → number of wrong elements; only schedules that computed wrong elements.
    unsure : Schedule or None
        A schedule that was faster than the one taken, but not beyond the noise.
    beside : mapping
        Name → median seconds of each variant of `Entry.beside`.
    rounds, disturbed : int
        Rounds of the final, and how many of them other processes disturbed.
    load : Load
        Share of the ranks' cores that other processes took during the final.
    """

    entry: Entry
    schedule: Schedule
    taken: Outcome
    serial: Outcome
    tried: Mapping[Schedule, float]
    wrong: Mapping[Schedule, int] = field(default_factory=dict)
    unsure: Schedule | None = None
    beside: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0
    disturbed: int = 0
    load: Load = field(default_factory=Load)

    @property
    def speedup(self) -> float:
        """Median seconds of serial over those of the schedule taken."""
        return self.serial.median_s / self.taken.median_s

    @property
    def keeps_serial(self) -> bool:
        """Return whether serial was taken."""
        return self.schedule == self.entry.serial

    def to_json(self) -> dict[str, Any]:
        """Return the result without the plan's own facts and without timelines."""
        chosen = {"schedule": self.schedule, "serial_schedule": self.entry.serial, "unsure": self.unsure}
        head = {name: schedule and schedule.to_json() for name, schedule in chosen.items()}
        runs = {"taken": _outcome_json(self.taken), "serial": _outcome_json(self.serial)}
        counts = {"rounds": self.rounds, "disturbed": self.disturbed, "load": asdict(self.load)}
        return {"entry": self.entry.name, **head, **runs, **_pairs(self), "beside": dict(self.beside), **counts}

    @staticmethod
    def from_json(document: Mapping[str, Any], operator: Operator, ranks: int, measured: Timeline | None) -> Judged:
        """Read what `to_json` wrote. `measured`: the timeline of the schedule taken."""
        read = Schedule.from_json
        entry = Entry(str(document["entry"]), operator, ranks, read(document["serial_schedule"]), {})
        taken, serial = (_outcome_of(document[name]) for name in ("taken", "serial"))
        tried, wrong = ({read(key): value for key, value in document[name]} for name in ("tried", "wrong"))
        return Judged(
            entry,
            read(document["schedule"]),
            replace(taken, timelines=() if measured is None else (measured,)),
            serial,
            tried,
            wrong,
            document["unsure"] and read(document["unsure"]),
            dict(document["beside"]),
            int(document["rounds"]),
            int(document["disturbed"]),
            Load(**document["load"]),
        )


def _pairs(judged: Judged) -> dict[str, Any]:
    """Return the mappings whose keys are schedules as lists of pairs, which JSON can hold."""
    both = {"tried": judged.tried, "wrong": judged.wrong}
    return {name: [[each.to_json(), value] for each, value in held.items()] for name, held in both.items()}


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    names = ("name", "seconds", "max_rel_error", "tolerance", "num_wrong")
    return {name: getattr(outcome, name) for name in names}


def _outcome_of(document: Mapping[str, Any]) -> Outcome:
    return Outcome(**{**document, "seconds": tuple(document["seconds"]), "timelines": ()})


@dataclass(frozen=True)
class Contest:
    """Result of a contest: one `Judged` per entry that was reached, facts of the hosts, and notes for the user."""

    judged: tuple[Judged, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...] = ()


def contest(
    entries: Sequence[Entry],
    executor: Executor,
    *,
    rounds: int = 9,
    budget_s: float = 120.0,
    seed: int = 0,
    say: Say | None = None,
    keep: bool = False,
) -> Contest:
    """Find the fastest schedule of each entry.

    Heats measure the best predicted schedules interleaved, then neighbours of the fastest. The final measures the best
    of these, the winners of neighbouring entries and serial interleaved, in about `rounds` rounds over several
    launches, and checks results against float64. A schedule is taken only if it is correct, and faster than serial
    beyond the noise.

    Parameters
    ----------
    entries : sequence of Entry
        Operators with their candidate schedules.
    executor : Executor
        Runs the ranks.
    rounds : int
        Rounds of a final. Long runs get fewer.
    budget_s : float
        Seconds after which no job begins. Entries not reached are left out, with a note.
    seed : int
        Seed of the inputs.
    say : callable, optional
        Called with a text and the share done, 0 to 1.
    keep : bool
        Skip the heats, and take the only schedule listed, even if it is slower than serial.

    Returns
    -------
    Contest
        The entries that the budget reached, each with the schedule taken.

    Raises
    ------
    PlanError
        If there are no entries.
    RunError
        If no job succeeds.
    """
    if not entries:
        raise PlanError("a contest without entries", hint="give at least one operator or size")
    clock, notify = Clock(budget_s), say or (lambda what, done: None)
    measurer = Measurer(entries, executor, seed, rounds)
    tried = {} if keep else _heats(measurer, clock, notify)
    last = {at: each.listed if keep else finalists(at, tried, each, entries) for at, each in enumerate(entries)}
    judged, facts, broken = _finals(measurer, last, tried, clock, notify, keep=keep)
    if broken and not judged:
        raise broken[0]
    notes = _notes(entries, judged, measurer.failed, broken)
    return Contest(tuple(judged), facts, (*notes, *_unsure(judged, rounds)))


def _heats(measurer: Measurer, clock: Clock, notify: Say) -> dict[int, dict[Schedule, float]]:
    """Measure the best predicted schedules of each entry, then neighbours of the fastest; return seconds by entry."""
    entries, tried = measurer.entries, dict[int, dict[Schedule, float]]()
    together = groups({at: (1 + len(each.listed), measurer.run_s(at)) for at, each in enumerate(entries)})
    for group, limit_s in clock.shares(together, measurer.heat_s, HEATS):
        notify(f"first round, up to {entries[group[-1]].name}", 0.1 + 0.9 * clock.spent)
        with suppress(RunError):  # a failed heat leaves the predicted order; the final decides
            found = measurer.heat(group, limit_s)
            tried |= {at: {schedule: o.median_s for schedule, o in found[at].items()} for at in group}
            tried |= {at: search(measurer, at, found[at], clock, notify) for at in group if found[at]}
    return tried


def _finals(
    measurer: Measurer,
    last: Mapping[int, Sequence[Schedule]],
    tried: Mapping[int, Mapping[Schedule, float]],
    clock: Clock,
    notify: Say,
    *,
    keep: bool,
) -> tuple[list[Judged], dict[str, Any], list[RunError]]:
    """Judge the entries that the budget reaches; return also facts of the hosts, and the errors of failed jobs."""
    entries, judged, facts, broken = measurer.entries, list[Judged](), dict[str, Any](), list[RunError]()
    together = groups({at: (1 + len(schedules), measurer.run_s(at)) for at, schedules in last.items()})
    for group, limit_s in clock.shares(together, lambda group: measurer.final_s(group, FINALISTS), 1.0):
        notify(f"final, up to {entries[group[-1]].name}", 0.1 + 0.9 * clock.spent)
        try:
            launches = measurer.final({at: last[at] for at in group}, limit_s)
        except RunError as error:
            broken.append(error)
            continue
        results = [result for _, result in launches]
        facts, load = results[0].facts, Load.worst([result.load for result in results])
        rounds, disturbed = sum(result.rounds for result in results), sum(result.disturbed for result in results)
        for at in group:
            one = judge(entries[at], [found[at] for found, _ in launches], tried.get(at, {}), keep=keep)
            one = one if keep else _without_thread(measurer, at, one, limit_s / LAUNCHES)
            beside = {
                name: pooled([r[each.name] for r in results]).median_s for name, each in entries[at].beside.items()
            }
            judged.append(replace(one, beside=beside, rounds=rounds, disturbed=disturbed, load=load))
    return judged, facts, broken


def judge(
    entry: Entry,
    launches: Sequence[Mapping[Schedule, Outcome]],
    tried: Mapping[Schedule, float],
    *,
    keep: bool = False,
) -> Judged:
    """Take the fastest correct schedule over all launches if it beats serial beyond the noise, else serial.

    `tried`: seconds in the heats. A schedule that was slower than serial there is not taken either.
    """
    common = [schedule for schedule in launches[0] if all(schedule in launch for launch in launches)]
    outcomes = {schedule: pooled([launch[schedule] for launch in launches]) for schedule in common}
    serial = outcomes[entry.serial]
    right = {s: o for s, o in outcomes.items() if s != entry.serial and not o.is_wrong}
    unsure = None
    best = min(right, key=lambda schedule: right[schedule].median_s, default=entry.serial)
    if keep:
        best = next((schedule for schedule in common if schedule != entry.serial), entry.serial)
    elif best != entry.serial:
        slower_before = tried.get(best, 0.0) > tried.get(entry.serial, math.inf)
        gain_s = serial.median_s - outcomes[best].median_s
        pairs = [(launch[best], launch[entry.serial]) for launch in launches]
        if slower_before or gain_s <= (LEAST_GAIN_S if entry.computes else 0.0):
            best = entry.serial
        elif not beats(pairs):
            best, unsure = entry.serial, best if gain_s > LEAST_GAIN * serial.median_s else None
    known = {**{schedule: outcome.median_s for schedule, outcome in outcomes.items()}, **tried}
    wrong = {schedule: outcome.num_wrong or 1 for schedule, outcome in outcomes.items() if outcome.is_wrong}
    return Judged(entry, best, outcomes[best], serial, known, wrong, unsure)


def _without_thread(measurer: Measurer, at: int, judged: Judged, limit_s: float) -> Judged:
    """Measure serial alone if the schedule taken has a helper thread, and take serial if it is then as fast.

    A helper thread raises the level of thread support that all schedules of its job were measured at; a program of
    serial asks for less, and the library may be faster there.
    """
    if judged.schedule.progress != "thread" or not measurer.executor.starts_mpi:
        return judged
    rounds, seed = -(-measurer.rounds // LAUNCHES), measurer.seed + 1 + LAUNCHES
    try:
        found, _ = measurer.measure({at: ()}, rounds, limit_s, seed)
    except RunError:  # the launches before decide
        return judged
    alone = replace(judged.serial, seconds=found[at][judged.entry.serial].seconds)
    if alone.median_s >= judged.serial.median_s:
        return judged
    if alone.median_s > judged.taken.median_s:
        return replace(judged, serial=alone)
    tried = {**judged.tried, judged.entry.serial: alone.median_s}
    return replace(judged, schedule=judged.entry.serial, taken=alone, serial=alone, tried=tried, unsure=None)


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """Pool outcomes of several launches: all seconds, the check of the first, the timeline nearest to the median."""
    seconds = tuple(s for outcome in outcomes for s in outcome.seconds)
    shown = [outcome.timelines for outcome in outcomes if outcome.timelines]
    shown.sort(key=lambda each: abs(each[0].makespan_s - float(np.median(seconds))))
    return replace(outcomes[0], seconds=seconds, timelines=shown[0] if shown else ())


def beats(pairs: Sequence[tuple[Outcome, Outcome]]) -> bool:
    """Return whether a schedule beats serial beyond the noise over all launches, and is slower in no launch.

    `pairs`: per launch, the outcomes of the schedule and of serial. Compares their ratio in each round, because
    libraries change their speed from launch to launch.

    >>> slow, fast = Outcome("a", (1.0, 1.1, 0.9), ()), Outcome("b", (0.8, 0.88, 0.72), ())
    >>> beats([(fast, slow)]), beats([(slow, fast)]), beats([(slow, slow)]), beats([(fast, slow)] * 3 + [(slow, fast)])
    (True, False, False, False)
    """
    ratios = [np.array(ours.seconds) / np.array(serial.seconds) for ours, serial in pairs]
    low, middle, high = np.percentile(np.concatenate(ratios), [25, 50, 75])
    count = sum(map(len, ratios))
    errors = TWO_ERRORS * (1 + FEW / max(count - 1, 1))
    noise = max(LEAST_GAIN, errors * (high - low) / 2 / math.sqrt(count))
    return bool(middle < 1.0 - noise and all(np.median(each) <= 1.0 for each in ratios))


def finalists(
    at: int, tried: Mapping[int, Mapping[Schedule, float]], entry: Entry, entries: Sequence[Entry]
) -> list[Schedule]:
    """Return the fastest schedules of an entry (if none was tried, the best predicted), and its neighbours' winners."""
    best = {i: fastest(known, entries[i].serial) for i, known in tried.items()}
    own = best.get(at) or list(entry.listed)
    near = [b if a == at else a for a, b in pairwise(sorted({*tried, at})) if at in (a, b)]
    found = own[: FINALISTS - 1] + [best[i][0] for i in near if best[i]]
    return list(dict.fromkeys(found))


def fastest(known: Mapping[Schedule, float], serial: Schedule) -> list[Schedule]:
    """Return the schedules other than serial, fastest first."""
    return sorted((each for each in known if each != serial), key=lambda each: (known[each], str(each)))


def _notes(
    entries: Sequence[Entry],
    judged: Sequence[Judged],
    failed: Mapping[tuple[int, str], str],
    broken: Sequence[RunError],
) -> Iterator[str]:
    reached = {each.entry.name for each in judged}
    missing = [entry.name for entry in entries if entry.name not in reached]
    if missing:
        yield f"Not measured: {', '.join(missing)}; {broken[0].what if broken else 'the budget was spent'}."
    for text in Load.worst([each.load for each in judged]).warnings:
        yield f"{text}."
    for (at, family), why in failed.items():
        yield f"{family} was left out for {entries[at].name}: {why}."
    for each in judged:
        for schedule, count in each.wrong.items():
            yield f"{schedule} computed {count} wrong elements for {each.entry.name} and was not taken."


def _unsure(judged: Sequence[Judged], rounds: int) -> Iterator[str]:
    """Yield a note for each entry that more rounds might decide otherwise."""
    for each in judged:
        if each.unsure and each.rounds < rounds and each.entry.computes:
            less = 1 - each.tried[each.unsure] / each.tried[each.entry.serial]
            yield (
                f"{each.entry.name}: {each.unsure} took {less:.0%} less than serial at the median, but {each.rounds} "
                "rounds are too few for their spread, so serial is kept; a larger budget allows more rounds."
            )
