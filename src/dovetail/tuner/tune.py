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
RIVALS = 5  # of the best predicted that are measured
COMPUTE, MESSAGES, OWN = "compute alone", "communication alone", "own messages alone"
ENGINES = (COMPUTE, "compute"), (MESSAGES, "net")  # of either side

# Attributes that a tune document has under their names, and what reads each.
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
        Loss → seconds by which the measured run exceeds its ideal.
    adjusted_ideal_s : float
        Ideal time if contention stretches each side throughout.
    shared_ideal_s : float
        Ideal time if contention stretches each side only while the other is active.
    machine : Machine
        The probed machine.
    seed : int
        Seed of the inputs.
    notes : tuple of str
        Sentences for the user.
    cil : (float, float)
        Probed slow-down of computation beside messages of the plan's size, and of these messages.
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
        """Measured outcome of the serial schedule."""
        return self.judged.serial

    @property
    def planned(self) -> Outcome:
        """Measured outcome of the schedule taken."""
        return self.judged.taken

    @property
    def compute_s(self) -> float:
        """Measured seconds of all computation in isolation."""
        return self.judged.beside.get(COMPUTE, 0.0)

    @property
    def comm_s(self) -> float:
        """Measured seconds of all communication in isolation."""
        return self.judged.beside.get(MESSAGES, self.serial.median_s)

    @property
    def ideal_s(self) -> float:
        """Perfect overlap: the longer of `compute_s` and `comm_s`."""
        return max(self.compute_s, self.comm_s)

    @property
    def speedup(self) -> float:
        """Median seconds of serial over those of the schedule taken."""
        return self.judged.speedup

    @property
    def keeps_serial(self) -> bool:
        """Whether no schedule beat serial beyond the noise."""
        return self.judged.keeps_serial

    @property
    def ideal_gain(self) -> float | None:
        """Share of (serial - ideal) that was won; None where serial is kept."""
        return self.gain_of(self.ideal_s)

    def gain_of(self, ideal_s: float) -> float | None:
        """Share of (serial - `ideal_s`) that was won: 0 if none could be won; None if serial was kept."""
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
        """Write the files that `load`, and every verb of the command line, reads; return the path of `tune.json`.

        Beside it in the folder are `plan.json`, `machine.json`, and the timelines `predicted.json` and `measured.json`.
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
        """Return the result in a folder that `save` or `dovetail tune` wrote, or in the `tune.json` of one.

        Raises
        ------
        DovetailError
            Where a file of the folder cannot be read, or holds something else; the error names the file.
        ProgramError
            Where the plan's program no longer holds.
        """
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        measured, plan, machine = folder / "measured.json", Plan.load(folder), Machine.load(folder / "machine.json")
        taken = load_document(measured, Timeline.from_json, "timeline") if measured.exists() else None
        return load_document(path, lambda document: _result(document, plan, machine, taken), "tune")


def _result(document: Mapping[str, Any], plan: Plan, machine: Machine, measured: Timeline | None) -> TuneResult:
    """Return the result in a document, with the plan and the measured timeline beside it."""
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
        Folder for plan, timelines and `tune.json`. Results from before a failure stay there.
    executor : Executor, optional
        Runs the ranks. Default: MPI.
    machine : Machine, optional
        Machine to plan for. Default: probe it, or use the cached one.
    schedule : str
        A family to measure and take, even if it is slower. "auto": the fastest of all, or serial.
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
    own = costs_on(base, operator, ranks) if runner.launched_by else None  # of computations and the library's calls
    kept = {COMPUTE: own, MESSAGES: own, OWN: None if machine else machine_item(runner.launched_by, ranks)}
    final = ended.judged[0]
    if final.entry.computes:
        wrong = note_doubts(contradictions(dict(sides(found)), final, known), kept)
    else:
        wrong = note_doubts(contradicted_whole(final, known, (MESSAGES, OWN)), kept)
    notes = (*ended.notes, *probed_beside_load(known.costs), *wrong)
    return explained(best, replace(ended, notes=notes), known, place, seed)


def _refuse_empty(operator: Operator, ranks: int) -> None:
    """OperatorError for what has kernels, and nothing for them to compute: no curve of it can be probed."""
    serial = operator.serial(ranks)
    if operator.workload(operator.program(serial, ranks), serial).forms and not operator.samples(ranks):
        hint = "make its sizes greater than 0; calls and plans of none need no tuning"
        raise OperatorError(f"there is nothing to tune: {operator.title} computes nothing", hint=hint)


def fresh_seed(seed: int | None) -> int:
    """The seed given, else a new one: inputs are fresh unless a run is to be repeated."""
    return secrets.randbelow(1 << 31) if seed is None else seed


def entry_of(found: Plan, asked: str) -> Entry:
    """Return the contest's entry: the plan and its best predicted rivals, serial, and either side in isolation."""
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
        notes = found.schedule.notes if family == found.family else ()  # notes hold for a whole family, of any grain
        best = with_schedule(found, replace(judged.schedule, family=family, notes=notes), costs, why)
    return best.with_measured(judged.tried)


def explained(best: Plan, ended: Contest, machine: Machine, out: Path, seed: int) -> TuneResult:
    """Compare prediction and measurement, and save both; a full disk costs only the files."""
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
    """Attribute the measured run's excess over the ideal, with the machine's curves."""
    if COMPUTE not in judged.beside:
        return {}
    try:
        prices = price(
            best.program, machine, best.operator.workload(best.program, best.schedule), 1.0, extrapolate=True
        )
        posted = np.zeros(best.program.num_ops, dtype=bool)  # receives are posted ahead: no send waits for its own
        columns = prices.work_s, prices.wire_s, prices.latency_s, posted
        alone = Alone(*columns, judged.beside[COMPUTE], judged.beside[MESSAGES])
        seen = on_the_wire(judged.taken.timelines[0], best.program)
        return attribute(seen, best.program, alone).losses
    except DovetailError:
        return {}


def stretch(best: Plan, machine: Machine) -> tuple[float, float]:
    """Probed slow-downs: of computation beside messages of the plan's size, and of these messages."""
    longest = longest_message(best)
    if best.ranks < 2 or not longest:
        return 1.0, 1.0
    model = CostModel.of(machine)
    return float(model.factor("cil:compute", longest)), float(model.factor("cil:net", longest))


def longest_message(best: Plan) -> int:
    """Bytes of the longest message of a plan, or of the library's call on the largest part."""
    predicted = best.predicted.columns
    talks = ~np.isin(predicted["lane"], [i for i, lane in enumerate(best.program.lanes) if lane.engine == "compute"])
    return int(predicted["num_bytes"][talks].max(initial=0))


def adjusted_ideals_s(compute_s: float, comm_s: float, cil: tuple[float, float]) -> tuple[float, float]:
    """Ideal seconds under contention: if each side is stretched throughout, and if only while the other is active.

    While both are active, the one that ends first takes its stretched time; the other advances by 1 / its slow-down.
    """
    work = zip((compute_s, comm_s), cil, strict=True)
    (first_s, first), (last_s, last) = sorted(work, key=lambda side: side[0] * side[1])
    both_s = first_s * first
    return max(both_s, last_s * last), both_s + max(last_s - both_s / last, 0.0)
