"""What is left to hide on one host: products over MPI, through shared memory, and alone, in one interleaved run.

    mpiexec -n 2 python bench/one_host/one_host.py OUT.json [--seconds S] [--shapes MxKxN,…] [--operators A,…]

N is the width where A is gathered, and the depth where results are added, so that both move as much per operation.
`copied`: arrays of `dovetail.empty`, and messages that are copied; `direct`: such that are read where they lie.
After some rounds the best three schedules of each way go on. Times are the slower rank's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each rank has one core, for the product alone too

import numpy as np
from mpi4py import MPI

import dovetail as dt
from dovetail.matmul import AllGatherMatmul, MatmulAllReduce, MatmulReduceScatter
from dovetail.run import engine
from dovetail.run.mpi.rank import use_own_cores
from dovetail.run.options import RunOptions
from dovetail.run.ranks.embedded import Embedded, ranks_of
from dovetail.run.ranks.world import World

OPERATORS = {kind.name: kind for kind in (AllGatherMatmul, MatmulReduceScatter, MatmulAllReduce)}
HEAT, LEFT = 6, 3
WAYS = ("mpi", "copied", "direct")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--shapes", default="128x512x512,512x1024x1024,128x1024x64,512x1024x128,2048x1024x256")
    parser.add_argument("--operators", default=",".join(OPERATORS))
    args = parser.parse_args()
    use_own_cores()
    comm, host = MPI.COMM_WORLD, dt.world()
    worlds = ranks_of(comm), ranks_of(host)
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes.split(",")]
    names, rows = args.operators.split(","), []
    for name in names:
        for m, k, n in shapes:
            sizes = (m, k, n) if name == AllGatherMatmul.name else (m, n, k)
            runs = variants(OPERATORS[name](*sizes), worlds, host)
            taken = interleaved(runs, comm, args.seconds / len(names) / len(shapes))
            rows.append({"operator": name, "size": list(sizes), **summary(taken)})
            if comm.rank == 0:
                print(name, *sizes, {way: round(each["over_product"][1], 3) for way, each in rows[-1]["best"].items()})
    if comm.rank == 0:
        args.out.write_text(json.dumps({**facts(worlds[0]), "rows": rows}, indent=1) + "\n")


def variants(operator: Any, worlds: tuple[World, World], host: Any) -> dict[str, Callable[[], Any]]:
    """What runs interleaved, by label: the product alone, serial and all schedules of a plan, each way."""
    mpi, shared = worlds
    plan = dt.plan(operator, "shared-memory-2", extrapolate=True)
    serial, runs = operator.serial(2), dict[str, Callable[[], Any]]()
    for schedule in dict.fromkeys((serial, plan.schedule, *(rival.schedule for rival in plan.rivals))):
        label = "serial" if schedule == serial else str(schedule)
        runs[f"mpi {label}"] = bound(operator, schedule, mpi, lambda shape, dtype: np.zeros(shape, dtype))
        lent: Callable[..., Any] = lambda shape, dtype: dt.empty(shape, dtype, host)  # noqa: E731
        with copied():
            runs[f"copied {label}"] = bound(operator, schedule, shared, lent)
        runs[f"direct {label}"] = bound(operator, schedule, shared, lent)
    rows, depth = (operator.m, operator.k) if operator.name == AllGatherMatmul.name else (operator.m, operator.k // 2)
    width = operator.n // 2 if operator.name == AllGatherMatmul.name else operator.n
    a, b, c = (np.ones(shape, "f4") for shape in ((rows, depth), (depth, width), (rows, width)))
    runs["product"] = lambda: np.matmul(a, b, out=c)
    return runs


def bound(operator: Any, schedule: Any, world: World, make: Callable[..., Any]) -> Callable[[], Any]:
    program = operator.program(schedule, 2)
    options = replace(RunOptions.of(schedule, spans=False), progress="poll")
    found = Embedded(program, operator.workload(program, schedule), options, world)
    arrays = {name: make(*about) for name, about in found._shapes.items()}
    for array in arrays.values():
        array[...] = np.random.default_rng(1).standard_normal(array.shape)
    inputs = {buffer.name: arrays[buffer.name] for buffer in program.buffers if buffer.role == "input"}
    held = found.bound_to(inputs, {name: array for name, array in arrays.items() if name not in inputs})
    return lambda: found.run_bound(held)


@contextmanager
def copied() -> Iterator[None]:
    """Scratch memory is each rank's own, and every message is copied to where it is received."""
    before = World.lends, engine._memory
    World.lends = property(lambda world: False)  # type: ignore[assignment, method-assign]
    engine._memory = lambda *args: [(*row[:4], False) for row in before[1](*args)]
    try:
        yield
    finally:
        World.lends, engine._memory = before  # type: ignore[method-assign]


def interleaved(runs: dict[str, Callable[[], Any]], comm: Any, seconds: float) -> dict[str, Any]:
    """Seconds of each label that goes on, by round."""
    draw, left, rounds, until = random.Random(1), list(runs), 0, time.monotonic() + seconds
    times: dict[str, list[float]] = {label: [] for label in runs}
    while comm.bcast(rounds <= 2 * HEAT or time.monotonic() < until):
        draw.shuffle(left)
        for label in left:
            comm.Barrier()
            begin = time.perf_counter()
            runs[label]()
            times[label].append(time.perf_counter() - begin)
        rounds += 1
        if rounds == HEAT:
            slower = slowest(times, comm)
            by_way = [
                sorted((e for e in runs if e.startswith(way)), key=lambda e: np.median(slower[e])) for way in WAYS
            ]
            fixed = ["product", *(f"{way} serial" for way in WAYS)]
            left = list(dict.fromkeys([*fixed, *(each for way in by_way for each in way[:LEFT])]))
            times = {label: [] for label in left}
    return slowest(times, comm)


def slowest(times: dict[str, list[float]], comm: Any) -> dict[str, Any]:
    return {label: np.max(comm.allgather(np.array(each)), axis=0) for label, each in times.items()}


def summary(taken: dict[str, Any]) -> dict[str, Any]:
    """Medians; ratios to the product alone within rounds: their quartiles."""

    def about(label: str) -> dict[str, Any]:
        over = np.percentile(taken[label] / taken["product"], (25, 50, 75)).round(4).tolist()
        return {"schedule": label.partition(" ")[2], "us": float(np.median(taken[label]) * 1e6), "over_product": over}

    best = {}
    for way in WAYS:
        best[f"{way} serial"] = about(f"{way} serial")
        best[way] = min((about(e) for e in taken if e.startswith(way)), key=lambda found: found["over_product"][1])
    gain = np.percentile(taken[f"copied {best['copied']['schedule']}"] / taken[f"direct {best['direct']['schedule']}"],
                         (25, 50, 75))  # fmt: skip
    product_us = float(np.median(taken["product"]) * 1e6)
    rounds = len(taken["product"])
    return {"product_us": product_us, "rounds": rounds, "copied_over_direct": gain.round(4).tolist(), "best": best}


def facts(world: World) -> dict[str, Any]:
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = {"cpu": cpu.split(":")[1].strip(), "system": platform.platform(), "mpi": world.library, "commit": commit}
    return {"bench": "one_host", "ranks": 2, **about}


if __name__ == "__main__":
    main()
