"""crowding: what ranks waited for a core, by the kernel's counters, and the model of a run without these waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.remedy import GRAIN_S, Site, gap_s
from dovetail.run.load import Place, domains
from dovetail.trace.analysis.replay_model import ReplayModel, Step
from dovetail.trace.load import EMPTY

LEAST_WAITED = 0.01  # share of the run; less makes no finding, since those save at least as much (LEAST_SHARE)
SLACK = 0.1  # share of a rank's own time by which it may seem to sleep longer: the counters have coarse times
USUAL = 25  # percentile of a rank's like pieces of work that counts as undisturbed: most are shorter than a time slice
QUICK = 10  # percentile of like messages, or collectives; each needs several ranks to run at one time
Floats = NDArray[Any]


@dataclass(frozen=True)
class Crowding:
    """How ranks share cores: of the group of ranks with the fewest cores each.

    `waited`: by rank, the share of the run in which it waited for a core that others had, be it ranks of the job or
    other programs; NaN: unknown. `sharing`: by rank, the number of its group, from 1, if this has fewer cores than
    ranks, else 0.
    """

    num_ranks: int
    num_cores: int
    waited: Floats = field(repr=False)
    sharing: tuple[int, ...] = field(repr=False)
    loads: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    def slept_s(self, rank: int, seconds: float) -> float:
        """Return for how much of the last `seconds` a rank neither ran nor waited for a core; 0: unknown."""
        load = self.loads[rank] if rank < len(self.loads) else EMPTY
        known = len(load["time_s"]) > 1 and None not in (*load["used_s"], *load["waited_s"])
        if not known:
            return 0.0
        times_s = np.array(load["time_s"])
        off_s = times_s - np.add(load["used_s"], load["waited_s"])
        return max(float(np.diff(np.interp([times_s[-1] - seconds, times_s[-1]], times_s, off_s))[0]), 0.0)

    @property
    def is_crowded(self) -> bool:
        """Return whether there are more ranks than cores."""
        return self.num_ranks > self.num_cores

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a sentence if `settled` changes the model of this run."""
        waits = np.isnan(self.waited).any() or float(self.waited.max()) > LEAST_WAITED
        said = "Replays leave out what the ranks waited for a core, so that they are shorter than the trace."
        return (said,) if waits and (self.is_crowded or not np.isnan(self.waited).any()) else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return a sentence if there are more ranks than cores."""
        if not self.is_crowded:
            return ()
        most = float(np.nanmax(self.waited)) if not np.isnan(self.waited).all() else 0.0
        waits = f", for which a rank waits up to {most:.0%} of the time" if most > LEAST_WAITED else ""
        cores = f"{self.num_cores} core{'s' * (self.num_cores > 1)}"
        return (f"{self.num_ranks} ranks share {cores}{waits}",)


def crowding(meta: Mapping[str, Any], num_ranks: int) -> Crowding | None:
    """Return how the ranks of a traced run shared cores, from the trace's meta; None if the trace does not show it."""
    abouts = sorted((a for a in meta.get("ranks", ()) if a.get("load", {}).get("cpus")), key=lambda a: int(a["rank"]))
    if [int(about["rank"]) for about in abouts] != list(range(num_ranks)):
        return None
    places = [Place(a["load"]["booted_s"], a["host"], frozenset(a["load"]["cpus"]), {}) for a in abouts]
    groups = domains(places)
    worst = max(groups, key=lambda group: len(group.ranks) / len(group.cpus))
    crowded = {
        rank: i for i, group in enumerate(groups, 1) if len(group.ranks) > len(group.cpus) for rank in group.ranks
    }
    waited = np.array([_waited(about["load"]) for about in abouts])
    sharing = tuple(crowded.get(rank, 0) for rank in range(num_ranks))
    return Crowding(len(worst.ranks), len(worst.cpus), waited, sharing, tuple(about["load"] for about in abouts))


def _waited(load: Mapping[str, Any]) -> float:
    """Return the share of the run that a rank waited for a core."""
    times_s, waited_s = load["time_s"], load["waited_s"]
    if len(times_s) < 2 or None in waited_s or times_s[-1] <= times_s[0]:
        return float("nan")
    return min(float((waited_s[-1] - waited_s[0]) / (times_s[-1] - times_s[0])), 1.0)


class Settled(NamedTuple):
    """A model without waits for cores. `left`: the share of the ranks' seconds of such waits that it still has."""

    model: ReplayModel
    left: float = 1.0


def settled(model: ReplayModel, found: Crowding | None, site: Site) -> Settled:
    """Return the model as if each rank had a core of its own, as far as the trace shows it.

    A trace has how long a rank waited for a core in each piece of its work (`ReplayModel.core_waits`). Older ones have
    the sum only: it is taken from pieces that took longer than the usual one between the same two calls, in proportion.
    Messages and collectives that took longer than the quick ones of their size, since a rank did not run, lose at most
    what all ranks waited.
    """
    if found is None or not found.notes:
        return Settled(model)
    excess = _Excess(model, found.sharing, site)
    waited = np.where(np.isnan(found.waited), 1.0, found.waited)  # crowded, and not counted: no bound is known
    budget_s = waited * model.makespan_s
    if model.core_waits is None:
        own = np.array([_in_own_time(model, found, rank) for rank in range(len(model.steps))])
        of_gaps = of_calls = np.minimum(own * budget_s / np.maximum(excess.of_gaps_s + excess.of_calls_s, 1e-9), 1.0)
        left_s = budget_s
    else:  # all that the kernel counted in each piece of work; the rest was within calls
        of_gaps, left_s = np.ones(len(model.steps)), np.maximum(budget_s - excess.of_gaps_s, 0.0)
        of_calls = np.minimum(left_s / np.maximum(excess.of_calls_s, 1e-9), 1.0)
    met = min(float(left_s.sum()) / max(excess.met_s, 1e-9), 1.0)
    steps = [
        [_less(step, of_gaps[rank] * gap, of_calls[rank] * call) for step, gap, call in zip(*its, strict=True)]
        for rank, its in enumerate(zip(model.steps, excess.gaps_s, excess.calls_s, strict=True))
    ]
    messages = tuple(
        replace(it, delay_s=it.delay_s - met * more) if it.delay_s is not None and more > 0 else it
        for it, more in zip(model.messages, excess.messages_s, strict=True)
    )
    collectives = tuple(
        replace(it, seconds=it.seconds - met * more, own_s=min(it.own_s, it.seconds - met * more)) if more > 0 else it
        for it, more in zip(model.collectives, excess.collectives_s, strict=True)
    )
    taken_s = float((of_gaps * excess.of_gaps_s + of_calls * excess.of_calls_s).sum())
    changed = model.with_steps(steps, messages=messages, collectives=collectives)
    kept_s = min(float(budget_s.sum()) - taken_s, _most_left_s(changed, float(excess.of_gaps_s.sum())))
    return Settled(changed, max(kept_s, 0.0) / max(float(budget_s.sum()), 1e-9))


def _most_left_s(model: ReplayModel, taken_s: float) -> float:
    """Return the most that all ranks may still wait for cores in a model whose work has lost `taken_s` of such waits.

    The kernel counted these waits for each piece of work. Any others were within calls, and a replay does not repeat
    those of a rank that waits for another rank.
    """
    if model.core_waits is None:
        return float("inf")
    missed_s = max(sum(model.core_waits.values()) - taken_s, 0.0)
    return missed_s + sum(_within_calls_s(model, steps) for steps in model.steps)


def _within_calls_s(model: ReplayModel, steps: Sequence[Step]) -> float:
    """Return the seconds that a rank is in calls, without waits for other ranks: its own, and those of transfers."""
    own_s = sum(step.within_s for step in steps)
    messages_s = sum(model.messages[it.number].delay_s or 0.0 for it in steps if it.kind == "received")
    return own_s + messages_s + sum(model.collectives[it.number].seconds for it in steps if it.kind == "joined")


def _in_own_time(model: ReplayModel, found: Crowding, rank: int) -> float:
    """Return the share of a rank's waits for a core that may fall into its own time, not into its waits in MPI.

    All of them may, unless the rank sleeps. Libraries poll in waits: so a rank that sleeps does so in its own time, for
    example while a device works, unless it sleeps longer than that takes. Then it waits for a core as often in all the
    time in which it does not sleep.
    """
    own_s = sum(step.seconds for step in model.steps[rank])
    slept_s = found.slept_s(rank, model.makespan_s)
    if not SLACK * own_s < slept_s <= (1 + SLACK) * own_s:
        return 1.0
    return max(own_s - slept_s, 0.0) / max(model.makespan_s - slept_s, 1e-9)


def _less(step: Step, gap: float, call: float) -> Step:
    if not gap and not call:
        return step
    after_s = max(step.after_s - call, 0.0)
    within_s = max(step.within_s - call, 0.0)
    return step._replace(seconds=max(step.seconds - gap - call, within_s), within_s=within_s, after_s=after_s)


class _Excess:
    """What pieces took beyond their like, of each rank's work and calls, and (`met_s`) of all that ranks share.

    Messages between ranks that share cores are alike whichever of these ranks they join.
    """

    def __init__(self, model: ReplayModel, sharing: Sequence[int], site: Site) -> None:
        if model.core_waits is None:
            self.gaps_s = [_of_steps(steps, site, gap_s, GRAIN_S) for steps in model.steps]
        else:
            self.gaps_s = [_counted(steps, model.core_waits) for steps in model.steps]
        self.calls_s = [_of_steps(steps, site, lambda step: step.within_s) for steps in model.steps]
        sizes = [(*_way(sharing, it.src, it.dst), it.num_bytes) for it in model.messages]
        self.messages_s = _beyond(sizes, [it.delay_s or 0.0 for it in model.messages], QUICK)
        kinds = [(it.name, it.group, it.num_bytes) for it in model.collectives]
        self.collectives_s = _beyond(kinds, [it.seconds for it in model.collectives], QUICK)
        self.of_gaps_s, self.of_calls_s = (np.array(list(map(sum, each))) for each in (self.gaps_s, self.calls_s))
        of_collective = {it.collective: more for it, more in zip(model.collectives, self.collectives_s, strict=True)}
        self.met_s = sum(self.messages_s) + sum(of_collective.values())


def _counted(steps: Sequence[Step], waits: Mapping[int, float]) -> list[float]:
    """Return for each step how long its rank waited for a core in the work before it, as the kernel counted it."""
    found, before = [], -1
    for step in steps:
        found.append(min(waits.get(step.row, 0.0), gap_s(step)) if step.row != before else 0.0)
        before = step.row
    return found


def _way(sharing: Sequence[int], src: int, dst: int) -> tuple[int, int]:
    """Return the two ranks that a message joins; the number of their group twice if they share crowded cores."""
    return (-sharing[src], -sharing[src]) if sharing[src] == sharing[dst] > 0 else (src, dst)


def _of_steps(steps: Sequence[Step], site: Site, value: Callable[[Step], float], least: float = 0.0) -> list[float]:
    """Return for each step its value beyond the usual one, of at least `least`, between the same two call sites."""
    places = [site(step.row) if step.row >= 0 else "" for step in steps]
    pairs = zip(["", *places], places, [step.kind for step in steps], strict=False)
    return _beyond(pairs, [value(step) for step in steps], USUAL, least)


def _beyond(keys: Iterable[Any], values: Sequence[float], percentile: int, least: float = 0.0) -> list[float]:
    """Return by how much each value exceeds that percentile of the values with its key that are `least` or more.

    Shorter pieces are no work, but lie between calls of a loop, after which work of the same two call sites may follow.

    >>> _beyond("aabaaa", [1.0, 1.0, 7.0, 1.0, 4.0, 0.5], 25)
    [0.0, 0.0, 0.0, 0.0, 3.0, 0.0]
    >>> _beyond("aaaaaa", [0.1, 0.1, 0.1, 0.1, 4.0, 4.5], 25, 0.2)
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.375]
    """
    at: dict[Any, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        if values[i] >= least:
            at[key].append(i)
    found = [0.0] * len(values)
    for those in at.values():
        low = float(np.percentile([values[i] for i in those], percentile))
        for i in those:
            found[i] = max(values[i] - low, 0.0)
    return found
