"""seidel1d: Gauss and Seidel's sweep over a line, which ranks can do only several steps at a time."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n"))
def seidel1d(u: Any, steps: int) -> None:
    for _ in loop(steps):
        for i in loop(1, u.shape[0] - 1):
            u[i] = (u[i - 1] + u[i] + u[i + 1]) * (1 / 3)
