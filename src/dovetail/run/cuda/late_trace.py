"""late_trace: trace ops whose times are known only after the run, for example on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.ir import Program
from dovetail.run.engine import titles


@dataclass
class LateTrace:
    """Writes runs of `program` into this process's trace, if there is one. Lanes are called "rank R LANE, `where`(R)".

    The device has its own clock: the end of the last op is set to the time when the host noticed it. So all ops
    of a run may be late by the same delay; their order and durations are the device's.
    """

    program: Program
    where: Callable[[int], str]
    _made: tuple[int, int] = field(default_factory=_native.trace_moment, repr=False)
    _names: NDArray[np.int32] | None = field(default=None, repr=False)

    def write(self, spans: Callable[[], tuple[Any, Any, Any]]) -> None:
        """Write a run that has just ended. `spans` returns rows of ops, their starts and ends, in seconds."""
        if not _native.trace_is_on():
            return
        now = _native.trace_moment()
        rows, start_s, end_s = map(np.asarray, spans())
        if not len(rows):
            return
        if self._names is None:
            self._names = self._numbered()
        order = np.argsort(end_s, kind="stable")
        ticks_a_second = (now[0] - self._made[0]) / (now[1] - self._made[1]) * 1e9
        starts, ends = (
            (now[0] + np.rint((part[order] - end_s[order[-1]]) * ticks_a_second).astype("i8")).astype("u8")
            for part in (start_s, end_s)
        )
        rows = rows[order].astype("i8")
        _native.trace_spans(np.ascontiguousarray(self._names[rows]), rows, starts, ends)

    def _numbered(self) -> NDArray[np.int32]:
        """The trace's id for each op's name (kernel, collective or kind) and lane."""
        col, (names, name), (lanes, *_) = self.program.columns, self.program.op_names(), titles(self.program)
        alike = np.stack([name, col["rank"], col["lane"]], axis=1)
        distinct, which = np.unique(alike, axis=0, return_inverse=True)
        titled = [
            (names[row], f"rank {rank} {lanes[lane]}, {self.where(rank)}") for row, rank, lane in distinct.tolist()
        ]
        return np.array([_native.trace_lane(*each) for each in titled], "i4")[which.ravel()]
