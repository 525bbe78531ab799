"""Heat in a plate, on all ranks: mpiexec -n 2 python examples/heat.py

The loops are written once, as in a textbook. On ranks each has a block of the plate; the steps go on until they change
next to nothing, and rank 0 prints how warm the middle has become.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from dovetail import bind
from dovetail.loops import array, loop, nest


@nest(u=array("n", "m", time=True, boundary="fixed"))
def heat(u: Any, steps: int) -> None:
    n, m = u.shape
    for t in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                around = u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]
                u[t + 1, i, j] = u[t, i, j] + 0.2 * (around - 4 * u[t, i, j])


def main() -> None:
    comm, grid = MPI.COMM_WORLD, (64, 48)
    plate = np.zeros(grid)
    plate[0] = 100.0  # one edge is hot, and stays so
    step = bind(heat, comm, grid, steps=100, dtype="float64", test=100, depth=4, tile=8)
    mine, steps, change = step.until(plate[step.block], change=1e-4)
    parts = comm.gather(mine)
    if parts is not None:
        warm = np.concatenate(parts)
        assert np.array_equal(warm, heat(plate, steps=steps))  # to the bit what one process computes
        print(f"{steps} steps, of which the last changed {change:.1e}; the middle has {warm[32, 24]:.1f} degrees")


if __name__ == "__main__":
    main()
