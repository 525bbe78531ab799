"""sor2d: successive over-relaxation: Gauss–Seidel sweeps with relaxation factor 1.5."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", "m"))
def sor2d(u: Any, steps: int) -> None:
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                mean = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])
                u[i, j] = -0.5 * u[i, j] + 1.5 * mean
