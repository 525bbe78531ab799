"""wave1d: the wave equation on a ring at Courant number 1, where leapfrog is exact: f(i − t) stays unchanged."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", time=True, boundary="periodic"))
def wave1d(u: Any, steps: int) -> None:
    (n,) = u.shape
    for t in loop(1, steps + 1):
        for i in loop(n):
            u[t + 1, i] = u[t, i - 1] + u[t, i + 1] - u[t - 1, i]
