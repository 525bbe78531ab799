"""RunOptions: how an executor drives the net lanes while compute runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dovetail.core import RunError

Progress = Literal["thread", "poll"]


@dataclass(frozen=True)
class RunOptions:
    """Choices of a plan that change no result, only time (DESIGN section 6).

    `progress`: net lanes driven by a helper thread that sleeps `poll_s` seconds between polls while compute runs, or
    polled by the compute thread between blocks of `block_rows` rows (0: between ops only). `window`: ops of one net
    lane in flight at once. `stall_s`: seconds without progress after which a run is given up.
    """

    progress: Progress = "poll"
    poll_s: float = 100e-6
    block_rows: int = 0
    window: int = 32
    stall_s: float = 8.0

    def __post_init__(self) -> None:
        if self.progress not in ("thread", "poll"):
            raise RunError(f"unknown progress '{self.progress}'", hint="thread or poll")
        if self.window < 1 or self.block_rows < 0 or self.poll_s < 0 or self.stall_s <= 0:
            raise RunError("run options out of range", found=str(self))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
