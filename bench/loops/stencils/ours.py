"""Jacobi's step by Dovetail: mpiexec -n 2 python ours.py 2|3 N STEPS {"depth": …}: seconds of a step, the sum of what
came out, seconds until it could be called, and seconds of a step alone, without arrays in and out: what a call of twice
the steps takes more. An empty object asks for what was tuned, whose steps alone are not reported."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import dovetail.call.bind  # noqa: F401  # before the clock starts, as Devito's modules are
from dovetail import bind
from dovetail.loops import problems

REPEATS = 5


def main() -> None:
    axes, n, steps, how = (json.loads(word) for word in sys.argv[1:5])
    comm, grid = MPI.COMM_WORLD, (n,) * axes
    problem = problems.jacobi2d if axes == 2 else problems.jacobi3d
    begin = time.perf_counter()
    jacobi = bind(problem, comm, grid, steps=steps, **how)
    ready_s = time.perf_counter() - begin
    twice = bind(problem, comm, grid, steps=2 * steps, **how) if how else None
    start = (np.arange(n**axes) * 7919 % 1000).astype(np.float32).reshape(grid) / np.float32(1000)
    mine = np.ascontiguousarray(start[jacobi.block])
    del start
    out = np.empty_like(mine)

    def seconds(operator: Any) -> float:
        comm.Barrier()
        begin = time.perf_counter()
        operator(mine, out=out, allow_nonfinite=True)
        comm.Barrier()
        return time.perf_counter() - begin

    longer = min(seconds(twice) for _ in range(REPEATS)) if twice else float("nan")
    best = min(seconds(jacobi) for _ in range(REPEATS))
    total = comm.reduce(float(out.sum(dtype=np.float64)))
    if comm.rank == 0:
        print(best / steps, total, ready_s, (longer - best) / steps, json.dumps(jacobi.schedule.to_json()))


main()
