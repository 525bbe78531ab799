"""in_process: run jobs in this process without MPI, on threads or with the NumPy reference."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from dovetail.ir import Agreement
from dovetail.run.arrays import Arrays, fresh_inputs
from dovetail.run.check import check_rank, near
from dovetail.run.job import Job, JobResult, Outcome, Rounds, Variant, run_rounds, verify_job
from dovetail.run.local import run_unverified
from dovetail.run.reference import execute
from dovetail.timeline import Timeline

Where = Literal["threads", "numpy"]
LIBRARIES = {"threads": "threads of one process, without MPI", "numpy": "NumPy, one rank after the other"}


class Run(NamedTuple):
    """One run: buffers of every rank afterwards, seconds, and the timeline, if known."""

    held: Arrays
    seconds: float
    timeline: Timeline | None


@dataclass(frozen=True)
class InProcessExecutor:
    """Runs jobs in this process: on `threads`, one per rank, or by `numpy`, the reference, which is slow.

    Every run starts from the inputs of the job's seed. Ignores `repeats`.
    """

    where: Where

    def execute(self, job: Job) -> JobResult:
        """Run a job. Raises ProgramError for a program that `verify` refuses, RunError if one stalls."""
        verify_job(job)
        inputs = {variant.name: fresh_inputs(variant.program, variant.workload, job.seed) for variant in job.variants}
        runs: dict[str, list[Run]] = {variant.name: [] for variant in job.variants}

        def run_one(variant: Variant, index: int) -> float:
            ran = self.run(variant, inputs[variant.name])
            runs[variant.name].append(ran._replace(held={}))
            return ran.seconds

        rounds = run_rounds(job, run_one, time.monotonic)
        outcomes = []
        for at, variant in enumerate(job.variants):
            found = self.check(variant, inputs[variant.name]) if variant.check else None
            checked = (found.max_rel_error, found.tolerance, found.num_wrong) if found else ()
            seconds = tuple(map(float, rounds.seconds[:, at]))
            timelines = tuple(_timelines(runs[variant.name], rounds, seconds, job.keep_all))
            outcomes.append(Outcome(variant.name, seconds, timelines, *checked))
        facts = {"host": platform.node(), "mpi": LIBRARIES[self.where]}
        return JobResult(tuple(outcomes), len(rounds.seconds), rounds.disturbed, facts)

    def run(self, variant: Variant, inputs: Arrays) -> Run:
        """Run one variant once."""
        program, workload, options = variant.program, variant.workload, variant.options
        if self.where == "threads":
            alone = replace(options, repeats=1, spans=True)
            held, timeline = run_unverified(program, workload, inputs, options=alone)
            return Run(held, timeline.makespan_s, timeline)
        begin = time.monotonic()
        ran = execute(program, inputs, workload=workload, reduce_op=options.reduce_op)
        return Run(ran.outputs, time.monotonic() - begin, None)

    def check(self, variant: Variant, inputs: Arrays) -> Agreement:
        """Run once more, then compare slots in post-conditions with float64, and outputs with the reference program."""
        program, held = variant.program, self.run(variant, inputs).held
        found = [
            check_rank(
                program,
                variant.workload,
                rank,
                {name: parts[rank] for name, parts in held.items()},
                lambda name, at: inputs[name][at],
                variant.options.reduce_op,
            )
            for rank in range(program.num_ranks)
        ]
        return Agreement.total([*found, *_compared(variant, inputs, held)])


def _compared(variant: Variant, inputs: Arrays, held: Arrays) -> Iterator[Agreement]:
    """Compare the outputs of all ranks with those of the reference program."""
    if variant.against is None:
        return
    plain, workload = variant.against
    known = {buffer.name: inputs[buffer.name] for buffer in plain.buffers if buffer.role == "input"}
    for name, parts in execute(plain, known, workload=workload).outputs.items():
        for rank, wanted in enumerate(parts):
            yield near(f"{name} on rank {rank}", held[name][rank], wanted)


def _timelines(runs: list[Run], rounds: Rounds, seconds: tuple[float, ...], keep_all: bool) -> Iterator[Timeline]:
    """Return the timelines of the rounds that count, or of the median one; none by NumPy, whose ranks alternate."""
    kept = [runs[index].timeline for index in rounds.kept]
    middle = sorted(range(len(seconds)), key=seconds.__getitem__)[len(seconds) // 2] if seconds else 0
    for timeline in kept if keep_all else kept[middle : middle + 1]:
        if timeline is not None:
            yield timeline
