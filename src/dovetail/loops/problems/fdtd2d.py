"""fdtd2d: Maxwell's equations in the plane: two electric field components, then the magnetic one."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(ex=array("n", "m"), ey=array("n", "m"), hz=array("n", "m"))
def fdtd2d(ex: Any, ey: Any, hz: Any, steps: int) -> None:
    n, m = hz.shape
    for _ in loop(steps):
        for i in loop(1, n):
            for j in loop(m):
                ey[i, j] = ey[i, j] - 0.5 * (hz[i, j] - hz[i - 1, j])
        for i in loop(n):
            for j in loop(1, m):
                ex[i, j] = ex[i, j] - 0.5 * (hz[i, j] - hz[i, j - 1])
        for i in loop(n - 1):
            for j in loop(m - 1):
                hz[i, j] = hz[i, j] - 0.7 * (ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j])
