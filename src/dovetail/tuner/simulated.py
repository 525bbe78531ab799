"""simulated: an executor that simulates a machine with known costs, to judge probes and plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from dovetail.cost import Curve, Segment, price
from dovetail.machine import Machine
from dovetail.prober.programs import PAUSE_S
from dovetail.run.executor import Executor
from dovetail.run.job import Job, JobResult, Outcome, Variant
from dovetail.sim import simulate
from dovetail.timeline import Timeline


@dataclass(frozen=True)
class SimExecutor(Executor):
    """Simulates jobs on `machine`.

    `noise`: standard deviation of a random slowdown of each round, by `seed` and job. `ahead`: receives are posted
    early, as real executors do within their window.
    """

    machine: Machine
    noise: float = 0.0
    ahead: bool = False
    seed: int = 0

    def execute_unverified(self, job: Job) -> JobResult:
        name = "\n".join(variant.name for variant in job.variants)
        rng = np.random.default_rng([self.seed, job.seed, crc32(name.encode())])
        outcomes = tuple(self._outcome(variant, job, rng) for variant in job.variants)
        hosts = [f"host{node}" for node in self.machine.nodes]
        facts = {"host": hosts[0] if len(set(hosts)) == 1 else hosts, "cpu": "pretended", "mpi": "none", "cores": 1}
        return JobResult(outcomes, job.rounds, 0, facts)

    def _outcome(self, variant: Variant, job: Job, rng: np.random.Generator) -> Outcome:
        pause = Curve("rows", (Segment(0.0, PAUSE_S, 0.0),), label="prior")
        pausing = self.machine.with_costs({"kernel:pause": pause.to_json()})
        prices = price(variant.program, pausing, variant.workload, extrapolate=True)
        if self.ahead:
            prices = prices.with_columns(rendezvous=np.zeros(variant.program.num_ops, np.bool_))
        predicted = simulate(variant.program, prices)
        factors = np.exp(self.noise * rng.standard_normal(job.rounds))
        runs = [slower(predicted, factor) for factor in factors]
        seconds = tuple(float(run.columns["end_s"].max(initial=0.0)) for run in runs)
        return Outcome(variant.name, seconds, tuple(runs) if job.keep_all else tuple(runs[:1]))


def slower(timeline: Timeline, factor: float) -> Timeline:
    """Return the timeline with all times multiplied by `factor`."""
    columns = {name: timeline.columns[name] * factor for name in ("start_s", "end_s")}
    return replace(timeline, columns=timeline.columns | columns)
