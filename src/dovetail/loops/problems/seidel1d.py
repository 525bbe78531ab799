"""seidel1d: Gauss–Seidel sweeps over a line; ranks work in parallel only on different sweeps."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n"))
def seidel1d(u: Any, steps: int) -> None:
    for _ in loop(steps):
        for i in loop(1, u.shape[0] - 1):
            u[i] = (u[i - 1] + u[i] + u[i + 1]) * (1 / 3)
