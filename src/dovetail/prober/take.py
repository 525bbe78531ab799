"""take: run measurements interleaved in one job, and collect their timings by cost key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.core import RunError
from dovetail.cost import Samples
from dovetail.prober.programs import Measurement
from dovetail.run.executor import Executor
from dovetail.run.job import Job, JobResult
from dovetail.run.load import LIMIT, Load

ROUNDS = 5
AGAIN = 2  # repeats of a job that ran beside other load
CALMER = 0.5  # a repeat must have at most this share of the load; else the load is lasting, and repeats do not help


@dataclass(frozen=True)
class Budget:
    """Time that a probe may take: `each_s` seconds per size of each cost, in `least` to `most` repeats per round."""

    each_s: float = 0.15
    least: int = 2
    most: int = 60

    def trips(self, expected_s: float) -> int:
        """Return how often to run a measurement of `expected_s` seconds in each round."""
        return int(np.clip(self.each_s / max(expected_s, 1e-9) / ROUNDS, self.least, self.most)) + 1

    def allows(self, expected_s: float) -> bool:
        """Return whether one run of `expected_s` seconds fits the budget."""
        return expected_s < self.each_s


def take(executor: Executor, measured: Sequence[Measurement], rounds: int = ROUNDS) -> dict[str, Samples]:
    """Run all measurements interleaved, `rounds` times (more if some were disturbed); return Samples by cost key."""
    named = (replace(m.variant, name=f"{index} {m.variant.name}") for index, m in enumerate(measured))
    result = calmest(executor, Job(tuple(named), rounds=rounds, keep_all=True))
    if measured and not any(outcome.timelines for outcome in result.outcomes):
        found, hint = f"ranks by {result.facts.get('mpi') or 'this executor'}", "--on threads, --on shared, or MPI"
        raise RunError("no times are recorded: there is nothing to measure", found=found, hint=hint)
    rows: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for measurement, outcome in zip(measured, result.outcomes, strict=True):
        for repeat, timeline in enumerate(outcome.timelines):
            rows[measurement.key] += [(measurement.x, s, repeat) for s in measurement.seconds(timeline) if s > 0]
    provenance = {"facts": result.facts, "rounds": result.rounds, "disturbed": result.disturbed}
    provenance |= result.load.to_json()
    return {key: as_samples(values, _unit(key), **provenance) for key, values in rows.items()}


def calmest(executor: Executor, job: Job) -> JobResult:
    """Run a job; repeat it while other processes or the hypervisor disturb it. Return the least disturbed result."""
    best = executor.execute(job)
    for _ in range(AGAIN):
        if not best.load.warnings:
            break
        found = executor.execute(job)
        is_calmer = _share(found.load) < CALMER * _share(best.load)
        best = min(best, found, key=lambda result: _share(result.load))
        if not is_calmer:
            break
    return best


def _share(load: Load) -> float:
    return max(load.foreign or 0.0, load.steal or 0.0)


def load_beside(costs: Mapping[str, Mapping[str, Any]]) -> dict[str, Load]:
    """Return the load during the probe of each cost (a Machine's, as JSON) that was probed beside other load."""
    found = {}
    for key, curve in costs.items():
        about = curve.get("provenance", {})
        load = Load(about.get("foreign_load"), about.get("steal"), "the ranks' cores", "the ranks' cores")
        if _share(load) > LIMIT:
            found[key] = load
    return found


def probed_beside_load(costs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a sentence for the user if some costs were probed beside other load, else nothing.

    >>> probed_beside_load({"copy": {}, "reduce": {"provenance": {"foreign_load": 0.4, "steal": 0.0}}})
    ('probed beside other load: reduce (40 % of the cores); probe again on a calm machine',)
    """
    found = load_beside(costs)
    if not found:
        return ()
    keys, most = sorted(found), max(map(_share, found.values()))
    names = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return (f"probed beside other load: {names} ({100 * most:.0f} % of the cores); probe again on a calm machine",)


def should_probe_again(machine_costs: Mapping[str, Mapping[str, Any]], looked: Mapping[str, Samples]) -> bool:
    """Return whether cached costs were probed beside other load, and the machine is calm now."""
    now = [Load(s.provenance.get("foreign_load"), s.provenance.get("steal")) for s in looked.values()]
    return bool(load_beside(machine_costs)) and all(_share(load) <= LIMIT for load in now)


def as_samples(rows: Sequence[tuple[float, float, int]], unit: str = "bytes", **provenance: object) -> Samples:
    """Return Samples from rows of (x, seconds, repeat)."""
    x, seconds, repeat = (np.array(column) for column in zip(*rows, strict=True))
    return Samples(x, seconds, repeat, unit, dict(provenance))


def medians_s(executor: Executor, measured: Sequence[Measurement]) -> list[float]:
    """Return approximate seconds of each measurement, from one job of one round."""
    found = take(executor, [each._replace(key=str(place)) for place, each in enumerate(measured)], 1)
    return [float(np.median(found[str(place)].medians)) for place in range(len(measured))]


def _unit(key: str) -> str:
    return "rows" if key.startswith("kernel:") else "bytes"
