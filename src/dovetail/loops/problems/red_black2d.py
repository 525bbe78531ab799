"""red_black2d: Gauss–Seidel sweeps in the two colours of a chess board; points of one colour are independent.

`red` is 1 on red points. `half` holds the grid after the red half of each sweep; it starts as a copy of the grid.
"""

from __future__ import annotations

from typing import Any

from dovetail.loops.expressions import where
from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", "m"), half=array("n", "m"), red=array("n", "m", dtype="uint8"))
def red_black2d(u: Any, half: Any, red: Any, steps: int) -> None:
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                mean = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])
                half[i, j] = where(red[i, j] > 0, mean, u[i, j])
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                mean = 0.25 * (half[i - 1, j] + half[i + 1, j] + half[i, j - 1] + half[i, j + 1])
                u[i, j] = where(red[i, j] > 0, half[i, j], mean)
