"""losses: where a measured run lost time beside the ideal, and what contention leaves of that ideal."""

from __future__ import annotations

import numpy as np

from dovetail.core import DovetailError
from dovetail.cost import CostModel, price
from dovetail.machine import Machine
from dovetail.planner.plan import Plan
from dovetail.sim import simulate
from dovetail.timeline import Alone, attribute, on_the_wire
from dovetail.tuner.contest import Judged
from dovetail.tuner.result import COMPUTE, MESSAGES, OWN


def measured_losses(best: Plan, judged: Judged, machine: Machine) -> dict[str, float]:
    """Attribute the measured run's excess over the ideal to causes; return seconds by cause.

    The probed costs give the ratios between the pieces of a side. The side's seconds in the final give their scale, so
    that a machine that became slower or faster since the probe does not change `dil`.
    """
    if COMPUTE not in judged.beside:
        return {}
    try:
        prices = price(
            best.program, machine, best.operator.workload(best.program, best.schedule), 1.0, extrapolate=True
        )
        posted = np.zeros(best.program.num_ops, dtype=bool)  # receives are posted early, so no send waits for one
        columns = prices.work_s, prices.wire_s, prices.latency_s, posted
        alone = Alone(*columns, judged.beside[COMPUTE], judged.beside[MESSAGES])
        messages = MESSAGES if best.schedule.is_by_library else OWN
        alone = alone.scaled(best.program, *(_drift(judged, machine, side) for side in (COMPUTE, messages)))
        seen = on_the_wire(judged.taken.timelines[0], best.program)
        return attribute(seen, best.program, alone).losses
    except DovetailError:
        return {}


def _drift(judged: Judged, machine: Machine, side: str) -> float:
    """Return a side's measured seconds in isolation over those that the probed costs predict; 1 if either is unknown.

    `side`: a name in `Entry.beside`.
    """
    measured_s, variant = judged.beside.get(side, 0.0), judged.entry.beside.get(side)
    if variant is None or measured_s <= 0:
        return 1.0
    prices = price(variant.program, machine, variant.workload, 1.0, extrapolate=True)
    predicted_s = simulate(variant.program, prices).makespan_s
    return measured_s / predicted_s if predicted_s > 0 else 1.0


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
