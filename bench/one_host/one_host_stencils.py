"""Stencils on one host: over MPI and through shared memory without MPI's messages, in one interleaved run.

    mpiexec -n 2 python bench/one_host/one_host_stencils.py OUT.json [--seconds S] [--grids 64x64x64:1000,…] [--ways …]

Each of `--ways` (options of `bind` as JSON) is bound to MPI.COMM_WORLD and to `dovetail.world()`. Times are the slower
rank's, of a step, arrays in and out included; ratios are medians within rounds. MPI runs at MPI_THREAD_SERIALIZED.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI  # noqa: E402
from one_host import facts  # noqa: E402

import dovetail as dt  # noqa: E402
from dovetail.loops import problems  # noqa: E402
from dovetail.run.mpi.rank import use_own_cores  # noqa: E402
from dovetail.run.ranks.embedded import ranks_of  # noqa: E402

PROBLEMS = {1: problems.jacobi1d, 2: problems.jacobi2d, 3: problems.jacobi3d}
GRIDS = "64x64x64:1000,256x256x256:20,1024x1024:100,128x128:1000"
WAYS = '[{"depth": 0}, {"depth": 0, "overlapped": true}]'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--grids", default=GRIDS)
    parser.add_argument("--ways", type=json.loads, default=json.loads(WAYS))
    args = parser.parse_args()
    use_own_cores()
    comm, rows = MPI.COMM_WORLD, []
    comms = {"mpi": comm, "shared": dt.world()}
    grids = args.grids.split(",")
    for text in grids:
        grid, steps = tuple(map(int, text.partition(":")[0].split("x"))), int(text.partition(":")[2])
        calls = {
            (name, json.dumps(way)): bound(grid, steps, each, way) for way in args.ways for name, each in comms.items()
        }
        rows.append({"grid": list(grid), "steps": steps, **row(calls, comm, steps, args.seconds / len(grids))})
        if comm.rank == 0:
            print(text, rows[-1]["us_a_step"], rows[-1]["mpi_over_shared"], flush=True)
    if comm.rank == 0:
        args.out.write_text(json.dumps({**facts(ranks_of(comm)), "rows": rows}, indent=1) + "\n")


def bound(grid: tuple[int, ...], steps: int, comm: Any, way: dict[str, Any]) -> Any:
    """Return a call that runs the steps and returns a sum of what it computed."""
    jacobi = dt.bind(PROBLEMS[len(grid)], comm, grid, steps=steps, **way)
    whole = (np.arange(np.prod(grid)) * 7919 % 1000).astype(np.float32).reshape(grid) / np.float32(1000)
    mine = np.ascontiguousarray(whole[jacobi.block])
    out = np.empty_like(mine)
    return lambda: jacobi(mine, out=out, allow_nonfinite=True)


def row(calls: dict[Any, Any], comm: Any, steps: int, seconds: float) -> dict[str, Any]:
    """Run all calls in rounds; return microseconds of a step, and ratios of the fastest way of each kind."""
    results = {label: call().copy() for label, call in calls.items()}
    first = next(iter(results.values()))
    assert all((first == each).all() for each in results.values()), "ways disagree"
    draw, until, labels = random.Random(1), time.monotonic() + seconds, list(calls)
    times: dict[Any, list[float]] = {label: [] for label in calls}
    while comm.bcast(len(times[labels[0]]) < 3 or time.monotonic() < until):
        for label in draw.sample(labels, len(labels)):
            comm.Barrier()
            begin = time.perf_counter()
            calls[label]()
            times[label].append(time.perf_counter() - begin)
    slower = {label: np.max(comm.allgather(np.array(each)), axis=0) for label, each in times.items()}
    best = {name: min((e for e in labels if e[0] == name), key=lambda e: np.median(slower[e])) for name, _ in labels}
    ratio = np.percentile(slower[best["mpi"]] / slower[best["shared"]], (25, 50, 75))
    us = {f"{name} {way}": round(float(np.median(each)) / steps * 1e6, 3) for (name, way), each in slower.items()}
    return {"us_a_step": us, "mpi_over_shared": ratio.round(4).tolist(), "rounds": len(times[labels[0]])}


if __name__ == "__main__":
    main()
