"""choices: compare rules, simulation and exhaustive search as choosers of schedules.

All choose by the costs of a noisily probed machine; a simulation of the true machine judges their choices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dovetail.ir import Heuristic, Operator, Schedule
from dovetail.ir.abilities import HasHeuristics
from dovetail.ir.hill_climbing import varied
from dovetail.machine import Machine
from dovetail.planner.costs import Costs, Scored, check_options
from dovetail.planner.search import plan, ranked_schedules
from dovetail.prober import probe_links, probe_operator
from dovetail.tuner.scenarios import Scenario
from dovetail.tuner.simulated import SimExecutor

SCHEMA = "dovetail.choices/1"
TIE = 0.01  # a schedule is as fast as the best one if it takes at most this share longer
NOISE = 0.02  # standard deviation of the random slowdown of each round of a probe
VARIED, MOST_EFFORT = 3, 200_000  # families whose best schedule the judge varies, and the search effort for each
OURS, TRUTH = "simulation", "exhaustive"


@dataclass(frozen=True)
class Pick:
    """One chooser's schedule in one scenario, or `why_not`: the reason why it has none.

    `true_s`, `best_s`, `own_best_s`: seconds on the true machine of this schedule, of the best of all schedules, and of
    the best among the families that the chooser knows.
    """

    chooser: str
    family: str = ""
    schedule: Schedule | None = None
    true_s: float = math.nan
    best_s: float = math.nan
    best_family: str = ""
    own_best_s: float = math.nan
    why_not: str = ""

    @property
    def regret(self) -> float:
        """Return `true_s / best_s - 1`: 0.05 is 5 % slower than the best schedule."""
        return self.true_s / self.best_s - 1

    @property
    def ties(self) -> bool:
        """Return whether the schedule is as fast as the best of all families, within TIE."""
        return self.regret <= TIE

    @property
    def right(self) -> bool:
        """Return whether the schedule is as fast as the best one, or of the best one's family."""
        return self.ties or self.family == self.best_family

    @property
    def right_of_own(self) -> bool:
        """Return whether the schedule is as fast as the best of the families that the chooser knows."""
        return self.true_s <= (1 + TIE) * self.own_best_s

    def to_json(self) -> dict[str, Any]:
        """Return the pick by name; seconds on the true machine."""
        if self.schedule is None:
            return {"chooser": self.chooser, "why_not": self.why_not}
        about = {"family": self.family, "schedule": str(self.schedule), "true_s": self.true_s, "regret": self.regret}
        return {"chooser": self.chooser, **about, "right": self.right, "right_of_own": self.right_of_own}


@dataclass(frozen=True)
class Compared:
    """Result of one scenario: every chooser's pick, and true seconds of each family's best schedule."""

    scenario: Scenario
    picks: tuple[Pick, ...]
    families: Mapping[str, float]
    serial_s: float
    planning_s: float

    @property
    def best(self) -> Pick:
        """Return the fastest of all schedules, found by exhaustive search."""
        return self.picks[-1]

    def to_json(self) -> dict[str, Any]:
        """Return scenario, seconds and picks by name."""
        head = {"scenario": self.scenario.name, "operator": self.scenario.operator.to_json()}
        head |= {"machine": self.scenario.machine.name, "topology": self.scenario.topology}
        times = {"serial_s": self.serial_s, "best_s": self.best.true_s, "planning_cpu_s": self.planning_s}
        return {**head, **times, "families": dict(self.families), "picks": [pick.to_json() for pick in self.picks]}


@dataclass(frozen=True)
class Score:
    """One chooser's results over many scenarios.

    Attributes
    ----------
    count, silent : int
        Scenarios with and without a pick.
    right : float
        Share of picks that are as fast as the best schedule, or of its family.
    tied : float
        Share of picks that are of another family than the best schedule, and as fast.
    close : float
        Share of picks that are as fast as the best schedule.
    miss_loss, mean_loss : float
        Geometric mean of the regret of wrong picks, and of all picks.
    worst : float
        The largest regret.
    own : float
        Share of picks that are as fast as the best of the families that the chooser knows.
    own_loss : float
        Geometric mean of the other picks' excess over the best of those families.
    """

    chooser: str
    count: int
    right: float
    tied: float
    close: float
    miss_loss: float
    mean_loss: float
    worst: float
    own: float
    own_loss: float
    silent: int

    def to_json(self) -> dict[str, Any]:
        """Return all attributes by name, NaN as None."""
        return {name: None if value != value else value for name, value in vars(self).items()}


def compare(
    scenario: Scenario,
    *,
    noise: float = NOISE,
    seed: int = 0,
    rules: Sequence[Heuristic] | None = None,
    **options: Any,
) -> Compared:
    """Compare rules, simulation and exhaustive search in one scenario.

    Parameters
    ----------
    scenario : Scenario
        An operator and its true machine.
    noise : float
        Standard deviation of the random slowdown of each round of the probe.
    seed : int
        Seed of the noise.
    rules : sequence of Heuristic, optional
        Default: the rules of the operator's class.
    **options
        As in `plan`.

    Returns
    -------
    Compared
        The picks of the rules and of the simulation, made by the probed costs, and the best schedule. All seconds are
        of a simulation on the true machine.
    """
    operator, ranks = scenario.operator, scenario.ranks
    probed = probed_machine(scenario, noise, seed)
    seen, _ = Costs.of(operator, probed, ranks, options, extrapolate=True)
    begin = time.process_time()
    made = plan(operator, probed, ranks=ranks, extrapolate=True, **options)
    planning_s = time.process_time() - begin
    ranked = ranked_schedules(seen)
    chosen: list[tuple[Heuristic, Schedule | None]] = []
    known = heuristics_of(operator) if rules is None else rules
    chosen += [(rule, ruled(rule, seen, ranked)) for rule in known]
    for among in dict.fromkeys(rule.among for rule in known if rule.among):
        ours = Heuristic(f"{OURS} of {len(among)}", among=among)
        chosen.append((ours, next((each.schedule for each in ranked if each.family in among), None)))
    chosen.append((Heuristic(OURS), made.schedule))
    judge = Judge.of(scenario, options, [schedule for _, schedule in chosen if schedule])
    picks = tuple(judge.pick(rule, schedule) for rule, schedule in chosen)
    return Compared(scenario, (*picks, judge.best()), judge.families, judge.serial_s, planning_s)


def probed_machine(scenario: Scenario, noise: float, seed: int) -> Machine:
    """Probe the true machine, whose wiring is known, with multiplicative noise."""
    true, ranks = scenario.machine, scenario.ranks
    executor = SimExecutor(true, noise, seed=seed)
    bare = probe_links(executor, ranks, f"{true.name}, probed", wired=true)
    return probe_operator(executor, bare, scenario.operator, ranks)


def heuristics_of(operator: Operator) -> tuple[Heuristic, ...]:
    """Return the rules that an operator's class declares."""
    return operator.heuristics if isinstance(operator, HasHeuristics) else ()


def _varied(costs: Costs, schedule: Schedule) -> Schedule:
    """Return a schedule after a local search, under the family that it counts for."""
    found = varied(costs, schedule, costs.operator.neighbours, MOST_EFFORT)
    return costs.operator.counted_as(schedule, found) if isinstance(costs.operator, HasHeuristics) else found


def ruled(rule: Heuristic, costs: Costs, ranked: Sequence[Scored]) -> Schedule | None:
    """Return the schedule that a rule picks by these costs, with the name of the family it equals; None: none fits."""
    if not rule.family:
        return None
    asked = check_options(costs.operator, {**costs.asked, **rule.asked})
    found = next((each for each in ranked if each.family == rule.family and asked == costs.asked), None)
    if found is None:
        kept = replace(costs, asked=asked, family=rule.family)
        made = [each for each in costs.operator.schedules(kept) if each.family == rule.family]
        found = min(costs.score(made), key=lambda each: each.predicted_s, default=None)
    if found is None:
        return None
    names = (each.family for each in ranked if each.schedule == found.schedule and each.family in rule.among)
    return replace(found.schedule, family=next(names, found.family))


@dataclass(frozen=True)
class Judge:
    """All schedules of a scenario, with their seconds on the true machine, fastest first."""

    costs: Costs
    ranked: Sequence[Scored]

    @staticmethod
    def of(scenario: Scenario, options: Mapping[str, Any], chosen: Iterable[Schedule]) -> Judge:
        """Simulate all schedules, a local search around the best of VARIED families, and the choosers' picks.

        Leaves out aliases: schedules that a rule made under the rule's own name.
        """
        costs, _ = Costs.of(scenario.operator, scenario.machine, scenario.ranks, options, extrapolate=True)
        costs = replace(costs, exact=True)
        named = {rule.family for rule in heuristics_of(scenario.operator) if rule.among}
        every = [each for each in ranked_schedules(costs) if each.family not in named]
        first = {each.family: each for each in reversed(every)}
        some = sorted(first.values(), key=lambda each: each.predicted_s)[:VARIED]
        every += [costs.scored(_varied(costs, each.schedule)) for each in some]
        every += [costs.scored(schedule) for schedule in chosen]
        return Judge(costs, sorted(every, key=lambda each: each.predicted_s))

    @cached_property
    def families(self) -> dict[str, float]:
        """Return seconds of each family's fastest schedule."""
        found: dict[str, float] = {}
        for each in self.ranked:
            found.setdefault(each.family, each.predicted_s)
        return found

    @property
    def serial_s(self) -> float:
        """Return seconds of the serial schedule."""
        return self.families["serial"]

    def pick(self, rule: Heuristic, schedule: Schedule | None) -> Pick:
        """Judge a rule's schedule; None: no such schedule fits."""
        if schedule is None:
            return Pick(rule.name, why_not=rule.why_not or "no such schedule fits")
        best, among = self.ranked[0], rule.among or ((rule.family,) if rule.family else tuple(self.families))
        own_s = min(self.families[family] for family in (*among, schedule.family) if family in self.families)
        true_s = self.costs.scored(schedule).predicted_s
        return Pick(rule.name, schedule.family, schedule, true_s, best.predicted_s, best.family, own_s)

    def best(self) -> Pick:
        """Return the fastest of all schedules, as the pick of exhaustive search."""
        return self.pick(Heuristic(TRUTH), self.ranked[0].schedule)


def scores(compared: Sequence[Compared]) -> list[Score]:
    """Return one score per chooser, in the order of first appearance."""
    names = dict.fromkeys(pick.chooser for each in compared for pick in each.picks)
    return [score_of(name, [p for each in compared for p in each.picks if p.chooser == name]) for name in names]


def score_of(chooser: str, picks: Sequence[Pick]) -> Score:
    """Score one chooser's picks."""
    spoke = [pick for pick in picks if pick.schedule]
    right = [pick for pick in spoke if pick.right]
    tied = [pick for pick in right if pick.family != pick.best_family]
    wrong = [pick for pick in spoke if not pick.right]
    strayed = [pick.true_s / pick.own_best_s - 1 for pick in spoke if not pick.right_of_own]
    return Score(
        chooser,
        len(spoke),
        _share(right, spoke),
        _share(tied, spoke),
        _share([pick for pick in spoke if pick.ties], spoke),
        _geometric([pick.regret for pick in wrong]),
        _geometric([pick.regret for pick in spoke]),
        max((pick.regret for pick in spoke), default=math.nan),
        _share([pick for pick in spoke if pick.right_of_own], spoke),
        _geometric(strayed),
        len(picks) - len(spoke),
    )


def _share(some: Sequence[Any], of: Sequence[Any]) -> float:
    return len(some) / len(of) if of else math.nan


def _geometric(losses: Sequence[float]) -> float:
    """Return `(Π (1 + loss))^(1/n) - 1`; 0 for no losses."""
    return math.exp(sum(map(math.log1p, losses)) / len(losses)) - 1 if losses else 0.0
