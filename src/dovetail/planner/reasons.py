"""reasons: what the chosen schedule loses against the ideal, and why each rival was not chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.core import seconds_text, share_text
from dovetail.ir import Kind, Schedule
from dovetail.planner.costs import Costs, Scored
from dovetail.planner.rival import Rival
from dovetail.timeline import Alone, losses

EQUAL = 1e-9  # relative difference below which predictions count as equal


@dataclass(frozen=True)
class Ideal:
    """The lower bound for all candidates: compute and communication, each undivided and without contention."""

    costs: Costs
    compute_s: float
    comm_s: float

    @staticmethod
    def of(costs: Costs, serials: Sequence[Scored]) -> Ideal:
        """Return the least time of computation and the least time of communication of the serial schedules."""
        calm = serials if costs.contention is None else costs.calm.score([s.schedule for s in serials])
        compute_s = min(compute_of(each) for each in calm)
        return Ideal(costs, compute_s, min(each.predicted_s - compute_of(each) for each in calm))

    def lost(self, each: Scored) -> dict[str, float]:
        """Return the losses of `each` against the ideal, in seconds by cause (see `timeline.losses`)."""
        prices = each.prices if self.costs.contention is None else self.costs.calm.scored(each.schedule).prices
        columns = prices.work_s, prices.wire_s, prices.latency_s, prices.rendezvous
        lost = losses(each.timeline, each.program, Alone(*columns, self.compute_s, self.comm_s))
        return lost | ({"handling": each.handling_s} if each.handling_s else {})


def compute_of(serial: Scored) -> float:
    """Return the seconds of computation of a serial schedule, on its slowest rank."""
    computes = serial.program.kind == Kind.compute
    by_rank = np.bincount(serial.program.rank[computes], serial.prices.work_s[computes], serial.program.num_ranks)
    return float(by_rank.max(initial=0.0))


def baseline(serials: Sequence[Scored]) -> Scored:
    """Return the serial schedule that a user has without a plan: by the library if it has a cost, else the fastest."""
    return next((each for each in serials if each.schedule.is_by_library), serials[0])


def rivals(
    asked: str, noise: float, ranked: Sequence[Scored], taken: Scored, lost: Mapping[str, float], ideal: Ideal
) -> tuple[Rival, ...]:
    """Return the schedules that were not chosen, fastest first, each with the reason.

    These are the best of every family; of serial and of the chosen family, the best for every way to communicate.
    `lost`: the losses of the chosen schedule.
    """
    whole = {"serial", taken.family}

    def kind(each: Scored) -> tuple[str, str]:
        return each.family, each.schedule.way if each.family in whole else ""

    best: dict[tuple[str, str], Scored] = {}
    for each in ranked:
        best.setdefault(kind(each), each)
    best.pop(kind(taken), None)
    several = len({each.schedule.way for each in ranked}) > 1
    return tuple(
        Rival(
            label(each.schedule, several=several),
            driven(ideal.costs, each.schedule),
            each.predicted_s,
            why_not(asked, noise, each, taken, lost, ideal),
        )
        for each in best.values()
    )


def label(schedule: Schedule, *, several: bool) -> str:
    """Return a name for the best of its kind: the family and, if `several`, the way to communicate."""
    return f"{schedule.family}, {schedule.way}" if several and schedule.way else schedule.family


def driven(costs: Costs, schedule: Schedule) -> Schedule:
    """Return the schedule with the machine's own settings of progress, if it has any."""
    facts = costs.machine.facts
    return replace(schedule, **{key: facts[key] for key in ("progress", "block_rows") if key in facts})


def why_not(asked: str, noise: float, each: Scored, taken: Scored, lost: Mapping[str, float], ideal: Ideal) -> str:
    """Return the reason in one line: how much slower, and mostly why; or why a faster schedule was not chosen."""
    ahead = taken.predicted_s - each.predicted_s
    if abs(ahead) <= EQUAL * taken.predicted_s:
        same = each.schedule.tiles and each.schedule.tiles == taken.schedule.tiles
        return "the same tiles" if same and each.family != taken.family else "no faster"
    if ahead > 0:
        return _passed_over(asked, noise, each, taken, ahead)
    text = f"{share_text(-ahead / taken.predicted_s)} slower" if taken.predicted_s else f"{seconds_text(-ahead)} slower"
    excess = {name: seconds - lost.get(name, 0.0) for name, seconds in ideal.lost(each).items()}
    worst = max(excess, key=lambda name: excess[name], default=None)
    return text if worst is None or excess[worst] <= 0 else f"{text}, {seconds_text(excess[worst])} more {worst}"


def _passed_over(asked: str, noise: float, each: Scored, taken: Scored, ahead: float) -> str:
    gain = share_text(ahead / taken.predicted_s)
    if asked not in ("auto", each.family):
        return f"{gain} faster, but {asked} was asked for"
    if taken.family == "serial" and ahead <= noise * taken.predicted_s:
        return f"gains {gain} on serial, within the noise of {share_text(noise)}"
    return f"{gain} faster, but not proved"


def published(costs: Costs, operator: Mapping[str, Any], serials: Sequence[Scored]) -> dict[str, Any]:
    """Return what the machine's source published for an operator, given by its document; {} if nothing.

    It is not certain which serial time the published gain refers to, so there is a reading for each.
    """
    fact = costs.machine.facts.get("published", {})
    sizes = {name: value for name, value in operator.items() if name != "schema"}
    if costs.ranks != costs.machine.ranks or any(fact.get(key) != value for key, value in sizes.items()):
        return {}
    library = [each for each in costs.calm.score([baseline(serials).schedule]) if each.schedule.is_by_library]
    if "planned_s" not in fact or "serial_s" not in fact or not library:
        return {}
    both = ((fact["serial_s"], "the serial time as printed"), (library[0].predicted_s, CALM))
    readings = [
        {"serial_s": serial_s, "gain": 1 - fact["planned_s"] / serial_s, "basis": basis} for serial_s, basis in both
    ]
    return {"planned_s": fact["planned_s"], "readings": readings, "note": fact.get("note", "")}


CALM = "the published curves, without contention"
