"""executor: Executor, the protocol of everything that runs jobs on ranks; and the registered executors, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dovetail.core import OperatorError, Registry
from dovetail.ir import verify
from dovetail.run.job import Job, JobResult
from dovetail.run.options import Level


class Executor(Protocol):
    """Runs jobs on ranks. A derived class defines `execute_unverified`; everything else has a default.

    `takes`: keywords of its constructor, among OPTIONS, that the command line offers; all of them are optional.
    """

    takes: ClassVar[tuple[str, ...]] = ()

    @property
    def launched_by(self) -> str | None:
        """A text that tells how ranks are started, and identifies the machine: it is the key of cached measurements.
        None, the default: nothing is cached."""
        return None

    @property
    def buffers_early_sends(self) -> bool:
        """Whether a short send may end before its receive is posted; probes then measure up to which size. Default:
        True."""
        return True

    @property
    def port(self) -> str | None:
        """The kind of links if each rank sends and receives through a port of its own, which all its messages share.
        None, the default: the ranks' hosts tell."""
        return None

    @property
    def starts_mpi(self) -> bool:
        """Whether its ranks are processes of the installed MPI, which `launched_by` starts. Default: False."""
        return False

    def at_level(self, level: Level) -> Executor:
        """Return an executor like this one whose ranks ask MPI for a level of thread support. Default: itself."""
        return self

    @property
    def shares_memory(self) -> bool:
        """Whether ranks on one host take the transport "shared" of `RunOptions`. Default: False."""
        return False

    @property
    def trace(self) -> Path | None:
        """The folder in which its ranks leave a trace of every op. Default: None."""
        return None

    def in_folder(self, folder: Path) -> Executor:
        """Return an executor like this one whose jobs leave their files in `folder`. Default: jobs leave no files."""
        return self

    def execute(self, job: Job) -> JobResult:
        """Prove the Programs of a job, then run it to its end. Raises ProgramError for a Program that `verify` refuses,
        RunError if a rank fails, EnvironmentFault if software that the executor needs is missing."""
        verify_job(job)
        return self.execute_unverified(job)

    def execute_unverified(self, job: Job) -> JobResult:
        """Run a job whose Programs have been proved to its end: see `run.job.run_rounds`.

        A variant with `check` is run once more from fresh inputs, and `run.check.check_results` compares the results
        with its post-conditions and with its reference program."""
        ...


def verify_job(job: Job) -> None:
    """Raise ProgramError if `verify` refuses a Program of the job; each Program is verified once."""
    for program in {id(variant.program): variant.program for variant in job.variants}.values():
        verify(program).raise_if_bad()


OPTIONS = {"launch": "--launch", "trace": "--trace"}  # keyword of constructors -> option of the command line
EXECUTORS = Registry[type[Executor]](
    "dovetail.executors",
    "an executor",
    {
        "mpi": "dovetail.run.mpi.executor:MpiExecutor",
        "shared": "dovetail.run.shared.executor:SharedExecutor",
        "threads": "dovetail.run.in_process:ThreadsExecutor",
        "numpy": "dovetail.run.in_process:NumpyExecutor",
        "cuda": "dovetail.run.cuda.executor:CudaExecutor",
    },
    (
        *("takes", "launched_by", "buffers_early_sends", "shares_memory", "trace"),
        *("in_folder", "execute", "execute_unverified"),
    ),
    error=OperatorError,
)


def executor_on(name: str = "mpi", **given: Any) -> Executor:
    """Return the executor called `name`, made with those of OPTIONS that are given (None: left out).

    Raises OperatorError for an option that it does not have, and for a name that no executor has.

    >>> executor_on("threads").launched_by is None
    True
    >>> executor_on("threads", launch="mpiexec -n {ranks}")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: ranks on 'threads' have no --launch
      try         leave --launch out, or choose another executor with --on
    """
    kind, options = EXECUTORS[name], {word: value for word, value in given.items() if value is not None}
    for word in options:
        if word not in kind.takes:
            flag = OPTIONS.get(word, word)
            hint = f"leave {flag} out, or choose another executor with --on"
            raise OperatorError(f"ranks on '{name}' have no {flag}", hint=hint)
    return _made(kind, options)


def flags_of(executor: Executor) -> list[str]:
    """Return the options of the command line that choose this executor; none for the default, and for unknown ones.

    >>> flags_of(executor_on("threads")), flags_of(executor_on("mpi", launch="srun -n {ranks}"))
    (['--on', 'threads'], ['--launch', 'srun -n {ranks}'])
    """
    place = f"{type(executor).__module__}:{type(executor).__qualname__}"
    name = next((name for name in EXECUTORS if EXECUTORS.place(name) == place), "mpi")
    launch = getattr(executor, "launch", None) if "launch" in executor.takes else None
    return (["--on", name] if name != "mpi" else []) + (["--launch", launch] if launch else [])


def _made(kind: Any, options: Mapping[str, Any]) -> Executor:
    """Make an executor of class `kind`; `kind.takes` lists the options of its constructor."""
    made: Executor = kind(**options)
    return made
