"""The river in one function: probe → plan → verify → measure → choose → compare → report."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.cli.telling import summary, title
from dovetail.core import DovetailError, EnvironmentFault, Say, cache_dir, load_json, save_json
from dovetail.cost import CostModel, price
from dovetail.machine import Machine
from dovetail.matmul import MatmulAllReduce
from dovetail.plan import Plan, plan
from dovetail.plan.contest import beats
from dovetail.plan.refine import Measured, Tried, measure_final, refine
from dovetail.probe import probe_links, probe_matmul, spot_check
from dovetail.report import write_page
from dovetail.run.mpi import MpiExecutor, default_launch
from dovetail.timeline import Alone, attribute, on_the_wire

SCHEMA = "dovetail.tune/1"
LEAST_GAIN = 0.02  # of serial, in the measurement that chooses
LEAST_GAIN_S = 5e-6  # below this the clock, the barrier and the call decide, not the schedule


@dataclass(frozen=True)
class TuneResult:
    """What one tuning found: the plan, the final measurement, and where its page is (None: it could not be written).

    `losses`: what `measured` exceeds its ideal by, by name. `adjusted_ideal_s`: the ideal where each side is
    stretched by its measured contention; `shared_ideal_s`: the same only while both are going on. `cil`: what compute,
    and messages of the plan's size, take beside the other side over what they take alone, as probed.
    """

    plan: Plan
    measured: Measured
    losses: dict[str, float]
    adjusted_ideal_s: float
    shared_ideal_s: float
    machine: Machine
    report: Path | None
    seed: int
    notes: tuple[str, ...] = ()
    cil: tuple[float, float] = (1.0, 1.0)

    @property
    def speedup(self) -> float:
        return self.measured.serial.median_s / self.measured.planned.median_s

    @property
    def keeps_serial(self) -> bool:
        return self.plan.choices == self.plan.serial

    @property
    def ideal_gain(self) -> float | None:
        return self.gain_of(self.measured.ideal_s)

    def gain_of(self, ideal_s: float) -> float | None:
        """Share of (serial - ideal) that was won, None where serial is kept; 0 where nothing could be, or was."""
        won_s, room_s = (self.measured.serial.median_s - s for s in (self.measured.planned.median_s, ideal_s))
        return None if self.keeps_serial else max(won_s / room_s, 0.0) if room_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """DESIGN section 10: the plan's keys, and what was measured in one interleaved job."""
        m, document = self.measured, self.plan.to_json()
        del document["schema"], document["predicted"]
        sides = {"compute_s": m.compute_s, "comm_s": m.comm_s, "own_comm_s": m.own_comm_s}
        adjusted = {"adjusted_ideal_s": self.adjusted_ideal_s, "shared_ideal_s": self.shared_ideal_s}
        adjusted |= dict(zip(("cil_compute", "cil_net"), self.cil, strict=True))
        gains = {
            "ideal_gain": self.ideal_gain,
            "adjusted_gain": self.gain_of(self.adjusted_ideal_s),
            "shared_gain": self.gain_of(self.shared_ideal_s),
            "speedup": self.speedup,
        }
        checks = {"max_rel_error": m.planned.max_rel_error, "tolerance": m.planned.tolerance}
        spread = {"serial_spread": m.serial.spread, "measured_spread": m.planned.spread, "noise": m.noise}
        runs = {"rounds": m.result.rounds, "disturbed": m.result.disturbed, "facts": m.result.facts, "seed": self.seed}
        predicted = {
            "predicted_serial_s": self.plan.serial_s,
            "predicted_ideal_s": self.plan.ideal_s,
            "predicted_losses": dict(self.plan.losses),
        }
        seconds = {"measured_s": m.planned.median_s, "serial_s": m.serial.median_s}
        head = {
            "schema": SCHEMA,
            **document,
            **seconds,
            "ideal_s": m.ideal_s,
            **adjusted,
            **sides,
            "losses": self.losses,
            **predicted,
        }
        notes = [*document["notes"], *self.notes]
        about = {**checks, **spread, **runs, **m.result.load.to_json()}
        return {**head, **gains, **about, "report": str(self.report or ""), "notes": notes}


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
    seed: int | None = None,
    command: str = "",
    say: Say | None = None,
    **options: Any,
) -> TuneResult:
    """Find, prove, run and explain the fastest schedule of `wish` on real ranks. Writes plan, timelines and page to
    `out`; what was found before a failure stays there. `options` are those of `plan`."""
    tell, seed = say or (lambda what, done: None), fresh_seed(seed)
    runner = replace(executor or MpiExecutor(), folder=out / "runs")
    base = machine or probed_machine(runner, ranks, fresh=fresh, say=tell)  # launcher → machine, cached
    known = product_machine(runner, base, wish, fresh=fresh, say=tell)  # → with the costs of this product
    found = plan(wish, known, ranks=ranks, schedule=schedule, extrapolate=True, **options)  # → proved plan
    save_json(out / "plan.json", found.to_json())
    tried = refine(found, runner, seed=seed, say=tell) if schedule == "auto" and ranks > 1 else []  # → measured
    best = choose(found, known, tried, options)  # → the fastest, or serial
    save_json(out / "plan.json", best.to_json())
    tell("serial and planned in turn", 0.95)
    enough = max(rounds, rounds_worth(min((t.seconds for t in tried), default=found.predicted_s)))
    measured = measure_final(best, runner, rounds=enough, seed=seed + 1, budget_s=budget_s)
    if schedule == "auto" and loses(best, measured):
        best = serial_plan(found, known, options)
        save_json(out / "plan.json", best.to_json())
        measured = measure_final(best, runner, rounds=enough, seed=seed + 2, budget_s=budget_s)
    return explained(best, replace(measured, tried=tuple(tried)), known, out, command, seed)


def fresh_seed(seed: int | None) -> int:
    """The seed given, else a new one: inputs are fresh unless a run is to be repeated."""
    return secrets.randbelow(1 << 31) if seed is None else seed


def rounds_worth(seconds: float, total_s: float = 0.5, most: int = 150) -> int:
    """Short runs are noisy: as many rounds as fill half a second, within reason.

    >>> rounds_worth(0.1), rounds_worth(0.005), rounds_worth(1e-6)
    (5, 100, 150)
    """
    return min(most, int(total_s / max(seconds, 1e-9)))


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
    found = probe_matmul(runner, machine, wish, say=say)
    save_json(path, found.to_json())
    return found


def product_path(machine: Machine, wish: MatmulAllReduce) -> Path:
    """Where a probed machine with the costs of this wish's product is cached."""
    keys = sorted({work.key for work in wish.workload(machine.ranks).kernels["matmul"]})
    text = f"{machine.name}\n{machine.facts.get('probed')}\n{wish.m}\n{keys}"
    return cache_dir() / "products" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def choose(found: Plan, machine: Machine, tried: list[Tried], options: dict[str, Any]) -> Plan:
    """The plan of the fastest that was measured, with what its rivals took; serial if the gain is too small."""
    if not tried:
        return found
    serial = next(t for t in tried if t.schedule == "serial" and t.choices == found.serial)
    enough = max(LEAST_GAIN * serial.seconds, LEAST_GAIN_S)
    best = tried[0] if tried[0].seconds < serial.seconds - enough else serial
    made = found
    if found.choices != best.choices:
        made = found.with_choices(best.choices, best.schedule, machine, options.get("contention"))
    by_choice = {t.choices: t.seconds for t in tried}
    return made.with_measured({r.label: by_choice[r.choices] for r in made.rivals if r.choices in by_choice})


def serial_plan(found: Plan, machine: Machine, options: dict[str, Any]) -> Plan:
    """The plan that leaves things as they are."""
    return found.with_choices(found.serial, "serial", machine, options.get("contention"))


def loses(best: Plan, measured: Measured) -> bool:
    """Whether the plan is not faster than serial beyond the noise of the final measurement, round by round."""
    gains = measured.serial.median_s - measured.planned.median_s > LEAST_GAIN_S
    return best.choices != best.serial and not (gains and beats([(measured.planned, measured.serial)]))


def explained(best: Plan, measured: Measured, machine: Machine, out: Path, command: str, seed: int) -> TuneResult:
    """Compare prediction and measurement, and write the page; a page that cannot be written costs only the page."""
    timeline = measured.planned.timelines[0]
    cil, report = contention(best, machine), out / "report.html"
    losses, warnings = measured_losses(best, measured, machine), measured.result.load.warnings
    result = TuneResult(best, measured, losses, *adjusted_ideals_s(measured, cil), machine, report, seed, warnings, cil)
    try:
        save_json(out / "predicted.json", best.predicted.to_json())
        save_json(out / "measured.json", timeline.to_json())
        timelines, told = [best.predicted, timeline], summary(result, command)
        write_page(report, title=title(best), timelines=timelines, program=best.program, summary=told)
        save_json(out / "tune.json", result.to_json())
    except EnvironmentFault as error:
        fault = f"the report is incomplete: {error.what}, {error.found}"
        return replace(result, report=None, notes=(fault, *warnings))
    return result


def measured_losses(best: Plan, measured: Measured, machine: Machine) -> dict[str, float]:
    """Where the measured run lost what it lacks to the ideal, by the machine's own curves (DESIGN section 8)."""
    try:
        prices = price(best.program, machine, best.wish.workload(best.ranks), 1.0, extrapolate=True)
        posted = np.zeros(best.program.num_ops, dtype=bool)  # receives are posted ahead: no send waits for its own
        columns = prices.work_s, prices.wire_s, prices.latency_s, posted
        alone = Alone(*columns, measured.compute_s, measured.comm_s)
        seen = on_the_wire(measured.planned.timelines[0], best.program)
        return attribute(seen, best.program, alone).losses
    except DovetailError:
        return {}


def contention(best: Plan, machine: Machine) -> tuple[float, float]:
    """What compute, and messages of the plan's size, take beside the other over alone, as probed."""
    if best.ranks < 2 or not best.tiles:
        return 1.0, 1.0
    model, row_bytes = CostModel.of(machine), best.wish.workload(best.ranks).slot_bytes("C", 0)
    size = (best.choices.rows_per_message or max(best.tiles)) * row_bytes
    return float(model.factor("cil:compute", size)), float(model.factor("cil:net", size))


def adjusted_ideals_s(measured: Measured, cil: tuple[float, float]) -> tuple[float, float]:
    """The ideal under contention: each side stretched whole, and each stretched only while the other is going on.

    While both go on, the one that ends first takes all of its stretched time; the other does as much as fits in that.
    """
    work = zip((measured.compute_s, measured.comm_s), cil, strict=True)
    (first_s, first), (last_s, last) = sorted(work, key=lambda side: side[0] * side[1])
    both_s = first_s * first
    return max(both_s, last_s * last), both_s + max(last_s - both_s / last, 0.0)
