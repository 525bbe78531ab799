"""Jacobi's step by Dovetail: mpiexec -n 2 python ours.py 2|3 N STEPS {"depth": …}: seconds of a step, the sum of what
came out, and seconds until it could be called; an empty object asks for what was tuned."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI

from dovetail.loops import problems

REPEATS = 5


def main() -> None:
    axes, n, steps, how = (json.loads(word) for word in sys.argv[1:5])
    comm, grid = MPI.COMM_WORLD, (n,) * axes
    begin = time.perf_counter()
    jacobi = (problems.jacobi2d if axes == 2 else problems.jacobi3d).on(comm, grid, steps=steps, **how)
    ready_s = time.perf_counter() - begin
    start = (np.arange(n**axes) * 7919 % 1000).astype(np.float32).reshape(grid) / np.float32(1000)
    mine = np.ascontiguousarray(start[jacobi.block])
    del start
    best, out = float("inf"), np.empty_like(mine)
    for _ in range(REPEATS):
        comm.Barrier()
        begin = time.perf_counter()
        jacobi(mine, out=out, allow_nonfinite=True)
        comm.Barrier()
        best = min(best, time.perf_counter() - begin)
    total = comm.reduce(float(out.sum(dtype=np.float64)))
    if comm.rank == 0:
        print(best / steps, total, ready_s, json.dumps(jacobi.schedule.to_json()))


main()
