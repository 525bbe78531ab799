"""The river in one function: probe → plan → verify → measure → choose → compare → report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.core import DovetailError, EnvironmentFault, load_json, save_json
from dovetail.cost import CostModel
from dovetail.machine import Machine
from dovetail.matmul import MatmulAllReduce
from dovetail.plan import Plan, plan
from dovetail.plan.refine import Measured, Tried, measure_final, refine
from dovetail.probe import Budget, probe_links, probe_matmul
from dovetail.probe.probe import spot_check
from dovetail.report import Losses, Provenance, Row, Summary, write_page
from dovetail.run.mpi import MpiExecutor, default_launch
from dovetail.run.shim import cache_dir
from dovetail.timeline import Alone, attribute

Say = Callable[[str, float], None]
SCHEMA = "dovetail.tune/1"


@dataclass(frozen=True)
class TuneResult:
    """What one tuning found: the plan, the final measurement, and where its page is (None: it could not be written)."""

    plan: Plan
    measured: Measured
    losses: dict[str, float]
    adjusted_ideal_s: float
    machine: Machine
    report: Path | None
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        return self.measured.serial.median_s / self.measured.planned.median_s

    @property
    def adjusted_gain(self) -> float:
        """Share of the gain that is left when each side is stretched by its measured contention."""
        room = self.measured.serial.median_s - self.adjusted_ideal_s
        return (self.measured.serial.median_s - self.measured.planned.median_s) / room if room > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """DESIGN section 10: the plan's keys, and what was measured in one interleaved job."""
        m, document = self.measured, self.plan.to_json()
        del document["schema"], document["predicted"]
        sides = {"compute_s": m.compute_s, "comm_s": m.comm_s, "own_comm_s": m.own_comm_s}
        seconds = {"serial_s": m.serial.median_s, "ideal_s": m.ideal_s, "adjusted_ideal_s": self.adjusted_ideal_s}
        gains = {"ideal_gain": m.ideal_gain, "adjusted_gain": self.adjusted_gain, "speedup": self.speedup}
        checks = {"max_rel_error": m.planned.max_rel_error, "tolerance": m.planned.tolerance}
        spread = {"serial_spread": m.serial.spread, "measured_spread": m.planned.spread, "noise": m.noise}
        runs = {"rounds": m.result.rounds, "disturbed": m.result.disturbed, "facts": m.result.facts}
        losses = {"losses": self.losses, "predicted_losses": dict(self.plan.losses)}
        predicted = {"predicted_serial_s": self.plan.serial_s, "predicted_ideal_s": self.plan.ideal_s}
        head = {"schema": SCHEMA, **document, "measured_s": m.planned.median_s, **seconds, **sides, **predicted}
        report = {"report": str(self.report) if self.report else None, "notes": list(self.notes)}
        return {**head, **losses, **gains, **checks, **spread, **runs, **report}


def tune(
    wish: MatmulAllReduce,
    ranks: int,
    *,
    out: Path,
    executor: MpiExecutor | None = None,
    machine: Machine | None = None,
    schedule: str = "auto",
    rounds: int = 9,
    budget_s: float = 60.0,
    fresh: bool = False,
    seed: int = 0,
    command: str = "",
    say: Say | None = None,
    **options: Any,
) -> TuneResult:
    """Find, prove, run and explain the fastest schedule of `wish` on real ranks. Writes plan, timelines and page to
    `out`; what was found before a failure stays there. `options` are those of `plan`."""
    tell = say or (lambda what, done: None)
    runner = replace(executor or MpiExecutor(), folder=out / "runs")
    base = machine or probed_machine(runner, ranks, fresh=fresh, say=tell)  # machine, cached
    known = product_machine(runner, base, wish, fresh=fresh, say=tell)  # + the costs of this product
    found = plan(wish, known, ranks=ranks, schedule=schedule, extrapolate=True, **options)  # → proved plan
    save_json(out / "plan.json", found.to_json())
    tried = refine(found, runner, seed=seed, say=tell) if schedule == "auto" else []  # → measured
    best = choose(found, known, tried, options)  # → the fastest, or serial
    save_json(out / "plan.json", best.to_json())
    tell("serial and planned in turn", 0.95)
    measured = replace(measure_final(best, runner, rounds=rounds, seed=seed + 1, budget_s=budget_s), tried=tuple(tried))
    if schedule == "auto" and loses(best, measured):
        best = serial_plan(found, known, options)
        measured = replace(
            measure_final(best, runner, rounds=rounds, seed=seed + 2, budget_s=budget_s), tried=tuple(tried)
        )
    return explained(best, measured, known, out, command)


def probed_machine(runner: MpiExecutor, ranks: int, *, fresh: bool, say: Say) -> Machine:
    """The machine behind this launcher, from the cache where a spot check says that it has not changed."""
    path = machine_path(runner.launch or default_launch(), ranks)
    if path.exists() and not fresh:
        cached = Machine.from_json(load_json(path, "cached machine"))
        say("checking the cached machine", 0.05)
        if spot_check(runner, cached):
            return cached
    found = probe_links(runner, ranks, f"probed-{path.stem}", say=say)
    save_json(path, found.to_json())
    return found


def machine_path(launch: str, ranks: int) -> Path:
    """Where the machine behind a launch command is cached."""
    key = hashlib.sha256(f"{launch}\n{ranks}".encode()).hexdigest()[:12]
    return cache_dir() / "machines" / f"{key}.json"


def product_machine(runner: MpiExecutor, machine: Machine, wish: MatmulAllReduce, *, fresh: bool, say: Say) -> Machine:
    """The machine with the costs of this wish's product, cached beside it by shape."""
    path = product_path(machine, wish)
    if path.exists() and not fresh:
        return Machine.from_json(load_json(path, "cached costs"))
    found = probe_matmul(runner, machine, wish, budget=Budget(), say=say)
    save_json(path, found.to_json())
    return found


def product_path(machine: Machine, wish: MatmulAllReduce) -> Path:
    """Where a probed machine with the costs of this wish's product is cached."""
    work = wish.workload(machine.ranks).kernels["matmul"]
    text = f"{machine.name}\n{machine.provenance}\n{wish.m}\n{sorted({w.key for w in work})}\n{machine.facts.get('probed')}"
    return cache_dir() / "products" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def choose(found: Plan, machine: Machine, tried: list[Tried], options: dict[str, Any]) -> Plan:
    """The plan of the fastest that was measured, with its rivals' measured seconds; serial unless that gains enough."""
    if not tried:
        return found
    serial_s = next(t.seconds for t in tried if t.schedule == "serial")
    best = tried[0]
    if best.seconds > 0.98 * serial_s:
        best = next(t for t in tried if t.schedule == "serial")
    taken = found.choices == best.choices
    made = found if taken else with_choices(found, machine, best, options)
    by_choice = {t.choices: t.seconds for t in tried}
    timed = {r.label: by_choice[r.choices] for r in made.rivals if r.choices in by_choice}
    return made.with_measured(timed)


def with_choices(found: Plan, machine: Machine, best: Tried, options: dict[str, Any]) -> Plan:
    """The plan that takes the measured best's choices, predicted anew."""
    return found.with_choices(best.choices, best.schedule, machine, options.get("contention"))


def serial_plan(found: Plan, machine: Machine, options: dict[str, Any]) -> Plan:
    """The plan that leaves things as they are."""
    return found.with_choices(found.serial, "serial", machine, options.get("contention"))


def loses(best: Plan, measured: Measured) -> bool:
    """Whether the plan is not faster than serial beyond the noise of the final measurement."""
    if best.schedule == "serial":
        return False
    return measured.planned.median_s > (1 - measured.noise) * measured.serial.median_s


def explained(best: Plan, measured: Measured, machine: Machine, out: Path, command: str) -> TuneResult:
    """Compare prediction and measurement, and write the page; a page that cannot be written costs only the page."""
    timeline = measured.planned.timelines[0]
    losses = measured_losses(best, measured, machine)
    adjusted = adjusted_ideal_s(best, measured, machine)
    notes: tuple[str, ...] = ()
    report: Path | None = out / "report.html"
    result = TuneResult(best, measured, losses, adjusted, machine, report, notes)
    try:
        save_json(out / "predicted.json", best.predicted.to_json())
        save_json(out / "measured.json", timeline.to_json())
        timelines = [best.predicted, timeline]
        write_page(
            out / "report.html",
            title=title(best),
            timelines=timelines,
            program=best.program,
            summary=summary(result, command),
        )
        save_json(out / "tune.json", result.to_json())
    except EnvironmentFault as error:
        return replace(result, report=None, notes=(str(error),))
    return result


def measured_losses(best: Plan, measured: Measured, machine: Machine) -> dict[str, float]:
    """Where the measured run lost what it lacks to the ideal, by the machine's own curves (DESIGN section 8)."""
    from dovetail.cost import price

    prices = price(best.program, machine, best.wish.workload(best.ranks), 1.0, extrapolate=True)
    alone = Alone(
        prices.work_s, prices.wire_s, prices.latency_s, prices.rendezvous, measured.compute_s, measured.comm_s
    )
    try:
        return attribute(measured.planned.timelines[0], best.program, alone).losses
    except DovetailError:
        return {}


def adjusted_ideal_s(best: Plan, measured: Measured, machine: Machine) -> float:
    """The ideal with each side stretched by its measured contention at the plan's own message size."""
    if best.ranks < 2 or not best.wish.m:
        return measured.ideal_s
    model, row_bytes = CostModel.of(machine), best.wish.workload(best.ranks).slot_bytes("C", 0)
    rows = best.choices.rows_per_message or max(best.tiles)
    factors = (float(model.factor(key, rows * row_bytes)) for key in ("cil:compute", "cil:net"))
    compute, net = factors
    return max(measured.compute_s * compute, measured.comm_s * net)


def title(best: Plan) -> str:
    w = best.wish
    return f"matmul_all_reduce {w.m} x {w.k} x {w.n} {w.dtype}, {best.ranks} ranks"


def summary(result: TuneResult, command: str = "") -> Summary:
    """The table, losses and notes of a tuning, for a terminal or the page."""
    best, m = result.plan, result.measured
    room = m.serial.median_s - m.ideal_s
    share = lambda s: (m.serial.median_s - s) / room if room > 0 and s is not None else None  # noqa: E731
    rows = [
        Row(
            "serial",
            best.serial_s,
            m.serial.median_s,
            0.0,
            "compute, then the library's all_reduce",
            best.schedule == "serial",
        )
    ]
    if best.schedule != "serial":
        why = f"{len(best.tiles)} tiles, {best.choices.all_reduce}, progress by {best.choices.progress}"
        rows.append(Row(best.schedule, best.predicted_s, m.planned.median_s, m.ideal_gain, why, True))
    for rival in best.rivals:
        if rival.schedule != "serial":
            rows.append(Row(rival.label, rival.predicted_s, rival.measured_s, share(rival.measured_s), rival.why_not))
    rows.append(Row("ideal", best.ideal_s, m.ideal_s, 1.0, "the longer side alone, all else hidden"))
    losses = [Losses("predicted", best.ideal_s, dict(best.losses)), Losses("measured", m.ideal_s, result.losses)]
    facts = m.result.facts
    where = f"{result.machine.name}: {facts.get('cpu')}, {facts.get('mpi')}, {best.ranks} ranks"
    return Summary(tuple(rows), tuple(losses), tuple(best.explain().split("\n\n")), Provenance(command, where, ""))
