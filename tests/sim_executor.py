"""An executor that pretends: timelines simulated on a machine whose costs are known, so that probes can be judged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dovetail.cost import Curve, Segment, price
from dovetail.machine import Machine
from dovetail.probe.programs import PAUSE_S
from dovetail.run.job import Job, JobResult, Outcome, Variant, verify_job
from dovetail.sim import simulate
from dovetail.timeline import Timeline


@dataclass(frozen=True)
class SimExecutor:
    """Runs jobs on `machine` in no time. `noise`: the standard deviation of each round's own slowness."""

    machine: Machine
    noise: float = 0.0

    def execute(self, job: Job) -> JobResult:
        verify_job(job)
        rng = np.random.default_rng(job.seed)
        outcomes = tuple(self._outcome(variant, job, rng) for variant in job.variants)
        hosts = [f"host{node}" for node in self.machine.nodes]
        facts = {"host": hosts[0] if len(set(hosts)) == 1 else hosts, "cpu": "pretended", "mpi": "none", "cores": 1}
        return JobResult(outcomes, job.rounds, 0, facts)

    def _outcome(self, variant: Variant, job: Job, rng: np.random.Generator) -> Outcome:
        pausing = self.machine.with_costs({"kernel:pause": constant(PAUSE_S)})
        predicted = simulate(variant.program, price(variant.program, pausing, variant.workload, extrapolate=True))
        factors = np.exp(self.noise * rng.standard_normal(job.rounds))
        runs = [slower(predicted, factor) for factor in factors]
        seconds = tuple(float(run.columns["end_s"].max(initial=0.0)) for run in runs)
        return Outcome(variant.name, seconds, tuple(runs) if job.keep_all else tuple(runs[:1]))


def constant(seconds: float) -> dict[str, object]:
    """A cost that does not depend on size."""
    return Curve("rows", (Segment(0.0, seconds, 0.0),), label="prior").to_json()


def slower(timeline: Timeline, factor: float) -> Timeline:
    columns = {name: timeline.columns[name] * factor for name in ("start_s", "end_s")}
    return replace(timeline, columns=timeline.columns | columns)
