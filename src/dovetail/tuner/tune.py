"""tune: probe → plan → prove → run interleaved with serial → save → compare, in one function."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import (
    DovetailError,
    EnvironmentFault,
    OperatorError,
    Say,
    check_schema,
    load_document,
    parse_count,
    reading,
    save_json,
    seconds_text,
)
from dovetail.cost import CostModel, price
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
from dovetail.run.job import Job, Outcome, Variant
from dovetail.run.options import RunOptions
from dovetail.store.machines import costs_on, machine_item
from dovetail.store.program_cache import save_program, save_proof
from dovetail.store.tuned_schedules import save_schedule
from dovetail.timeline import Alone, Timeline, attribute, on_the_wire
from dovetail.tuner.contest import Contest, Judged, contest
from dovetail.tuner.doubts import contradicted_whole, contradictions, note_doubts
from dovetail.tuner.machines import hosts_of, machine_for, machine_of
from dovetail.tuner.measure import PATIENCE, Entry

SCHEMA = "dovetail.tune/2"
RIVALS = 5  # number of the best predicted schedules that are measured
COMPUTE, MESSAGES, OWN = "compute alone", "communication alone", "own messages alone"
ENGINES = (COMPUTE, "compute"), (MESSAGES, "net")  # the engine whose ops each side keeps

# Attributes that a tune document stores under their own names, and the type that reads each.
FIELDS = {"facts": dict, "losses": dict, "adjusted_ideal_s": float, "shared_ideal_s": float, "seed": int}


@dataclass(frozen=True)
class TuneResult:
    """Result of one tuning: the plan, the final measurement, and the machine that it was planned for.

    Attributes
    ----------
    plan : Plan
        The fastest schedule found, or serial.
    judged : Judged
        The final: serial, the plan, and computation and communication each in isolation.
    facts : mapping
        Facts of the hosts that ran it.
    losses : dict
        Cause → seconds of the measured run's excess over the ideal that it accounts for.
    adjusted_ideal_s : float
        Ideal seconds if contention slows computation and communication from begin to end.
    shared_ideal_s : float
        Ideal seconds if contention slows each of them only while the other is active.
    machine : Machine
        The probed machine.
    seed : int
        Seed of the inputs.
    notes : tuple of str
        Sentences for the user.
    cil : (float, float)
        Probed slowdown of computation by messages of the plan's size, and of these messages by computation.
    report : Path or None
        The HTML page, if one was written.
    """

    plan: Plan
    judged: Judged
    facts: Mapping[str, Any]
    losses: dict[str, float]
    adjusted_ideal_s: float
    shared_ideal_s: float
    machine: Machine
    seed: int
    notes: tuple[str, ...] = ()
    cil: tuple[float, float] = (1.0, 1.0)
    report: Path | None = None

    def __repr__(self) -> str:
        times = f"{seconds_text(self.planned.median_s)} measured, serial {seconds_text(self.serial.median_s)}"
        return f"<TuneResult: {self.plan.operator.title} on {self.plan.ranks} ranks: {self.plan.schedule}; {times}>"

    @property
    def serial(self) -> Outcome:
        """Return the measured outcome of the serial schedule."""
        return self.judged.serial

    @property
    def planned(self) -> Outcome:
        """Return the measured outcome of the schedule taken."""
        return self.judged.taken

    @property
    def compute_s(self) -> float:
        """Return the measured seconds of all computation in isolation."""
        return self.judged.beside.get(COMPUTE, 0.0)

    @property
    def comm_s(self) -> float:
        """Return the measured seconds of all communication in isolation."""
        return self.judged.beside.get(MESSAGES, self.serial.median_s)

    @property
    def ideal_s(self) -> float:
        """Return the seconds of perfect overlap: the larger of `compute_s` and `comm_s`."""
        return max(self.compute_s, self.comm_s)

    @property
    def speedup(self) -> float:
        """Return median seconds of serial over median seconds of the schedule taken."""
        return self.judged.speedup

    @property
    def keeps_serial(self) -> bool:
        """Return whether no schedule beat serial beyond the noise."""
        return self.judged.keeps_serial

    @property
    def ideal_gain(self) -> float | None:
        """Return the gain as a share of (serial - ideal); None if serial was kept."""
        return self.gain_of(self.ideal_s)

    def gain_of(self, ideal_s: float) -> float | None:
        """Return the gain as a share of (serial - `ideal_s`), 0 if that is not positive; None if serial was kept."""
        won_s, room_s = (self.serial.median_s - s for s in (self.planned.median_s, ideal_s))
        return None if self.keeps_serial else max(won_s / room_s, 0.0) if room_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field: the plan's keys, and the figures measured in interleaved runs."""
        document = self.plan.to_json()
        del document["schema"], document["predicted"]
        seconds = {"measured_s": self.planned.median_s, "serial_s": self.serial.median_s, "ideal_s": self.ideal_s}
        plain = {name: vars(self)[name] for name in FIELDS} | {"facts": dict(self.facts)}
        plain |= dict(zip(("cil_compute", "cil_net"), self.cil, strict=True))
        sides = {"compute_s": self.compute_s, "comm_s": self.comm_s, "own_comm_s": self.judged.beside.get(OWN)}
        predicted = {
            "predicted_serial_s": self.plan.serial_s,
            "predicted_ideal_s": self.plan.ideal_s,
            "predicted_losses": dict(self.plan.losses),
        }
        gains = {
            "ideal_gain": self.ideal_gain,
            "adjusted_gain": self.gain_of(self.adjusted_ideal_s),
            "shared_gain": self.gain_of(self.shared_ideal_s),
            "speedup": self.speedup,
        }
        checks = {"max_rel_error": self.planned.max_rel_error, "tolerance": self.planned.tolerance}
        spread = {"serial_spread": self.serial.spread, "measured_spread": self.planned.spread}
        runs = {"rounds": self.judged.rounds, "disturbed": self.judged.disturbed}
        head = {"schema": SCHEMA, **document, **seconds, **plain, **sides, **predicted}
        notes = [*document["notes"], *self.notes]
        about = {
            **checks,
            **spread,
            **runs,
            **self.judged.load.to_json(),
            "report": str(self.report or ""),
            "notes": notes,
        }
        return {**head, **gains, **about, "final": self.judged.to_json()}

    def save(self, folder: str | Path) -> Path:
        """Write the files that `load` and every verb of the command line read; return the path of `tune.json`.

        The folder also gets `plan.json`, `machine.json`, and the timelines `predicted.json` and `measured.json`.
        """
        self.plan.save(Path(folder) / "plan.json")
        return self._save_measured(Path(folder))

    def _save_measured(self, folder: Path) -> Path:
        """Write all but the plan."""
        self.machine.save(folder / "machine.json")
        save_json(folder / "predicted.json", self.plan.predicted.to_json())
        if self.planned.timelines:
            save_json(folder / "measured.json", self.planned.timelines[0].to_json())
        return save_json(folder / "tune.json", self.to_json())

    @staticmethod
    def load(path: str | Path) -> TuneResult:
        """Read a result from a folder that `save` or `dovetail tune` wrote, or from the path of its `tune.json`.

        Raises
        ------
        DovetailError
            If a file of the folder cannot be read, or holds something else; the error names the file.
        ProgramError
            If the plan's program cannot be proved.
        """
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        measured, plan, machine = folder / "measured.json", Plan.load(folder), Machine.load(folder / "machine.json")
        taken = load_document(measured, Timeline.from_json, "timeline") if measured.exists() else None
        return load_document(path, lambda document: _result(document, plan, machine, taken), "tune")


def _result(document: Mapping[str, Any], plan: Plan, machine: Machine, measured: Timeline | None) -> TuneResult:
    """Read a result from its document, given the plan, machine and measured timeline of the same folder."""
    check_schema(document, SCHEMA)
    with reading("tune document"):
        return TuneResult(
            plan,
            Judged.from_json(document["final"], plan.operator, plan.ranks, measured),
            machine=machine,
            notes=tuple(document["notes"][len(plan.notes) :]),
            cil=(float(document["cil_compute"]), float(document["cil_net"])),
            report=Path(document["report"]) if document["report"] else None,
            **{name: read(document[name]) for name, read in FIELDS.items()},
        )


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


def measured_losses(best: Plan, judged: Judged, machine: Machine) -> dict[str, float]:
    """Attribute the measured run's excess over the ideal to causes, by the machine's costs; seconds by cause."""
    if COMPUTE not in judged.beside:
        return {}
    try:
        prices = price(
            best.program, machine, best.operator.workload(best.program, best.schedule), 1.0, extrapolate=True
        )
        posted = np.zeros(best.program.num_ops, dtype=bool)  # receives are posted early, so no send waits for one
        columns = prices.work_s, prices.wire_s, prices.latency_s, posted
        alone = Alone(*columns, judged.beside[COMPUTE], judged.beside[MESSAGES])
        seen = on_the_wire(judged.taken.timelines[0], best.program)
        return attribute(seen, best.program, alone).losses
    except DovetailError:
        return {}


def stretch(best: Plan, machine: Machine) -> tuple[float, float]:
    """Return the probed slowdowns of computation by messages of the plan's size, and of these by computation."""
    longest = longest_message(best)
    if best.ranks < 2 or not longest:
        return 1.0, 1.0
    model = CostModel.of(machine)
    return float(model.factor("cil:compute", longest)), float(model.factor("cil:net", longest))


def longest_message(best: Plan) -> int:
    """Return the bytes of the plan's longest message or library call."""
    predicted = best.predicted.columns
    talks = ~np.isin(predicted["lane"], [i for i, lane in enumerate(best.program.lanes) if lane.engine == "compute"])
    return int(predicted["num_bytes"][talks].max(initial=0))


def adjusted_ideals_s(compute_s: float, comm_s: float, cil: tuple[float, float]) -> tuple[float, float]:
    """Return ideal seconds if contention slows both sides from begin to end, and if only while both are active.

    `cil`: slowdowns of computation and communication. While both are active, each side advances by 1 / its slowdown;
    once the first has ended, the other advances at full speed.
    """
    work = zip((compute_s, comm_s), cil, strict=True)
    (first_s, first), (last_s, last) = sorted(work, key=lambda side: side[0] * side[1])
    both_s = first_s * first
    return max(both_s, last_s * last), both_s + max(last_s - both_s / last, 0.0)
