"""jacobi3d: each point becomes the mean of its six neighbours."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", "m", "l", time=True, boundary="fixed"))
def jacobi3d(u: Any, steps: int) -> None:
    n, m, l = u.shape  # noqa: E741
    for t in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                for k in loop(1, l - 1):
                    across = u[t, i - 1, j, k] + u[t, i + 1, j, k] + u[t, i, j - 1, k] + u[t, i, j + 1, k]
                    u[t + 1, i, j, k] = (across + u[t, i, j, k - 1] + u[t, i, j, k + 1]) * (1 / 6)
