"""served: how long one-sided calls wait for their target, which computes, to enter MPI."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.trace.analysis.locks import Call, Floats
from dovetail.trace.decode import KINDS
from dovetail.trace.trace import Trace

_MOVES = [KINDS.index(kind) for kind in ("put", "get", "window")]
SOON = 0.3  # a target serves a call if the call ends so soon, as a share of its time, after the target enters MPI
LEAST_S = 5e-5  # shorter calls are not looked at


def served_s(trace: Trace, calls: Sequence[Sequence[Call]]) -> dict[int, float]:
    """Return by row the seconds of each one-sided call in which its target was outside MPI, then entered MPI.

    Only calls that end soon after the target's entry: these show that the library moved the data there. Without a
    target (`MPI_Win_flush_all`), it is the rank that entered last. `calls`: the calls of each rank, in order of time.
    """
    col = trace.columns
    is_move = np.isin(col["kind"], _MOVES) & (col["part"] == 0) & (col["comm"] >= 0)
    times = [np.array([(it.start_s, it.end_s) for it in each]).reshape(-1, 2) for each in calls]
    found = {}
    for rank, each in enumerate(calls):
        for it in each:
            if it.end_s - it.start_s < LEAST_S or not is_move[it.row]:
                continue
            peer = int(col["peer"][it.row])
            targets = [peer] if peer >= 0 else [other for other in range(len(calls)) if other != rank]
            seconds = max((_outside_s(times[other], it) for other in targets if other != rank), default=0.0)
            if seconds > 0:
                found[it.row] = seconds
    return found


def _outside_s(times: Floats, it: Call) -> float:
    """Return the seconds of a call in which another rank was outside MPI; 0: it did not end soon after that came in.

    `times`: begin and end of the other rank's calls, in order of time.
    """
    last = (
        int(np.searchsorted(times[:, 0], it.end_s)) - 1
    )  # the other rank's last call that begins before this one ends
    first = int(np.searchsorted(times[:, 1], it.start_s))  # and its first that ends after this one begins
    if last < 1 or it.end_s - times[last, 0] > max(SOON * (it.end_s - it.start_s), LEAST_S):
        return 0.0
    left_s = np.maximum(times[max(first - 1, 0) : last, 1], it.start_s)
    entered_s = np.minimum(times[max(first, 1) : last + 1, 0], it.end_s)
    outside_s = float(np.maximum(entered_s - left_s[-len(entered_s) :], 0.0).sum()) if len(entered_s) else 0.0
    return outside_s if outside_s >= LEAST_S else 0.0
