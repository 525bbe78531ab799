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
from dovetail.run.job import Job
from dovetail.run.options import LEVEL_REMEDY, Level
from dovetail.tuner.measure import LAUNCHES, Clock, Entry, repeats_worth

SCREENING = 0.5  # of the budget, to see which knobs are worth comparing
MOST_KNOBS = 4  # sets of knobs that are compared
WORTH = 0.02  # of its time that knobs must save to be named
NEAR = 2.0  # times the least seconds of an exchange of a word, up to which cores count as near
LEAST_ROUNDS = 3  # of a timing, by which it is judged
LEVEL_COSTS = 1.25  # times as long as in a program of MPI_Init, from which the level is named


class Setting(NamedTuple):
    """How a program of the library is started: its environment, and the level of thread support that it asks for."""

    knobs: Environment
    level: Level = "single"

    def __hash__(self) -> int:
        return hash((said(self.knobs), self.level))

    def __str__(self) -> str:
        return " ".join([*filter(None, [said(self.knobs)]), *(["MPI_THREAD_MULTIPLE"] if self == MULTIPLE else [])])


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
        The fastest of these two, and of programs of MPI_Init with knobs of the library set.
    setting : Setting
        How the program of `best` is started.
    ours : Timing
        Our schedule, in jobs that choose nothing, at MPI_THREAD_SERIALIZED.
    is_alike : bool
        Whether the cores were equally far apart in all rounds of these timings (see `alike`), or it is unknown.
    """

    installed: Timing
    multiple: Timing
    best: Timing
    setting: Setting
    ours: Timing
    is_alike: bool = True

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
        apart = {"exchange_s": self.ours.apart_s, "is_alike": self.is_alike}
        return {**found, **ours, "knobs": str(self.setting), **apart}


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
            found = asked.compared(worth, clock)
            return found, _unlike(found)
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

    def timed(
        self, sizes: Sequence[int], setting: Setting, rounds: int, clock: Clock, stamps: bool = False
    ) -> dict[int, Timing]:
        """Launch the library's program once; empty where it fails, or the knobs are none of this library's."""
        entry = self.entries[0][0]
        operator: Any = entry.operator
        most_s = max((1 - clock.spent) * clock.budget_s / (2 * LAUNCHES), 0.1)
        how: dict[str, Any] = {"level": setting.level, "knobs": setting.knobs, "rounds": rounds, "most_s": most_s}
        how |= {"stamps": stamps}
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
        """Return what was found in launches that alternate: at least one, and as many as the budget allows.

        Launches are repeated while some rounds are unlike.
        """
        settings, rows = {PLAIN: list(self.sizes), MULTIPLE: list(self.sizes), **worth}, dict[int, Compared]()
        ours: list[dict[int, Timing]] = []
        theirs: dict[Setting, list[dict[int, Timing]]] = {setting: [] for setting in settings}
        for launch in range(2 * LAUNCHES):
            if (launch and clock.spent >= 1) or (launch >= LAUNCHES and all(each.is_alike for each in rows.values())):
                break
            ours.append(self._ours(launch))
            stamps = any(each.apart_s for each in ours[-1].values())
            for setting, sizes in settings.items():
                theirs[setting].append(self.timed(sizes, setting, self.rounds, clock, stamps))
            rows = _rows(_pooled(ours), {setting: _pooled(found) for setting, found in theirs.items()})
        return rows

    def _ours(self, launch: int) -> dict[int, Timing]:
        runs = [entry.variant(schedule, repeats_worth(seconds)) for entry, schedule, seconds in self.entries]
        result = self.executor.execute(Job(tuple(runs), self.rounds, 1, self.seed + 101 + launch))
        sizes = zip(self.sizes, result.outcomes, strict=True)
        return {size: Timing(size, outcome.seconds, 0, result.exchange_s) for size, outcome in sizes}


def alike(timings: Sequence[Timing]) -> list[Timing] | None:
    """Return the timings in those rounds in which ranks 0 and 1 ran on cores equally far apart: near ones, else far.

    A hypervisor may move the cores of a machine, which changes the speed of a short call several times. None if neither
    has enough rounds of every timing; all rounds where nothing was stamped.

    >>> both = [Timing(8, (1.0, 5.0, 1.0, 1.0), 0, (0.06, 0.27, 0.06, 0.06)), Timing(8, (2.0,) * 3, 0, (0.07,) * 3)]
    >>> [each.seconds for each in alike(both)]
    [(1.0, 1.0, 1.0), (2.0, 2.0, 2.0)]
    """
    if not all(each.apart_s for each in timings):
        return list(timings)
    near_s = NEAR * min(s for each in timings for s in each.exchange_s if s > 0)
    for is_near in (True, False):
        found = [each.where([s > 0 and (s <= near_s) == is_near for s in each.exchange_s]) for each in timings]
        if all(len(each.seconds) >= LEAST_ROUNDS for each in found):
            return found
    return None


def _unlike(found: Mapping[int, Compared]) -> tuple[str, ...]:
    """Return a note that names the sizes whose rounds were unlike."""
    sizes = ", ".join(str(size) for size, row in found.items() if not row.is_alike)
    what = "the distance between the cores changed too often for rounds to be compared like with like"
    return (
        (f"Beside the library's own program {what}: at {sizes} bytes. Repeat on a quieter machine.",) if sizes else ()
    )


def fastest(found: Mapping[Setting, Mapping[int, Timing]], size: int) -> Setting | None:
    """Return the setting with the least median at a size; None if no setting has it."""
    having = [setting for setting, timings in found.items() if size in timings]
    return min(having, key=lambda setting: found[setting][size].median_s, default=None)


def _rows(ours: Mapping[int, Timing], theirs: Mapping[Setting, Mapping[int, Timing]]) -> dict[int, Compared]:
    return {size: row for size in ours if (row := _row(size, ours[size], theirs))}


def _row(size: int, ours: Timing, theirs: Mapping[Setting, Mapping[int, Timing]]) -> Compared | None:
    found = {setting: timings[size] for setting, timings in theirs.items() if size in timings}
    if PLAIN not in found or MULTIPLE not in found:
        return None
    like = alike([ours, *found.values()])
    ours, *others = like or [ours, *found.values()]
    found = dict(zip(found, others, strict=True))
    best = min(found, key=lambda setting: found[setting].median_s)
    if found[best].median_s > (1 - WORTH) * found[PLAIN].median_s:
        best = PLAIN
    return Compared(found[PLAIN], found[MULTIPLE], found[best], best, ours, like is not None)


def _pooled(launches: Sequence[Mapping[int, Timing]]) -> dict[int, Timing]:
    """By size, all rounds of several launches; their stamps if all have them."""
    found: dict[int, list[Timing]] = {}
    for timings in launches:
        for size, each in timings.items():
            found.setdefault(size, []).append(each)
    return {size: Timing.joined(each) for size, each in found.items()}


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
