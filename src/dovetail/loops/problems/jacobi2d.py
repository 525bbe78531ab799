"""jacobi2d: each point becomes the mean of its four neighbours: Laplace's equation with a fixed edge."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", "m", time=True, boundary="fixed"))
def jacobi2d(u: Any, steps: int) -> None:
    n, m = u.shape
    for t in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                u[t + 1, i, j] = 0.25 * (u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1])
