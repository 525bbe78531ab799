"""executor: the executor that starts real ranks with an MPI launcher, watches them, and collects their results."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dovetail.core import EnvironmentFault, RunError, find_tool, load_json, read_own
from dovetail.run.executor import Executor, verify_job
from dovetail.run.job import Job, JobResult
from dovetail.run.options import Level
from dovetail.run.ranks.heartbeat import SLOWEST, Deaths, Watch, slowness, terminate_ranks
from dovetail.run.ranks.library import build_shim

PHRASES = re.compile(
    "FAQ page|CLEANING UP REMAINING|YOU CAN IGNORE THE BELOW|This typically refers|BAD TERMINATION OF|EXIT CODE:"
)
HANG_S = 3.0  # seconds that other ranks have to end after one rank has reported a failure
PATIENCE_S = (2.0, 1.0, 2.0)  # seconds to wait after each step of `stop`, on an idle machine
STOP_S = SLOWEST * sum(PATIENCE_S)
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def default_launch() -> str:
    """Return the launch command: $DOVETAIL_LAUNCH, else the mpiexec found; `{ranks}` stands for the number of ranks."""
    given = os.environ.get("DOVETAIL_LAUNCH")
    if given:
        return given
    mpiexec = find_tool("mpiexec", "mpirun")
    if mpiexec is None:
        raise EnvironmentFault(
            "no MPI found: there is no mpiexec beside this Python or on PATH",
            hint="pip install 'dovetail[mpi]'; or --on shared, on one host",
        )
    return f"{shlex.quote(mpiexec)} {_flags(mpiexec)}-n {{ranks}}"


@cache
def _flags(mpiexec: str) -> str:
    about = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    return "--oversubscribe --bind-to none " if "Open MPI" in about or "prte" in about.lower() else ""


@dataclass(frozen=True)
class MpiExecutor(Executor):
    """Runs jobs on ranks started by `launch` (a command with `{ranks}`; default: `default_launch`).

    Each job gets a new folder under `folder` (default: a temporary one); after a failure it stays, and holds
    the reason, the ranks' output and their partial timelines. With `trace`, ranks trace every op into that folder.
    `level`: thread support that ranks ask MPI for; default: the least that the job needs, "multiple" only for
    helper threads.
    """

    launch: str | None = None
    folder: Path | None = None
    trace: Path | None = None
    level: Level | None = None
    takes: ClassVar[tuple[str, ...]] = ("launch", "trace")

    @property
    def launched_by(self) -> str:
        """The command that starts its ranks."""
        return self.launch or default_launch()

    @property
    def starts_mpi(self) -> bool:
        return True

    def at_level(self, level: Level) -> MpiExecutor:
        """Return an executor like this one whose ranks ask MPI for a level of thread support."""
        return replace(self, level=level)

    @property
    def shares_memory(self) -> bool:
        return True

    def in_folder(self, folder: Path) -> MpiExecutor:
        """Return an executor like this one whose jobs leave their files in `folder`."""
        return replace(self, folder=folder)

    def execute(self, job: Job, ranks: int | None = None) -> JobResult:
        """Run a job to its end. Raises ProgramError for a program that `verify` refuses, RunError with the rank that
        failed, EnvironmentFault if there is no MPI."""
        verify_job(job)
        return self.execute_unverified(job, ranks)

    def execute_unverified(self, job: Job, ranks: int | None = None) -> JobResult:
        """Run a job as `execute` does, without verifying its Programs."""
        shim = build_shim()
        launch = self.launched_by
        num_ranks = ranks or job.num_ranks
        command = [part.replace("{ranks}", str(num_ranks)) for part in shlex.split(launch)]
        command += [sys.executable, "-m", "dovetail.run.mpi.rank"]
        more = [str(shim), self.level or job.level, *([str(self.trace.resolve())] if self.trace else [])]

        def start(place: Path, output: Any) -> Launcher:
            return _launched([*command, str(place), *more], output)

        return run_job(job, self.folder, num_ranks, start)


class Launcher(Protocol):
    """The process that runs the ranks: a `subprocess.Popen`, or an object with its methods."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return the exit code once it has ended."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        ...


def run_job(job: Job, folder: Path | None, ranks: int, start: Callable[[Path, Any], Launcher]) -> JobResult:
    """Run a job whose Programs have been verified on ranks that `start` starts, in a new folder under `folder`.

    `start` is called with that folder, which has the job in `job.pkl`, and with a file for the ranks' output."""
    place = _place_in(folder)
    _write(place / "job.pkl", pickle.dumps(job))
    code, died = watch(start, place, ranks)
    result = place / "result.pkl"
    if code or not result.exists():
        raise failure(place, ranks, code, died)
    loaded: JobResult = pickle.loads(read_own(result))
    shutil.rmtree(place, ignore_errors=True)
    return loaded


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        hint = "choose another place with --out"
        raise EnvironmentFault(f"cannot write {path}", found=error.strerror, hint=hint) from error


def _place_in(folder: Path | None) -> Path:
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="job-", dir=folder))
    except OSError as error:
        hint = "choose another place with --out"
        raise EnvironmentFault("cannot make a folder for the run", found=str(error), hint=hint) from error


def _launched(command: list[str], output: Any) -> subprocess.Popen[bytes]:
    try:
        env = OPEN_MPI | dict(os.environ)
        return subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )
    except OSError as error:
        what, hint = f"cannot start the launcher {command[0]}", "--launch: a command, with {ranks} for their number"
        raise EnvironmentFault(what, found=error.strerror, hint=hint) from error


def watch(start: Callable[[Path, Any], Launcher], place: Path, ranks: int) -> tuple[int, str | None]:
    """Run ranks to their end; stop them if some never arrive. Their output goes to `output.txt`.

    Return the exit code, and a text that names the rank which died before any reported a failure (None: none did)."""
    with (place / "output.txt").open("wb") as output:
        launcher = start(place, output)
        try:
            return wait(launcher, place, ranks)
        finally:
            stop(launcher, place)


def wait(launcher: Launcher, place: Path, ranks: int) -> tuple[int, str | None]:
    """Return the result of `watch`; code 3 if a rank failed and others hang. Raises RunError if a rank does not arrive
    or stops responding."""
    above = launcher.pid if isinstance(launcher, subprocess.Popen) else os.getpid()
    seen, looked_s = Watch(place, ranks, launcher=above), time.monotonic()
    failed_s, died = None, None
    with closing(Deaths(place)) as deaths:
        while True:
            is_running = launcher.poll() is None
            dead, now = deaths.look(0.01 if is_running else 0.0), time.monotonic()
            if failed_s is None and ((reported := any(place.glob("failure.*.json"))) or dead):
                failed_s, died = now, None if reported else dead
            if not is_running:
                return launcher.returncode or 0, died
            if failed_s is not None and now - failed_s > HANG_S:
                return 3, died
            if failed_s is None and now - looked_s > 0.25:
                looked_s = now
                if trouble := seen.trouble():
                    hint = f"reason, output and partial timelines are in {place}"
                    raise RunError(trouble, found=last_line(place), hint=hint)


def stop(launcher: Launcher, place: Path) -> None:
    """End the launcher and its processes: signal the ranks of this host, which save their timelines; then terminate the
    launcher; then kill it."""
    steps: tuple[Callable[[], None], ...] = (
        lambda: terminate_ranks(place),
        lambda: os.killpg(launcher.pid, signal.SIGTERM),
        lambda: os.killpg(launcher.pid, signal.SIGKILL),
    )
    for step, patience_s in zip(steps, PATIENCE_S, strict=True):
        if launcher.poll() is not None:
            return
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            step()
            launcher.wait(slowness() * patience_s)


def failure(place: Path, ranks: int, code: int, died: str | None = None) -> RunError:
    """Return one error for the reports of the ranks and the launcher. `died`: as `watch` returns it."""
    reasons = sorted((load_json(path) for path in place.glob("failure.*.json")), key=lambda d: d["rank"])
    reports = [f"rank {d['rank']}: {d['reason'].splitlines()[0]}" for d in reasons]
    kept = f"reason, output and partial timelines are in {place}"
    if died:
        found = "; ".join(reports[:2]) or last_line(place)
        return RunError(f"{died} (launcher exit code {code})", found=found, hint=kept)
    if reasons:
        first, *rest = reasons[0]["reason"].split("\n")
        found = "\n".join(rest).strip() + ("\n" + "; ".join(reports[1:3]) if reports[1:] else "")
        return RunError(f"rank {reasons[0]['rank']} failed: {first}", found=found or None, hint=kept)
    missing = [r for r in range(ranks) if not (place / f"ready.{r}.json").exists()]
    if missing:
        return RunError(
            f"rank {missing[0]} never started (launcher exit code {code})", found=last_line(place), hint=kept
        )
    return RunError(f"{killed_rank(place, ranks)} (launcher exit code {code})", found=last_line(place), hint=kept)


def killed_rank(place: Path, ranks: int) -> str:
    """Return a text that names the dead rank, by the rank number or process id in the launcher's output."""
    output = (place / "output.txt").read_text(errors="replace")
    for rank in range(ranks):
        about: dict[str, Any] = load_json(place / f"ready.{rank}.json")
        if f"PID {about['pid']} RUNNING AT" in output or f"process rank {rank} with PID" in output:
            return f"rank {rank} on {about['host']} died"
    return "a rank died without an error message"


def last_line(place: Path) -> str:
    """Return the last line of the job's output that is no usual phrase of launchers."""
    text = (place / "output.txt").read_text(errors="replace")
    lines = [line.strip(" =|") for line in text.splitlines() if not PHRASES.search(line)]
    return next((line[:300] for line in reversed(lines) if line.strip("-")), "no output")
