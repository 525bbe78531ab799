"""heat3d: an explicit step of the heat equation on a periodic cube; time step / spacing² = 0.1."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(u=array("n", "m", "l", time=True, boundary="periodic"))
def heat3d(u: Any, steps: int) -> None:
    n, m, l = u.shape  # noqa: E741
    for t in loop(steps):
        for i in loop(n):
            for j in loop(m):
                for k in loop(l):
                    across = u[t, i - 1, j, k] + u[t, i + 1, j, k] + u[t, i, j - 1, k] + u[t, i, j + 1, k]
                    around = across + u[t, i, j, k - 1] + u[t, i, j, k + 1]
                    u[t + 1, i, j, k] = u[t, i, j, k] + 0.1 * (around - 6 * u[t, i, j, k])
