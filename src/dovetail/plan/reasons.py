"""Reasons: what the taken schedule loses against the ideal, and why each rival was not taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.ir import Kind
from dovetail.plan.candidates import Candidate, Scored, score
from dovetail.plan.explain import seconds, share
from dovetail.plan.plan import Choices, Rival
from dovetail.plan.task import Task
from dovetail.timeline import Alone, losses

EQUAL = 1e-9  # predictions closer than this part of each other are the same


@dataclass(frozen=True)
class Ideal:
    """The yardstick of every candidate: all compute and all communication, each uncut, alone and uncontended."""

    task: Task
    compute_s: float
    comm_s: float

    @staticmethod
    def of(task: Task, serials: Sequence[Scored]) -> Ideal:
        """What the serial schedules are made of; of several all-reduces, the fastest."""
        calm = serials if task.options.contention is None else score(_calm(task), [s.candidate for s in serials])
        compute_s = min(_compute_s(each) for each in calm)
        return Ideal(task, compute_s, min(each.predicted_s - _compute_s(each) for each in calm))

    def lost(self, each: Scored) -> dict[str, float]:
        """Where `each` loses the seconds by which it exceeds the ideal (see `timeline.losses`)."""
        prices = each.prices if self.task.options.contention is None else _calm(self.task).price(each.program)
        columns = prices.work_s, prices.wire_s, prices.latency_s, prices.rendezvous
        return losses(each.timeline, each.program, Alone(*columns, self.compute_s, self.comm_s))


def baseline(serials: Sequence[Scored]) -> Scored:
    """The serial schedule that a user has without a plan: by the library where it has a cost, else the fastest."""
    return next((each for each in serials if each.candidate.all_reduce == "library"), serials[0])


def rivals(task: Task, ranked: Sequence[Scored], taken: Scored, ideal: Ideal) -> tuple[Rival, ...]:
    """What was not taken, fastest first, and why: the best of every family, every serial, and the best by every other
    all-reduce of the family that was taken."""
    whole = {"serial", taken.family}

    def kind(each: Scored) -> tuple[str, str, str]:
        steps, by = each.candidate.tiling.steps, each.candidate.all_reduce
        return each.family, str(steps.get("reading", "")), by if each.family in whole else ""

    best: dict[tuple[str, str, str], Scored] = {}
    for each in ranked:
        best.setdefault(kind(each), each)
    best.pop(kind(taken), None)
    return tuple(
        Rival(
            each.family,
            label(task, each.candidate),
            each.predicted_s,
            why_not(task, each, taken, ideal),
            choices(task, each.candidate),
        )
        for each in best.values()
    )


def label(task: Task, candidate: Candidate) -> str:
    """A name for the best of its kind: family, and what else tells it apart among this task's candidates."""
    reading = candidate.tiling.steps.get("reading", task.options.reading)
    name = candidate.tiling.family + ("" if reading == task.options.reading else f" ({reading} reading)")
    return f"{name}, {candidate.all_reduce}" if len(task.kinds) > 1 else name


def choices(task: Task, candidate: Candidate) -> Choices:
    """What a plan of `candidate` decides; how messages are driven is a fact of the machine where it has one."""
    driven = {key: task.machine.facts[key] for key in ("progress", "block_rows") if key in task.machine.facts}
    return Choices(candidate.tiling.tiles, candidate.all_reduce, candidate.rows_per_message, **driven)


def why_not(task: Task, each: Scored, taken: Scored, ideal: Ideal) -> str:
    """One line: slower, by how much and mostly by what; or why it was passed over though it is faster."""
    ahead = taken.predicted_s - each.predicted_s
    if abs(ahead) <= EQUAL * taken.predicted_s:
        same = each.candidate.tiling.tiles == taken.candidate.tiling.tiles
        return "the same tiles" if same and each.family != taken.family else "no faster"
    if ahead > 0:
        return _passed_over(task, each, taken, ahead)
    text = f"{share(-ahead / taken.predicted_s)} slower" if taken.predicted_s else f"{seconds(-ahead)} slower"
    here, there = ideal.lost(taken), ideal.lost(each)
    excess = {name: there[name] - here.get(name, 0.0) for name in there}
    worst = max(excess, key=lambda name: excess[name], default=None)
    return text if worst is None or excess[worst] <= 0 else f"{text}, {seconds(excess[worst])} more {worst}"


def published(task: Task, serials: Sequence[Scored]) -> dict[str, Any]:
    """What the machine's source printed for this wish, its gain read over each serial time that it may mean."""
    fact = task.machine.facts.get("published", {})
    wish, per_rank = task.wish, bool(task.machine.facts.get("k_is_per_rank"))
    asked = {"m": wish.m, "k": wish.k // task.ranks if per_rank else wish.k, "n": wish.n, "dtype": wish.dtype}
    if task.ranks != task.machine.ranks or any(fact.get(key) != value for key, value in asked.items()):
        return {}
    library = [each for each in serials if each.candidate.all_reduce == "library"]
    if "planned_s" not in fact or "serial_s" not in fact or not library:
        return {}
    whole_s = _compute_s(library[0])
    comm_s = float(task.model.seconds(task.library_key, wish.m * task.row_bytes, extrapolate=True))
    both = ((fact["serial_s"], "the serial time as printed"), (whole_s + comm_s, "the published curves, uncontended"))
    readings = [
        {"serial_s": serial_s, "gain": 1 - fact["planned_s"] / serial_s, "basis": basis} for serial_s, basis in both
    ]
    return {"planned_s": fact["planned_s"], "readings": readings, "note": fact.get("note", "")}


def _passed_over(task: Task, each: Scored, taken: Scored, ahead: float) -> str:
    gain = share(ahead / taken.predicted_s)
    if task.options.schedule not in ("auto", each.family):
        return f"{gain} faster, but {task.options.schedule} was asked for"
    if task.options.schedule == each.family:
        return f"{gain} faster, but another reading was asked for"
    if taken.family == "serial" and ahead <= task.options.noise * taken.predicted_s:
        return f"gains {gain} on serial, within the noise of {share(task.options.noise)}"
    return f"{gain} faster, but not proved"


def _calm(task: Task) -> Task:
    """The same task without contention."""
    return replace(task, options=replace(task.options, contention=1.0))


def _compute_s(serial: Scored) -> float:
    computes = serial.program.kind == Kind.compute
    return float(np.max(serial.prices.work_s[computes], initial=0.0))
