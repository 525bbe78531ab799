"""executor: the executor that starts ranks as processes of this host, without MPI."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from dovetail.run.executor import Executor
from dovetail.run.job import Job, JobResult
from dovetail.run.mpi.executor import run_job
from dovetail.run.shared.launch import Ranks


@dataclass(frozen=True)
class SharedExecutor(Executor):
    """Runs jobs on processes of this host that exchange messages through shared memory. No MPI is needed.

    The files that stay after a failure, and their folder, are those of `MpiExecutor`.
    """

    folder: Path | None = None
    trace: Path | None = None
    takes: ClassVar[tuple[str, ...]] = ("trace",)

    @property
    def launched_by(self) -> str:
        """Words that identify such ranks."""
        return "processes of one host, without MPI"

    @property
    def shares_memory(self) -> bool:
        return True

    def in_folder(self, folder: Path) -> SharedExecutor:
        """Return an executor like this one whose jobs leave their files in `folder`."""
        return replace(self, folder=folder)

    def execute_unverified(self, job: Job) -> JobResult:
        """Run a job on as many processes as it has ranks. Raises RunError naming the rank that failed."""
        command = [sys.executable, "-m", "dovetail.run.shared.rank"]
        more = [str(self.trace.resolve())] if self.trace else []
        start = lambda place, output: Ranks([*command, str(place), *more], job.num_ranks, output)  # noqa: E731
        return run_job(job, self.folder, job.num_ranks, start)
