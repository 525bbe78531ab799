"""in_process: run jobs in this process without MPI, on threads or with the NumPy reference."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, NamedTuple

from dovetail.ir import Agreement
from dovetail.run.arrays import Arrays, fresh_inputs
from dovetail.run.check import check_results
from dovetail.run.executor import Executor
from dovetail.run.job import Job, JobResult, Outcome, Rounds, Variant, run_rounds
from dovetail.run.local import run_unverified
from dovetail.run.reference import execute
from dovetail.timeline import Timeline


class Run(NamedTuple):
    """One run: buffers of every rank afterwards, seconds, and the timeline, if known."""

    held: Arrays
    seconds: float
    timeline: Timeline | None


class InProcessExecutor(Executor):
    """Runs jobs in this process. Derived classes define `run`, which runs a variant once, and `library`.

    Every run starts from the inputs of the job's seed. Ignores `repeats`.
    """

    library: ClassVar[str]

    def run(self, variant: Variant, inputs: Arrays) -> Run:
        """Run a variant once from these inputs. Raises RunError if it stalls."""
        raise NotImplementedError

    def execute_unverified(self, job: Job) -> JobResult:
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
        facts = {"host": platform.node(), "mpi": self.library, "cores": os.cpu_count() or 1}
        return JobResult(tuple(outcomes), len(rounds.seconds), rounds.disturbed, facts)

    def check(self, variant: Variant, inputs: Arrays) -> Agreement:
        """Run once more, and check the results."""
        held, ranks = self.run(variant, inputs).held, range(variant.program.num_ranks)
        left = {rank: {name: parts[rank] for name, parts in held.items()} for rank in ranks}
        return check_results(variant, left, lambda name, rank: inputs[name][rank])


class ThreadsExecutor(InProcessExecutor):
    """Runs ranks as threads of this process, messages through its memory."""

    library = "threads of one process, without MPI"

    def run(self, variant: Variant, inputs: Arrays) -> Run:
        alone = replace(variant.options, repeats=1, spans=True)
        held, timeline = run_unverified(variant.program, variant.workload, inputs, options=alone)
        return Run(held, timeline.makespan_s, timeline)


class NumpyExecutor(InProcessExecutor):
    """Runs ranks one after the other by the slow NumPy reference."""

    library = "NumPy, one rank after the other"

    def run(self, variant: Variant, inputs: Arrays) -> Run:
        begin = time.monotonic()
        ran = execute(variant.program, inputs, workload=variant.workload, reduce_op=variant.options.reduce_op)
        return Run(ran.outputs, time.monotonic() - begin, None)


def _timelines(runs: list[Run], rounds: Rounds, seconds: tuple[float, ...], keep_all: bool) -> Iterator[Timeline]:
    """Yield timelines of the rounds that count, or of the median one. NumPy has none: its ranks alternate."""
    kept = [runs[index].timeline for index in rounds.kept]
    middle = sorted(range(len(seconds)), key=seconds.__getitem__)[len(seconds) // 2] if seconds else 0
    for timeline in kept if keep_all else kept[middle : middle + 1]:
        if timeline is not None:
            yield timeline
