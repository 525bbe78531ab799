"""options: the reduction of a run, how an executor drives net lanes, and repeats."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from dovetail.core import RunError
from dovetail.ir import Schedule
from dovetail.run.reduce import REDUCE_OPS, ReduceOp

Progress = Literal["thread", "poll"]
Level = Literal["single", "funneled", "serialized", "multiple"]
LEVELS: tuple[Level, ...] = get_args(Level)  # of MPI's thread support; a level's number is its index
LEVEL_REMEDY = (
    'If one thread at a time calls MPI, ask for less: mpi4py.rc.thread_level = "serialized" before '
    "`from mpi4py import MPI`; in C, MPI_Init."
)
MPI, SHARED = TRANSPORTS = ("mpi", "shared")  # messages go by the library, or through shared memory


@dataclass(frozen=True)
class RunOptions:
    """Options of a run. Only `reduce_op` changes results; all others change times.

    Attributes
    ----------
    reduce_op : {"sum", "prod", "min", "max", "avg"}
        Operation of every op that reduces (see `run.reduce`).
    progress : str
        "thread": a helper thread drives net lanes, and sleeps between polls while compute runs. Else the compute thread
        polls them between blocks of `block_rows` rows.
    poll_s : float
        Seconds between polls of the helper thread; up to 16 times as many while no link waits for it.
    block_rows : int
        Rows between polls. 0: between ops only.
    window : int
        Ops of one net lane in flight at once.
    stall_s : float
        Seconds without progress after which a run fails.
    repeats : int
        Most runs in a row without a barrier: ranks take fewer if these last long (`job.EACH_S`). A run's time is their
        total divided by their number; spans are the last run's.
    spans : bool
        Record start and end of each op.
    slice_bytes : int
        Longer messages travel in slices, which fused ops forward as they come. 0: whole.
    blocking : bool
        Use the library's blocking collectives.
    transport : {"mpi", "shared"}
        "mpi": by the library. "shared": through memory of the one host that all ranks are on. The latter runs
        Programs without computations, and records no spans.
    """

    progress: Progress = "poll"
    poll_s: float = 100e-6
    block_rows: int = 0
    window: int = 32
    stall_s: float = 8.0
    repeats: int = 1
    spans: bool = True
    slice_bytes: int = 0
    blocking: bool = False
    reduce_op: ReduceOp = "sum"
    transport: str = MPI

    @staticmethod
    def of(schedule: Schedule, **more: Any) -> RunOptions:
        """Return the options of a schedule, with those in `more` set."""
        driven = {name: getattr(schedule, name) for name in ("progress", "block_rows", "slice_bytes", "blocking")}
        return RunOptions(**driven, transport=schedule.get("transport", MPI), **more)

    def __post_init__(self) -> None:
        if self.progress not in ("thread", "poll"):
            raise RunError(f"unknown progress '{self.progress}'", hint="thread or poll")
        if self.reduce_op not in REDUCE_OPS:
            raise RunError(f"unknown reduce op '{self.reduce_op}'", hint=f"one of {', '.join(REDUCE_OPS)}")
        if self.transport not in TRANSPORTS:
            raise RunError(f"unknown transport '{self.transport}'", hint=" or ".join(TRANSPORTS))
        if (
            min(self.window, self.repeats) < 1
            or self.slice_bytes < 0
            or self.block_rows < 0
            or self.poll_s < 0
            or self.stall_s <= 0
        ):
            raise RunError("run options out of range", found=str(self))

    @property
    def level(self) -> Level:
        """The least level of thread support that MPI must have: a helper thread calls it beside the compute thread."""
        return "multiple" if self.progress == "thread" else "funneled"

    def at(self, provided: int) -> RunOptions:
        """Return the options at a level (by number) of MPI's thread support: it polls if no helper thread may call MPI.

        >>> [RunOptions("thread").at(level).progress for level in (2, 3)]
        ['poll', 'thread']
        """
        return self if provided >= LEVELS.index(self.level) else replace(self, progress="poll")

    def to_json(self) -> dict[str, Any]:
        """Return all options by name."""
        return asdict(self)
