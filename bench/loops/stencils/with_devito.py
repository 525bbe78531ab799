"""Jacobi's step by Devito: mpiexec -n 2 python with_devito.py 2|3 N STEPS, DEVITO_MPI says how: seconds of a step, the
sum of what came out, and seconds until it could be called."""

from __future__ import annotations

import sys
import time

import numpy as np
from devito import Eq, Grid, Operator, TimeFunction, configuration

REPEATS = 5


def main() -> None:
    axes, n, steps = (int(word) for word in sys.argv[1:4])
    configuration["log-level"] = "ERROR"
    begin = time.perf_counter()
    grid = Grid(shape=(n,) * axes, dtype=np.float32, topology=("*", *[1] * (axes - 1)))
    comm = grid.distributor.comm
    u = TimeFunction(name="u", grid=grid, space_order=2)
    around = [u.subs(d, d + way * d.spacing) for d in grid.dimensions for way in (-1, 1)]
    operator = Operator(Eq(u.forward, (1.0 / len(around)) * sum(around), subdomain=grid.interior))
    assert operator.cfunction  # which compiles it
    ready_s, best = time.perf_counter() - begin, float("inf")
    for _ in range(REPEATS):
        start = (np.arange(n**axes) * 7919 % 1000).astype(np.float32).reshape((n,) * axes) / np.float32(1000)
        u.data[0], u.data[1] = start, start
        comm.Barrier()
        begin = time.perf_counter()
        operator.apply(time_M=steps - 1)
        comm.Barrier()
        best = min(best, time.perf_counter() - begin)
    total = comm.reduce(float(np.asarray(u.data[steps % 2]).sum(dtype=np.float64)))
    if comm.rank == 0:
        print(best / steps, total, ready_s)


main()
