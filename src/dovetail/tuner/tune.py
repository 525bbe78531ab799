"""tune: probe → plan → prove → run interleaved with serial → save → compare, in one function."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.core import EnvironmentFault, OperatorError, Say, parse_count, save_json
from dovetail.ir import SERIAL, Kind, Operator, Schedule
from dovetail.ir.registry import checked_operator
from dovetail.machine import Machine
from dovetail.passes.keep_engine import keep_engine
from dovetail.planner.costs import Costs, check_options
from dovetail.planner.plan import Plan
from dovetail.planner.rival import MEASURED_SLOWER, WITHIN_NOISE
from dovetail.planner.search import plan, with_schedule
from dovetail.prober.take import Budget, probed_beside_load
from dovetail.run.engine import needs_order
from dovetail.run.executor import Executor, executor_on
from dovetail.run.job import Job, Variant
from dovetail.run.options import RunOptions
from dovetail.store.machines import costs_on, machine_item
from dovetail.store.program_cache import save_program, save_proof
from dovetail.store.tuned_schedules import save_schedule
from dovetail.tuner.contest import Contest, Judged, contest
from dovetail.tuner.doubts import contradicted_whole, contradictions, note_doubts
from dovetail.tuner.losses import adjusted_ideals_s, measured_losses, stretch
from dovetail.tuner.machines import hosts_of, machine_for, machine_of
from dovetail.tuner.measure import PATIENCE, Entry
from dovetail.tuner.result import COMPUTE, MESSAGES, OWN, TuneResult

RIVALS = 5  # number of the best predicted schedules that are measured
ENGINES = (COMPUTE, "compute"), (MESSAGES, "net")  # the engine whose ops each side keeps


def tune(
    operator: Operator,
    ranks: int,
    *,
    out: Path | str = "dovetail-tune",
    executor: Executor | None = None,
    machine: Machine | None = None,
    schedule: str = "auto",
    contention: float | None = None,
    rounds: int = 9,
    budget_s: float = 120.0,
    probing: Budget | None = None,
    fresh: bool = False,
    seed: int | None = None,
    say: Say | None = None,
    **options: Any,
) -> TuneResult:
    """Find the fastest schedule of `operator` by prediction, then by measurement against serial.

    Probes the machine, plans, proves, runs the best schedules interleaved with serial, checks their results, and saves
    the fastest for later calls.

    Parameters
    ----------
    operator : Operator
        What to compute.
    ranks : int
        Number of ranks.
    out : path
        Folder for the plan, timelines and `tune.json`. If tuning fails, the files written so far stay there.
    executor : Executor, optional
        Runs the ranks. Default: MPI.
    machine : Machine, optional
        Machine to plan for. Default: probe it, or use the cached one.
    schedule : str
        "auto": take the fastest of all schedules, or serial. Else a family, which is taken even if it is slower.
    contention : float, optional
        As in `plan`.
    rounds : int
        Rounds of the final.
    budget_s : float
        Approximate seconds that measuring may take.
    probing : Budget, optional
        Time that each probed cost of this operator may take.
    fresh : bool
        Probe again, ignoring the cache.
    seed : int, optional
        Seed of the inputs. Default: random.
    say : callable, optional
        Called with a text and the share done, 0 to 1.
    **options
        Options of the operator's schedules, which differ by operator; as in `plan`.

    Returns
    -------
    TuneResult
        The plan taken, the measurements, and the losses.

    Raises
    ------
    OperatorError
        If the operator has nothing to compute, or cannot run on these ranks.
    PlanError
        If the family or an option is unknown (the error names the nearest).
    RunError
        If a rank fails.
    """
    operator, ranks = checked_operator(operator), parse_count(ranks, "ranks", least=1)
    check_options(operator, options, tune.__kwdefaults__)
    _refuse_empty(operator, ranks)
    notify, seed, place = say or (lambda what, done: None), fresh_seed(seed), Path(out)
    runner = (executor or executor_on()).in_folder(place / "runs")
    base = machine or machine_of(runner, ranks, fresh=fresh, say=notify)  # executor → machine, cached
    known = machine_for(
        runner, base, operator, ranks, probing, fresh=fresh, say=notify
    )  # → with the costs of this operator
    found = plan(  # → proved plan
        operator, known, ranks=ranks, schedule=schedule, contention=contention, extrapolate=True, **options
    )
    save_json(place / "plan.json", found.to_json())
    costs, _ = Costs.of(operator, known, ranks, options, contention, extrapolate=True)
    ended = contest(  # → measured interleaved
        [entry_of(found, schedule)],
        runner,
        rounds=rounds,
        budget_s=budget_s,
        seed=seed,
        say=lambda what, done: notify(what, 0.75 + 0.25 * done),
        keep=schedule != "auto",
    )
    best = chosen(found, ended.judged[0], costs)  # → the fastest, or serial, proved
    save_json(place / "plan.json", best.to_json())
    if schedule == "auto" and runner.launched_by is not None:  # → for calls on arrays of these shapes
        save_schedule(best.operator, best.schedule, str(ended.facts["mpi"]), hosts_of(ended.facts, ranks))
        save_program(best.operator, best.schedule, ranks, best.program)
        if best.certificate.ok:
            save_proof(best.operator, best.schedule, best.program, in_order=needs_order(best.program))
    own = costs_on(base, operator, ranks) if runner.launched_by else None  # where the operator's costs are cached
    kept = {COMPUTE: own, MESSAGES: own, OWN: None if machine else machine_item(runner.launched_by, ranks)}
    final = ended.judged[0]
    if final.entry.computes:
        wrong = note_doubts(contradictions(dict(sides(found)), final, known), kept)
    else:
        wrong = note_doubts(contradicted_whole(final, known, (MESSAGES, OWN)), kept)
    notes = (*ended.notes, *probed_beside_load(known.costs), *wrong)
    return explained(best, replace(ended, notes=notes), known, place, seed)


def _refuse_empty(operator: Operator, ranks: int) -> None:
    """Raise OperatorError if the operator has kernels but nothing to compute, so that no cost can be probed."""
    serial = operator.serial(ranks)
    if operator.workload(operator.program(serial, ranks), serial).forms and not operator.samples(ranks):
        hint = "make its sizes greater than 0; empty arrays need no tuning"
        raise OperatorError(f"there is nothing to tune: {operator.title} computes nothing", hint=hint)


def fresh_seed(seed: int | None) -> int:
    """Return the given seed, else a random one."""
    return secrets.randbelow(1 << 31) if seed is None else seed


def entry_of(found: Plan, asked: str) -> Entry:
    """Return the contest's entry: the plan, its best predicted rivals, serial, and each side in isolation."""
    both = {found.schedule: found.predicted_s} | {r.schedule: r.predicted_s for r in found.rivals}
    return replace(
        _entry(found, dict(list(both.items())[: RIVALS if asked == "auto" else 1])), beside=dict(sides(found))
    )


def beside_serial(found: Plan, **options: Any) -> Job:
    """Return a job that interleaves `serial` and `planned`, both checked against float64; options as of `Job`.

    Only `planned` runs if the plan is serial.
    """
    entry = _entry(found, {found.schedule: found.predicted_s})
    both = {} if found.keeps_serial else {"serial": found.serial}
    both["planned"] = found.schedule
    variants = (replace(entry.variant(each, spans=True, check=True), name=name) for name, each in both.items())
    return Job(tuple(variants), **options)


def _entry(found: Plan, predicted: Mapping[Schedule, float]) -> Entry:
    known = {**predicted, found.serial: found.serial_s}
    return Entry(found.operator.title, found.operator, found.ranks, found.serial, known)


def sides(found: Plan) -> list[tuple[str, Variant]]:
    """Return the variants to time in isolation: all computation, all communication, and the plan's own messages.

    Empty if nothing computes.
    """
    how, stall_s = found.schedule, max(RunOptions.stall_s, PATIENCE * found.serial_s)
    options = RunOptions(progress=how.progress, slice_bytes=how.slice_bytes, stall_s=stall_s)
    library = found.operator.serial(found.ranks)
    whole = found.operator.program(library, found.ranks)
    if not (whole.kind == Kind.compute).any():
        return []
    held = found.operator.workload(whole, library)
    parts = [(name, Variant(name, keep_engine(whole, engine), held, options)) for name, engine in ENGINES]
    if found.ranks > 1 and not found.schedule.is_by_library:
        held = found.operator.workload(found.program, found.schedule)
        parts.append((OWN, Variant(OWN, keep_engine(found.program, "net"), held, options)))
    return parts


def chosen(found: Plan, judged: Judged, costs: Costs) -> Plan:
    """Return the plan of the schedule that won the contest, with its rivals' measured seconds."""
    best = found
    if judged.schedule != found.schedule:
        family = SERIAL if judged.keeps_serial else judged.schedule.family
        mine_s, taken_s = (judged.tried.get(each, math.inf) for each in (found.schedule, judged.schedule))
        why = WITHIN_NOISE if mine_s < taken_s else MEASURED_SLOWER
        notes = found.schedule.notes if family == found.family else ()  # notes hold for all schedules of a family
        best = with_schedule(found, replace(judged.schedule, family=family, notes=notes), costs, why)
    return best.with_measured(judged.tried)


def explained(best: Plan, ended: Contest, machine: Machine, out: Path, seed: int) -> TuneResult:
    """Return the result with its losses and ideals, and save it. If the files cannot be written, a note says so."""
    judged = ended.judged[0]
    cil = stretch(best, machine)
    bare = TuneResult(best, judged, ended.facts, {}, 0.0, 0.0, machine, seed, ended.notes, cil)
    adjusted_s, shared_s = adjusted_ideals_s(bare.compute_s, bare.comm_s, cil)
    losses = measured_losses(best, judged, machine)
    result = replace(bare, losses=losses, adjusted_ideal_s=adjusted_s, shared_ideal_s=shared_s)
    try:
        result._save_measured(out)
    except EnvironmentFault as error:
        return replace(result, notes=(f"the report is incomplete: {error.what}, {error.found}", *result.notes))
    return result
