"""RunOptions: what a run reduces by, how an executor drives its net lanes, and how often it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dovetail.core import RunError
from dovetail.ir import Schedule
from dovetail.run.reduce import REDUCE_OPS, ReduceOp

Progress = Literal["thread", "poll"]


@dataclass(frozen=True)
class RunOptions:
    """`reduce_op`: what every op that reduces computes: sum, prod, min, max or avg (see `run.reduce`). All others are
    choices of a plan that change no result, only time.

    `progress`: net lanes driven by a helper thread that sleeps between polls while compute runs (`poll_s` seconds, up
    to 16 times as long while no link waits for them), or polled by the compute thread between blocks of
    `block_rows` rows (0: between ops only). `window`: ops of one net lane in flight at once. `stall_s`: seconds without
    progress after which a run is given up. `repeats`: runs one after the other with no barrier between; a run's time is
    their total over their number, its spans the last one's. `spans`: whether ops are stamped at all. `slice_bytes`:
    messages longer than this travel in pieces, which fused ops forward while the rest is still to come (0: whole).
    `blocking`: collectives of the library by its blocking calls.
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

    @staticmethod
    def of(schedule: Schedule, **more: Any) -> RunOptions:
        """Those that a schedule names."""
        driven = {name: getattr(schedule, name) for name in ("progress", "block_rows", "slice_bytes", "blocking")}
        return RunOptions(**driven, **more)

    def __post_init__(self) -> None:
        if self.progress not in ("thread", "poll"):
            raise RunError(f"unknown progress '{self.progress}'", hint="thread or poll")
        if self.reduce_op not in REDUCE_OPS:
            raise RunError(f"unknown reduce op '{self.reduce_op}'", hint=f"one of {', '.join(REDUCE_OPS)}")
        if (
            min(self.window, self.repeats) < 1
            or self.slice_bytes < 0
            or self.block_rows < 0
            or self.poll_s < 0
            or self.stall_s <= 0
        ):
            raise RunError("run options out of range", found=str(self))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
