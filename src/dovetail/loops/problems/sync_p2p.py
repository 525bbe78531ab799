"""sync_p2p: the pipeline of the Parallel Research Kernels: each point needs those before it in both axes."""

from __future__ import annotations

from typing import Any

from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(grid=array("n", "m"))
def sync_p2p(grid: Any, steps: int) -> None:
    n, m = grid.shape
    for _ in loop(steps):
        for i in loop(1, n):
            for j in loop(1, m):
                grid[i, j] = grid[i - 1, j] + grid[i, j - 1] - grid[i - 1, j - 1]
        grid[0, 0] = -grid[n - 1, m - 1]
