"""baselines: a collective's schedules beside the library as a plain C program has it, and with its best knobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.core import DovetailError, Say
from dovetail.ir import Schedule
from dovetail.prober.baselines import (
    INSTALLED,
    Baselines,
    Environment,
    Timing,
    baselines,
    can_time,
    knobs_of,
    said,
    unset_by_user,
)
from dovetail.run.executor import Executor
from dovetail.run.job import Job, Outcome
from dovetail.run.options import LEVEL_REMEDY, Level
from dovetail.tuner.contest import pooled
from dovetail.tuner.measure import LAUNCHES, Clock, Entry, repeats_worth

SCREENING = 0.5  # of the budget, to see which knobs are worth comparing
MOST_KNOBS = 4  # sets of knobs that are compared
WORTH = 0.02  # of its time that knobs must save to be named
LEVEL_COSTS = 1.25  # times as long as in a program of MPI_Init, from which the level is named


class Setting(NamedTuple):
    """How a program of the library is started: its environment, and the level of thread support that it asks for."""

    knobs: Environment
    level: Level = "single"

    def __hash__(self) -> int:
        return hash((said(self.knobs), self.level))


PLAIN, MULTIPLE = Setting(INSTALLED), Setting(INSTALLED, "multiple")


@dataclass(frozen=True)
class Compared:
    """One size: the library in C programs, and ours, launched alternately.

    Attributes
    ----------
    installed : Timing
        The library's call as installed, in a program of MPI_Init.
    multiple : Timing
        The same in a program that asks for MPI_THREAD_MULTIPLE.
    best : Timing
        `installed`, or the same program with the knobs that make it fastest.
    knobs : mapping
        Environment of `best`.
    ours : Outcome
        Our schedule, in jobs that choose nothing, at MPI_THREAD_SERIALIZED.
    """

    installed: Timing
    multiple: Timing
    best: Timing
    knobs: Environment
    ours: Outcome

    @property
    def speedup(self) -> float:
        """Median seconds of the library at its best over ours."""
        return self.best.median_s / self.ours.median_s

    def to_json(self) -> dict[str, Any]:
        """Return seconds and spreads, and the best knobs as a shell takes them."""
        timings = {"installed": self.installed, "multiple": self.multiple, "best_knobs": self.best}
        found: dict[str, Any] = {f"{name}_s": each.median_s for name, each in timings.items()}
        found |= {f"{name}_spread": each.spread for name, each in timings.items()}
        ours = {"ours_s": self.ours.median_s, "ours_spread": self.ours.spread, "speedup_of_best": self.speedup}
        return {**found, **ours, "knobs": said(self.knobs)}


def compare(
    entries: Sequence[tuple[Entry, Schedule, float]],
    executor: Executor,
    library: str,
    *,
    rounds: int,
    budget_s: float,
    seed: int,
    say: Say,
) -> tuple[dict[int, Compared], tuple[str, ...]]:
    """Launch schedules of a collective and the library's own program alternately.

    Parameters
    ----------
    entries : sequence of (Entry, Schedule, float)
        One collective at several sizes, the schedule to run at each, and about the seconds of a run.
    executor, library : Executor, str
        Starts the ranks; the name and version of its MPI.
    rounds, budget_s : int, float
        Rounds of each, over all launches; about the seconds that all may take.
    seed, say : int, callable
        Seed of the inputs; callable that reports progress.

    Returns
    -------
    dict, tuple of str
        Bytes → what was found, of the sizes that were reached; notes for the user. Empty where the executor's ranks are
        no processes of MPI, or the program does not know the collective.
    """
    operator: Any = entries[0][0].operator
    if not (executor.starts_mpi and executor.launched_by and can_time(operator.name, operator.dtype)):
        return {}, ()
    clock = Clock(budget_s)
    try:
        with baselines(executor.launched_by) as program:
            asked = _Asked(entries, executor, program, -(-rounds // LAUNCHES), seed)
            say(f"{operator.name}: knobs of the library", 0.9)
            worth = asked.screened(library, clock)
            say(f"{operator.name}: beside the library", 0.95)
            return asked.compared(worth, clock), ()
    except DovetailError as error:
        return {}, (f"The library's own program could not be measured: {error.what}.",)


@dataclass(frozen=True)
class _Asked:
    entries: Sequence[tuple[Entry, Schedule, float]]
    executor: Executor
    program: Baselines
    rounds: int  # of a launch
    seed: int

    @property
    def sizes(self) -> dict[int, float]:
        """Bytes → seconds of a run, about."""
        found: dict[int, float] = {}
        for entry, _, seconds in self.entries:
            operator: Any = entry.operator
            found[operator.num_bytes] = seconds
        return found

    def timed(self, sizes: Sequence[int], setting: Setting, rounds: int, clock: Clock) -> dict[int, Timing]:
        """Launch the library's program once; empty where it fails, or the knobs are none of this library's."""
        entry = self.entries[0][0]
        operator: Any = entry.operator
        most_s = max((1 - clock.spent) * clock.budget_s / (2 * LAUNCHES), 0.1)
        how: dict[str, Any] = {"level": setting.level, "knobs": setting.knobs, "rounds": rounds, "most_s": most_s}
        return self.program.time(operator.name, sizes, entry.ranks, dtype=operator.dtype, **how)

    def screened(self, library: str, clock: Clock) -> dict[Setting, list[int]]:
        """Return the settings that are fastest at some sizes, with these sizes."""
        operator: Any = self.entries[0][0].operator
        asked = [Setting(knobs) for knobs in knobs_of(library, operator.name) if unset_by_user(knobs)]
        found: dict[Setting, dict[int, Timing]] = {}
        for setting in [PLAIN, *asked]:
            if clock.spent < SCREENING:
                found[setting] = self.timed(list(self.sizes), setting, 2, clock)
        best = {size: fastest(found, size) for size in self.sizes}
        wins = Counter(setting for setting in best.values() if setting not in (None, PLAIN))
        return {
            setting: [size for size, winner in best.items() if winner == setting]
            for setting, _ in wins.most_common(MOST_KNOBS)
            if setting
        }

    def compared(self, worth: Mapping[Setting, list[int]], clock: Clock) -> dict[int, Compared]:
        """Return what was found in launches that alternate: at least one, and as many as the budget allows."""
        ours: dict[int, list[Outcome]] = {size: [] for size in self.sizes}
        launched: list[tuple[Setting, dict[int, Timing]]] = []
        for launch in range(LAUNCHES):
            if launch and clock.spent >= 1:
                break
            for size, outcome in zip(self.sizes, self._ours(launch), strict=True):
                ours[size].append(outcome)
            for setting, sizes in {PLAIN: list(self.sizes), MULTIPLE: list(self.sizes), **worth}.items():
                launched.append((setting, self.timed(sizes, setting, self.rounds, clock)))
        theirs = {setting: _pooled([found for each, found in launched if each == setting]) for setting, _ in launched}
        return {size: row for size, outcomes in ours.items() if (row := _row(size, outcomes, theirs))}

    def _ours(self, launch: int) -> Sequence[Outcome]:
        runs = [entry.variant(schedule, repeats_worth(seconds)) for entry, schedule, seconds in self.entries]
        return self.executor.execute(Job(tuple(runs), self.rounds, 1, self.seed + 101 + launch)).outcomes


def fastest(found: Mapping[Setting, Mapping[int, Timing]], size: int) -> Setting | None:
    """Return the setting with the least median at a size; None if no setting has it."""
    having = [setting for setting, timings in found.items() if size in timings]
    return min(having, key=lambda setting: found[setting][size].median_s, default=None)


def _row(size: int, ours: Sequence[Outcome], theirs: Mapping[Setting, Mapping[int, Timing]]) -> Compared | None:
    installed, multiple = (theirs[setting].get(size) for setting in (PLAIN, MULTIPLE))
    if installed is None or multiple is None:
        return None
    best = fastest({setting: found for setting, found in theirs.items() if setting != MULTIPLE}, size) or PLAIN
    if theirs[best][size].median_s > (1 - WORTH) * installed.median_s:
        best = PLAIN
    return Compared(installed, multiple, theirs[best][size], best.knobs, pooled(ours))


def _pooled(launches: Sequence[Mapping[int, Timing]]) -> dict[int, Timing]:
    """By size, all rounds of several launches."""
    sizes = {size for found in launches for size in found}
    rounds = {size: [s for found in launches if size in found for s in found[size].seconds] for size in sizes}
    return {size: Timing(size, tuple(seconds), 0) for size, seconds in rounds.items()}


def level_note(compared: Mapping[int, Compared], library: str) -> tuple[str, ...]:
    """Return a note where MPI_THREAD_MULTIPLE alone slows the library's call: at the size that it slows most."""
    factors = {size: each.multiple.median_s / each.installed.median_s for size, each in compared.items()}
    size = max(factors, key=lambda each: factors[each], default=0)
    if factors.get(size, 1.0) < LEVEL_COSTS:
        return ()
    plain_us, slow_us = (1e6 * each.median_s for each in (compared[size].installed, compared[size].multiple))
    what = f"{' '.join(library.split())} takes {plain_us:.3g} µs for {size} bytes in a program of MPI_Init"
    return (
        f"The level of thread support alone costs: {what}, and {slow_us:.3g} µs ({factors[size]:.1f} times) at "
        f"MPI_THREAD_MULTIPLE, which mpi4py asks for by default. {LEVEL_REMEDY}",
    )
