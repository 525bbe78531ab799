"""jacobi1d: each point becomes the mean of itself and its two neighbours."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", time=True, boundary="fixed"))
def jacobi1d(u: Any, steps: int) -> None:
    (n,) = u.shape
    for t in loop(steps):
        for i in loop(1, n - 1):
            u[t + 1, i] = (u[t, i - 1] + u[t, i] + u[t, i + 1]) * (1 / 3)
