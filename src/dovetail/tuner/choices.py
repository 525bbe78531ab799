"""choices: whoever chooses a schedule, by a rule or by simulation, does so on a probed machine; the true one judges."""

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
TIE = 0.01  # schedules that take so little longer than the best are as good
NOISE = 0.02  # standard deviation of the slowness of a round of a probe
VARIED, MOST_EFFORT = 3, 200_000  # families whose best is varied by the judge, and the effort for each
OURS, TRUTH = "simulation", "exhaustive"


@dataclass(frozen=True)
class Pick:
    """What one chooser takes in one scenario, and the seconds that it takes in truth, those of the best schedule of
    all, and those of the best of the families `among` which it chose. Without a schedule: `why_not`."""

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
        """By which share it takes longer than the best."""
        return self.true_s / self.best_s - 1

    @property
    def ties(self) -> bool:
        """Whether it is as good as the best, of whatever family."""
        return self.regret <= TIE

    @property
    def right(self) -> bool:
        """Whether it is of the best one's family, or as good."""
        return self.ties or self.family == self.best_family

    @property
    def right_of_own(self) -> bool:
        """Whether it is as good as the best of the families that the chooser knows."""
        return self.true_s <= (1 + TIE) * self.own_best_s

    def to_json(self) -> dict[str, Any]:
        if self.schedule is None:
            return {"chooser": self.chooser, "why_not": self.why_not}
        about = {"family": self.family, "schedule": str(self.schedule), "true_s": self.true_s, "regret": self.regret}
        return {"chooser": self.chooser, **about, "right": self.right, "right_of_own": self.right_of_own}


@dataclass(frozen=True)
class Compared:
    """One scenario: every chooser's pick, the best family and the true seconds of each family's best schedule."""

    scenario: Scenario
    picks: tuple[Pick, ...]
    families: Mapping[str, float]
    serial_s: float
    planning_s: float

    @property
    def best(self) -> Pick:
        return self.picks[-1]

    def to_json(self) -> dict[str, Any]:
        head = {"scenario": self.scenario.name, "operator": self.scenario.operator.to_json()}
        head |= {"machine": self.scenario.machine.name, "topology": self.scenario.topology}
        times = {"serial_s": self.serial_s, "best_s": self.best.true_s, "planning_cpu_s": self.planning_s}
        return {**head, **times, "families": dict(self.families), "picks": [pick.to_json() for pick in self.picks]}


@dataclass(frozen=True)
class Score:
    """One chooser over many scenarios. `right`: share of the best family's or as good; `tied`: share as good, of
    other families; `miss_loss`: geometric mean of the regret where it was wrong; `own`: share as good as the best of
    the families that it knows; `silent`: scenarios of which it has nothing to say."""

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
        return {name: None if value != value else value for name, value in vars(self).items()}


def compare(
    scenario: Scenario,
    *,
    noise: float = NOISE,
    seed: int = 0,
    rules: Sequence[Heuristic] | None = None,
    **options: Any,
) -> Compared:
    """The rules (those that the operator's class knows, unless given), our simulation, and exhaustive search, in one
    scenario.

    A machine wired like the true one is probed there with `noise`; rules and simulation choose by what was measured;
    the true machine simulates every schedule of every family, what was chosen among them.
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
    """What a probe makes of the true machine, whose wiring is known."""
    true, ranks = scenario.machine, scenario.ranks
    executor = SimExecutor(true, noise, seed=seed)
    bare = probe_links(executor, ranks, f"{true.name}, probed", wired=true)
    return probe_operator(executor, bare, scenario.operator, ranks)


def heuristics_of(operator: Operator) -> tuple[Heuristic, ...]:
    """The rules that the class of an operator declares."""
    return operator.heuristics if isinstance(operator, HasHeuristics) else ()


def _varied(costs: Costs, schedule: Schedule) -> Schedule:
    """A schedule after a local search, under the family that it counts for."""
    found = varied(costs, schedule, costs.operator.neighbours, 1, MOST_EFFORT)
    return costs.operator.counted_as(schedule, found) if isinstance(costs.operator, HasHeuristics) else found


def ruled(rule: Heuristic, costs: Costs, ranked: Sequence[Scored]) -> Schedule | None:
    """What a rule takes, by these costs; under the name of the family that it picked."""
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
    """The true machine's word: what every schedule takes there."""

    costs: Costs
    ranked: Sequence[Scored]

    @staticmethod
    def of(scenario: Scenario, options: Mapping[str, Any], chosen: Iterable[Schedule]) -> Judge:
        """Every schedule of every family, the best of them as varied as gains, and those that were chosen, fastest
        first; rules' own names left out."""
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
        """The seconds of each family's best."""
        found: dict[str, float] = {}
        for each in self.ranked:
            found.setdefault(each.family, each.predicted_s)
        return found

    @property
    def serial_s(self) -> float:
        return self.families["serial"]

    def pick(self, rule: Heuristic, schedule: Schedule | None) -> Pick:
        if schedule is None:
            return Pick(rule.name, why_not=rule.why_not or "no such schedule fits")
        best, among = self.ranked[0], rule.among or ((rule.family,) if rule.family else tuple(self.families))
        own_s = min(self.families[family] for family in (*among, schedule.family) if family in self.families)
        true_s = self.costs.scored(schedule).predicted_s
        return Pick(rule.name, schedule.family, schedule, true_s, best.predicted_s, best.family, own_s)

    def best(self) -> Pick:
        return self.pick(Heuristic(TRUTH), self.ranked[0].schedule)


def scores(compared: Sequence[Compared]) -> list[Score]:
    """How every chooser did, in the order in which they chose."""
    names = dict.fromkeys(pick.chooser for each in compared for pick in each.picks)
    return [score_of(name, [p for each in compared for p in each.picks if p.chooser == name]) for name in names]


def score_of(chooser: str, picks: Sequence[Pick]) -> Score:
    """One chooser's picks, summed up."""
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
    """The geometric mean of 1 + each loss, less 1; 0 for none."""
    return math.exp(sum(map(math.log1p, losses)) / len(losses)) - 1 if losses else 0.0
