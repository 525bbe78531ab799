"""The search for a plan: wish and machine in, the fastest proved schedule out, and why it was taken."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal, NamedTuple

from dovetail.core import PlanError
from dovetail.ir.certificate import Certificate
from dovetail.ir.verify import verify
from dovetail.machine import Machine, load
from dovetail.matmul import MatmulAllReduce
from dovetail.plan.candidates import FAMILIES, Candidate, Scored, candidates, score, sliced
from dovetail.plan.plan import Plan
from dovetail.plan.polish import polished
from dovetail.plan.reasons import EQUAL, Ideal, baseline, choices, label, published, rivals
from dovetail.plan.task import Options, Task
from dovetail.plan.tiles import Reading

Schedule = Literal["auto", "serial", "uniform", "mc2", "optimal"]


class Proved(NamedTuple):
    """The candidate to take and its certificate; why faster ones were refused."""

    scored: Scored
    certificate: Certificate
    refused: tuple[str, ...]


def plan(
    wish: MatmulAllReduce,
    machine: Machine | str,
    *,
    ranks: int | None = None,
    schedule: Schedule | str = "auto",
    reading: Reading = "max",
    contention: float | None = None,
    floor: int | None = None,
    align: int | None = None,
    max_tiles: int | None = None,
    all_reduce: str = "auto",
    rows_per_message: int | None = None,
    noise: float = 0.0,
    extrapolate: bool = False,
) -> Plan:
    """The fastest schedule of `wish` on `ranks` ranks of `machine` (all of them unless said), as predicted.

    `schedule` names a family to keep to; "auto" weighs all, and takes the fastest serial unless the gain over it
    exceeds `noise` (a share of the serial time). `reading` is the rule of MC²'s short block (seed 000): `max` as in
    its worked example, or `min` as in its text. `contention` replaces the measured slow-downs by one factor on
    communication. `floor`, `align`: least rows of a tile of the optimum, and what its lengths are multiples of;
    `max_tiles` limits every family. `all_reduce`: `library`, or our own `exchange` or `ring` (whose messages
    `rows_per_message` cuts).

    Raises PlanError for an unknown choice, WishError for too many ranks, CostError where the machine lacks a cost
    (or, unless `extrapolate`, was not measured that far).

    >>> made = plan(MatmulAllReduce(4096, 3072, 8192, "float16"), "atlas-a2-8", schedule="mc2", contention=1.0)
    >>> made.tiles, round(made.predicted_s * 1e6), round(made.serial_s * 1e6)
    ((512, 896, 896, 896, 896), 1283, 1734)
    """
    options = Options(
        _family(schedule),
        reading,
        contention,
        floor,
        align,
        max_tiles,
        all_reduce,
        rows_per_message,
        noise,
        extrapolate,
    )
    task = Task.of(
        wish, load(machine) if isinstance(machine, str) else machine, ranks, options
    )  # wish → what to decide
    scored = score(task, candidates(task))  # → Programs → prices → simulated
    scored += score(task, sliced(task, scored))  # → the best with their messages cut
    ranked = sorted(scored, key=lambda each: each.order)  # → fastest first
    scored += score(task, polished(task, ranked))  # → the best with their tiles moved
    ranked = sorted(scored, key=lambda each: each.order)  # → fastest first
    taken = guard(task, ranked)  # → verified; serial unless it gains more than the noise
    return _reasoned(task, taken, ranked)  # → Plan


def guard(task: Task, ranked: Sequence[Scored]) -> Proved:
    """The fastest candidate of the family asked for that can be proved; of any family, it must beat serial."""
    asked = task.options.schedule
    serial = next(each for each in ranked if each.family == "serial")
    refused: list[str] = []
    for each in ranked:
        if asked == "auto" and each.family != "serial" and not _gains(task, each, serial):
            break
        if asked not in ("auto", each.family) or not _reading_asked(task, each.candidate):
            continue
        certificate = verify(each.program)
        if certificate.ok:
            return Proved(each, certificate, tuple(refused))
        failed = next(check.message for check in certificate.checks.values() if not check.ok)
        refused.append(f"{label(task, each.candidate)} was refused by its certificate: {failed}")
    if asked not in ("auto", "serial"):
        raise PlanError(f"no {asked} schedule fits", found="; ".join(refused) or "no candidate", hint="try 'auto'")
    certificate = verify(serial.program)
    certificate.raise_if_bad()
    return Proved(serial, certificate, tuple(refused))


def _reasoned(task: Task, taken: Proved, ranked: Sequence[Scored]) -> Plan:
    """The Plan of the taken candidate: its times, losses, rivals and notes."""
    scored, candidate = taken.scored, taken.scored.candidate
    serials = [each for each in ranked if each.family == "serial"]
    ideal = Ideal.of(task, serials)
    return Plan(
        scored.family,
        task.wish,
        task.ranks,
        choices(task, candidate),
        task.machine.name,
        scored.program,
        taken.certificate,
        scored.timeline,
        baseline(serials).predicted_s,
        ideal.compute_s,
        ideal.comm_s,
        ideal.lost(scored),
        rivals(task, ranked, scored, ideal),
        dict(candidate.tiling.steps),
        (*task.notes, *candidate.tiling.notes, *taken.refused, *_assumptions(task)),
        published(task, serials),
        task.options.noise,
    )


def _assumptions(task: Task) -> tuple[str, ...]:
    """What the predictions take for granted, as one sentence, where there is anything."""
    lines = task.model.assumptions()
    return (f"Taken for granted: {'; '.join(lines)}.",) if lines else ()


def _family(schedule: str) -> str:
    if schedule in ("auto", *FAMILIES):
        return schedule
    near = difflib.get_close_matches(str(schedule), ("auto", *FAMILIES), 1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise PlanError(f"no schedule '{schedule}'", hint=f"{hint}There are auto, {', '.join(FAMILIES)}")


def _gains(task: Task, each: Scored, serial: Scored) -> bool:
    return serial.predicted_s - each.predicted_s > max(task.options.noise, EQUAL) * serial.predicted_s


def _reading_asked(task: Task, candidate: Candidate) -> bool:
    """False for MC² by the other reading, which is a rival only."""
    return candidate.tiling.steps.get("reading", task.options.reading) == task.options.reading
