"""An executor that pretends: timelines simulated on a machine whose costs are known, so that probes can be judged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dovetail.cost import Curve, Segment, price
from dovetail.machine import Machine, load
from dovetail.probe.programs import PAUSE_S
from dovetail.run.job import Job, JobResult, Outcome, Variant, verify_job
from dovetail.sim import simulate
from dovetail.timeline import Timeline


@dataclass(frozen=True)
class SimExecutor:
    """Runs jobs on `machine` in no time. `noise`: the standard deviation of each round's own slowness. `ahead`:
    receives are posted ahead, as real executors do within their window."""

    machine: Machine
    noise: float = 0.0
    ahead: bool = False

    def execute(self, job: Job) -> JobResult:
        verify_job(job)
        rng = np.random.default_rng(job.seed)
        outcomes = tuple(self._outcome(variant, job, rng) for variant in job.variants)
        hosts = [f"host{node}" for node in self.machine.nodes]
        facts = {"host": hosts[0] if len(set(hosts)) == 1 else hosts, "cpu": "pretended", "mpi": "none", "cores": 1}
        return JobResult(outcomes, job.rounds, 0, facts)

    def _outcome(self, variant: Variant, job: Job, rng: np.random.Generator) -> Outcome:
        pausing = self.machine.with_costs({"kernel:pause": constant(PAUSE_S)})
        prices = price(variant.program, pausing, variant.workload, extrapolate=True)
        if self.ahead:
            prices = prices.with_columns(rendezvous=np.zeros(variant.program.num_ops, np.bool_))
        predicted = simulate(variant.program, prices)
        factors = np.exp(self.noise * rng.standard_normal(job.rounds))
        runs = [slower(predicted, factor) for factor in factors]
        seconds = tuple(float(run.columns["end_s"].max(initial=0.0)) for run in runs)
        return Outcome(variant.name, seconds, tuple(runs) if job.keep_all else tuple(runs[:1]))


def two_hosts(cil: float = 1.1) -> Machine:
    """Two hosts whose every cost is a straight line; compute and messages slow each other by `cil`."""
    costs = {
        "p2p:tcp": line(60e-6, 1 / 115e6),
        "exchange:tcp": line(10e-6, 1 / 114e6),
        "all_reduce:2": line(100e-6, 1 / 110e6),
        "reduce": line(1e-6, 1 / 5e9),
        "flops:matmul:float32": line(5e-6, 1 / 110e9, "flop"),
        "cil:compute": line(cil, 0.0),
        "cil:net": line(cil, 0.0),
    }
    return replace(load("two-hosts-1gbit"), costs=costs, facts={"eager_limit_bytes": 16 << 10})


def line(seconds: float, slope: float, unit: str = "bytes") -> dict[str, object]:
    """A cost that grows with size by `slope`."""
    return Curve(unit, (Segment(0.0, seconds, slope),), label="prior").to_json()


def constant(seconds: float) -> dict[str, object]:
    """A cost that does not depend on size."""
    return line(seconds, 0.0, "rows")


def slower(timeline: Timeline, factor: float) -> Timeline:
    columns = {name: timeline.columns[name] * factor for name in ("start_s", "end_s")}
    return replace(timeline, columns=timeline.columns | columns)
