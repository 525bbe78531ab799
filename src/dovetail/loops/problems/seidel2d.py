"""seidel2d: Gauss–Seidel sweeps over nine points; a pipeline must skew it by two."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", "m"))
def seidel2d(u: Any, steps: int) -> None:
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                above = u[i - 1, j - 1] + u[i - 1, j] + u[i - 1, j + 1]
                beside = u[i, j - 1] + u[i, j] + u[i, j + 1]
                u[i, j] = (above + beside + u[i + 1, j - 1] + u[i + 1, j] + u[i + 1, j + 1]) * (1 / 9)
