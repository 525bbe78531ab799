"""search: find the fastest schedule of an operator on a machine, prove it, and give the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dovetail.core import PlanError, did_you_mean
from dovetail.ir import SERIAL, Operator, Program, Schedule
from dovetail.ir.proof.certificate import Certificate
from dovetail.ir.registry import checked_operator, prove
from dovetail.machine import Machine, load
from dovetail.planner.costs import Costs, Scored, check_options
from dovetail.planner.plan import Plan
from dovetail.planner.reasons import EQUAL, Ideal, baseline, driven, label, published, rivals
from dovetail.planner.rival import MEASURED_SLOWER, Rival


class Proved(NamedTuple):
    """The chosen candidate, its program and proof; `refused`: sentences on faster candidates whose proof failed."""

    scored: Scored
    program: Program
    certificate: Certificate
    refused: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """The user's choices: `family` to restrict the search to ("auto": all); a gain below `noise` counts as none."""

    family: str
    noise: float


def plan(
    operator: Operator,
    machine: Machine | str,
    *,
    ranks: int | None = None,
    schedule: str = "auto",
    contention: float | None = None,
    noise: float = 0.0,
    extrapolate: bool = False,
    **options: Any,
) -> Plan:
    """Return the schedule of `operator` with the shortest predicted time on `machine`, proved correct.

    Parameters
    ----------
    operator : Operator
        What to compute.
    machine : Machine or str
        A machine, the name of a preset, or the path of a machine's JSON file.
    ranks : int, optional
        Default: all ranks of the machine.
    schedule : str
        A family to restrict the search to. "auto": all families; serial is taken unless another gains more than
        `noise`.
    contention : float, optional
        One factor on the times of communication, instead of the measured slow-downs.
    noise : float
        Share of the serial time: a smaller gain counts as none.
    extrapolate : bool
        Predict sizes beyond the measured range.
    **options
        Options of the operator's schedules. They differ by operator: `operator.options` lists them (those `of`
        "schedules", with type, choices and a sentence), and so does `dovetail plan OPERATOR --help`. None stands
        for the default.

    Returns
    -------
    Plan
        The schedule, its proved program, its predicted timeline, its rivals and losses.

    Raises
    ------
    PlanError
        If the family or an option is unknown (the error names the nearest), or no schedule of the family fits.
    OperatorError
        If an option is out of range, or there are more ranks than the machine has.
    CostError
        If the machine lacks a cost, or was not measured that far and `extrapolate` is false.

    Examples
    --------
    >>> from dovetail.matmul import MatmulAllReduce
    >>> operator = MatmulAllReduce(4096, 3072, 8192, "float16")
    >>> made = plan(operator, "atlas-a2-8", schedule="mc2", contention=1.0)
    >>> made.tiles, round(made.predicted_s * 1e6), round(made.serial_s * 1e6)
    ((512, 896, 896, 896, 896), 1283, 1734)
    """
    asked = Asked(_family(checked_operator(operator), schedule), _noise(noise))
    check_options(operator, options, plan.__kwdefaults__)
    where = load(machine) if isinstance(machine, str) else machine
    # operator, machine → costs → schedules, simulated → the fastest one, proved → Plan
    costs, notes = Costs.of(operator, where, ranks, options, contention, extrapolate)
    costs = replace(costs, family=asked.family)
    ranked = ranked_schedules(costs)
    taken = guard(costs, asked, ranked)
    return _reasoned(costs, asked, operator, taken, ranked, notes)


def ranked_schedules(costs: Costs) -> list[Scored]:
    """Return all simulated schedules, fastest first. Ties: simplest family, then fewest tiles."""
    families = {family: place for place, family in enumerate(costs.operator.families)}

    def order(each: Scored) -> tuple[float, int, int]:
        simplicity = families.get(each.family, len(families))
        return float(f"{each.predicted_s:.9e}"), simplicity, len(each.schedule.tiles)

    scored = costs.score(map(costs.in_turn, costs.operator.schedules(costs)))
    for turn in range(MOST_TURNS):
        ranked = [each.schedule for each in sorted(scored, key=order)]
        more = costs.score(map(costs.in_turn, costs.operator.refine(costs, ranked, turn)))
        if turn and not more:
            break
        scored += more
    return sorted(scored, key=order)


MOST_TURNS = 4  # most rounds of `Operator.refine`


def guard(costs: Costs, asked: Asked, ranked: Sequence[Scored]) -> Proved:
    """Return the fastest candidate of the wanted family that can be proved. With "auto" it must beat serial."""
    known = (each for each in ranked if each.schedule.is_serial)
    serial = next(known, None) or costs.scored(
        costs.operator.serial(costs.ranks)
    )  # raises an error that names what to probe
    refused: list[str] = []
    several = len({each.schedule.way for each in ranked}) > 1
    for each in ranked:
        if asked.family == "auto" and not each.schedule.is_serial and not _gains(asked, each, serial):
            break
        if asked.family not in ("auto", each.family):
            continue
        program = costs.operator.program(each.schedule, costs.ranks)
        certificate = prove(costs.operator, each.schedule, program)
        if certificate.ok:
            return Proved(costs.exactly(each, program), program, certificate, tuple(refused))
        failed = next(check.message for check in certificate.checks.values() if not check.ok)
        refused.append(f"{label(each.schedule, several=several)} was refused by its certificate: {failed}")
    if asked.family not in ("auto", SERIAL):
        raise PlanError(f"no {asked.family} schedule fits", found="; ".join(refused) or _none(costs), hint="try 'auto'")
    program = costs.operator.program(serial.schedule, costs.ranks)
    certificate = prove(costs.operator, serial.schedule, program)
    certificate.raise_if_bad()
    return Proved(costs.exactly(serial, program), program, certificate, tuple(refused))


def _none(costs: Costs) -> str:
    """Return the message that there is no candidate, with the options asked for."""
    asked = [f"{name}={value}" for name, value in costs.options.items() if value not in (None, "auto")]
    where = f"{costs.operator.title} on {costs.ranks} rank{'s' * (costs.ranks > 1)}"
    return f"{where} has none{' with ' * bool(asked)}{', '.join(asked)}"


def with_schedule(found: Plan, schedule: Schedule, costs: Costs, why: str = MEASURED_SLOWER) -> Plan:
    """Return the plan with `schedule` instead, proved and predicted. `why`: reason against the former schedule."""
    far, program = replace(costs, extrapolate=True), costs.operator.program(schedule, costs.ranks)
    scored = far.exactly(far.scored(schedule), program)
    certificate = prove(costs.operator, schedule, program)
    certificate.raise_if_bad()
    mine = Rival(f"{found.family}, as predicted", found.schedule, found.predicted_s, why)
    others = tuple(rival for rival in found.rivals if rival.schedule != schedule)
    ideal = Ideal(costs, found.compute_s, found.comm_s)
    steps = found.schedule.steps if schedule.tiles == found.tiles else {}
    rest = (note for note in found.notes if note not in found.schedule.notes)
    return replace(
        found,
        schedule=replace(schedule, steps=steps),
        program=program,
        certificate=certificate,
        predicted=scored.timeline,
        handling_s=scored.handling_s,
        losses=ideal.lost(scored),
        rivals=(mine, *others),
        notes=(*schedule.notes, *rest),
    )


def _reasoned(
    costs: Costs, asked: Asked, operator: Operator, taken: Proved, ranked: Sequence[Scored], notes: Sequence[str]
) -> Plan:
    """Return the Plan of the chosen candidate: times, losses, rivals and notes."""
    scored = taken.scored
    serials = [each for each in ranked if each.schedule.is_serial]
    ideal = Ideal.of(costs, serials)
    base, lost = baseline(serials), ideal.lost(scored)
    return Plan(
        driven(costs, scored.schedule),
        costs.operator,
        costs.ranks,
        costs.machine.name,
        taken.program,
        taken.certificate,
        scored.timeline,
        driven(costs, base.schedule),
        base.predicted_s,
        ideal.compute_s,
        ideal.comm_s,
        lost,
        rivals(asked.family, asked.noise, ranked, scored, lost, ideal),
        (*notes, *scored.schedule.notes, *taken.refused, *_assumptions(costs)),
        published(costs, operator.to_json(), serials),
        asked.noise,
        scored.handling_s,
        costs.machine.facts.get("probed"),
    )


def _assumptions(costs: Costs) -> tuple[str, ...]:
    """Yield what the predictions assume, as one sentence, if anything."""
    lines = costs.model.assumptions()
    return (f"Assumed: {'; '.join(lines)}.",) if lines else ()


def _family(operator: Operator, schedule: str) -> str:
    known = ("auto", *operator.families)
    if schedule in known:
        return schedule
    near = did_you_mean(schedule, known)
    raise PlanError(f"no schedule '{schedule}'", hint=f"{near} There are {', '.join(known)}".lstrip())


def _noise(noise: float) -> float:
    if not 0.0 <= noise < 1.0:
        raise PlanError("noise is a share of the serial time, from 0 to 1", found=repr(noise), hint="e.g. 0.02")
    return noise


def _gains(asked: Asked, each: Scored, serial: Scored) -> bool:
    return serial.predicted_s - each.predicted_s > max(asked.noise, EQUAL) * serial.predicted_s
