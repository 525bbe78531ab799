"""gauss_seidel2d: Gauss–Seidel sweeps in place: each point uses the new values of the neighbours before it."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", "m"))
def gauss_seidel2d(u: Any, steps: int) -> None:
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                u[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])
