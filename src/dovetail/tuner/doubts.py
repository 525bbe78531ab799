"""doubts: mark cached costs that the final of a tune contradicts, so that the next tune probes them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dovetail.core import DovetailError, seconds_text
from dovetail.cost import CostModel, price
from dovetail.machine import Machine
from dovetail.run.job import Variant
from dovetail.sim import simulate
from dovetail.store import Item
from dovetail.tuner.contest import Judged
from dovetail.tuner.machines import doubt
from dovetail.tuner.measure import repeats_worth

MARGIN = 0.25  # relative difference allowed beyond the costs' own error; the tolerance of a spot check of messages


class Contradiction(NamedTuple):
    """One side of a plan (all computation, or all communication): its predicted and measured seconds in isolation.

    `predicted_s`: by the cached costs. `measured_s`: in the final.
    """

    side: str
    predicted_s: float
    measured_s: float


def contradictions(
    sides: Mapping[str, Variant], judged: Judged, machine: Machine, seconds: Mapping[str, float] | None = None
) -> list[Contradiction]:
    """Return the sides whose measured seconds differ from the costs by more than the costs' error and `MARGIN`.

    Returns none if other processes disturbed the final. `seconds`: measured, by side; default: `judged.beside`.
    """
    if judged.load.warnings:
        return []
    found, measured = [], seconds or judged.beside
    for name, variant in sides.items():
        try:
            prices = price(variant.program, machine, variant.workload, extrapolate=True)
            predicted_s = simulate(variant.program, prices).makespan_s
        except DovetailError:
            continue
        measured_s, allowed = measured.get(name, predicted_s), MARGIN + _error(machine)
        if not predicted_s / (1 + allowed) <= measured_s <= predicted_s * (1 + allowed):
            found.append(Contradiction(name, predicted_s, measured_s))
    return found


def contradicted_whole(judged: Judged, machine: Machine, names: tuple[str, str]) -> list[Contradiction]:
    """Return contradictions for an operator without computation: of serial, and of the schedule taken if it differs.

    `names`: names of serial and of the schedule taken. Skips short runs, of which one timing covers several: such runs
    overlap one another, and take less than the costs predict.
    """
    ran = {judged.entry.serial: (names[0], judged.serial.median_s)}
    ran.setdefault(judged.schedule, (names[1], judged.taken.median_s))
    alone = {schedule: run for schedule, run in ran.items() if repeats_worth(run[1]) == 1}
    sides = {name: judged.entry.variant(schedule) for schedule, (name, _) in alone.items()}
    return contradictions(sides, judged, machine, dict(alone.values()))


def _error(machine: Machine) -> float:
    """Return the largest median error among the cost curves of computations and collectives."""
    model = CostModel.of(machine)
    names = [key for key in machine.costs if key.startswith("kernel:") or key.endswith(f":{machine.ranks}")]
    errors = [model.curve(name).median_error for name in names]
    return max((each for each in errors if each == each), default=0.0)  # NaN where nothing was measured


def note_doubts(found: list[Contradiction], saved: Mapping[str, Item | None]) -> tuple[str, ...]:
    """Mark the cached costs of each side as doubted; return sentences for the user."""
    marked = {place: doubt(place) for place in dict.fromkeys(saved.get(each.side) for each in found)}
    ends = {True: "the next tune probes anew", False: "probe on a calm machine, with --fresh"}
    return tuple(
        f"{each.side} took {seconds_text(each.measured_s)}, the probed costs say {seconds_text(each.predicted_s)}: "
        f"{ends[marked[saved.get(each.side)]]}"
        for each in found
    )
