"""A call that is begun, NumPy work beside it, and a wait: beside the blocking call and the work one after the other.

    bench/calls/begun.py [--rate 100mbit] [--mpi mpich] [--mbytes 2] [--shape 512x512x1024] [--rounds 15] [--out FILE]

Two ranks, one a core: on two testbed hosts with a link of that rate (root and iproute2), or, of rate `none`, on shared
memory. The calls are `all_reduce` of `--mbytes` of float32, and the serial `matmul_all_reduce` of m x k x n. The
work is NumPy products that take about as long as the call. A round times, in
random order, on the slowest rank: the call, the work, both one after the other, and begin, work, wait. `gain`: the
share of the shorter of work and call that overlapping saves, of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from eager import cpu
from tuned import ENVIRONMENTS, HERE, SHARED_MEMORY, hosts, provenance, table

from dovetail.run.mpi.executor import default_launch

COLUMNS = ("mpi", "call", "call_s", "work_s", "in_turn_s", "begun_s", "gain")


def main() -> None:
    args = arguments()
    if args.worker:
        worker(args)
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever ends this lets it take its hosts down first
        signal.signal(number, lambda which, _: sys.exit(128 + which))
    home = ENVIRONMENTS[args.mpi]
    if Path(sys.prefix).resolve() != home.resolve():
        os.execv(home / "bin/python", [str(home / "bin/python"), *sys.argv])
    out = args.out or HERE / "results" / f"begun-{args.rate}-{args.mpi}.json"
    with hosts(f"begun-{args.rate}", args.rate) as about:
        rows = [{"mpi": args.mpi, **row} for row in launch(args)]
    document = {"bench": "begun", "rate": args.rate, "ranks": 2, **about, **provenance(rows[-1:]), "rows": rows}
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(rows, COLUMNS))


def launch(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the worker on two ranks; the rows."""
    options = [f"--{name}={getattr(args, name)}" for name in ("mbytes", "shape", "rounds")]
    command = [*shlex.split(default_launch().format(ranks=2)), sys.executable, "-m", "mpi4py", __file__, "--worker"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([*command, *options], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def worker(args: argparse.Namespace) -> None:
    """One rank: both calls, and what they take."""
    from mpi4py import MPI

    import dovetail as dt

    comm = MPI.COMM_WORLD
    m, k, n = map(int, args.shape.split("x"))
    rng = np.random.default_rng(comm.rank)
    a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    array, c = np.ones(int(args.mbytes * 2**18), np.float32), np.empty((m, n), np.float32)
    whole = np.empty_like(array)
    reduces = (dt.all_reduce, dt.begin_all_reduce), (array,), whole
    multiplies = (dt.matmul_all_reduce, dt.begin_matmul_all_reduce), (a, b), c
    rows = [
        {"call": f"all_reduce of {args.mbytes:g} MB", **measure(comm, args.rounds, *reduces)},
        {"call": f"matmul_all_reduce {args.shape}", **measure(comm, args.rounds, *multiplies)},
    ]
    if comm.rank == 0:
        print(json.dumps(rows))


def measure(comm: Any, rounds: int, calls: tuple[Any, Any], arrays: tuple[Any, ...], out: Any) -> dict[str, Any]:
    """One call's row: medians over rounds of seconds on the slowest rank."""
    call, begin = calls
    small = np.random.default_rng(0).random((128, 128), np.float32)
    room = np.empty_like(small)
    repeats = 1

    def work() -> None:
        for _ in range(repeats):
            np.matmul(small, small, out=room)

    def blocking() -> None:
        call(*arrays, comm, out=out)

    def in_turn() -> None:
        blocking()
        work()

    def begun() -> None:
        request = begin(*arrays, comm, out=out)
        work()
        request.wait()

    for act in (blocking, blocking, begun, begun):
        act()
    call_s = statistics.median(timed(comm, blocking) for _ in range(5))
    repeats = 100
    repeats = max(1, round(100 * call_s / timed(comm, work)))
    acts = {"call_s": blocking, "work_s": work, "in_turn_s": in_turn, "begun_s": begun}
    order, taken = random.Random(0), {name: list[float]() for name in acts}
    for _ in range(rounds):
        for name in order.sample(list(acts), len(acts)):
            taken[name].append(timed(comm, acts[name]))
    row: dict[str, Any] = {name: statistics.median(each) for name, each in taken.items()}
    spread = {f"{name}_spread": statistics.quantiles(each, n=4) for name, each in taken.items()}
    gain = (row["in_turn_s"] - row["begun_s"]) / min(row["call_s"], row["work_s"])
    return {**row, "gain": gain, **spread, "rounds": rounds, "cpu": cpu()}


def timed(comm: Any, act: Callable[[], None]) -> float:
    """Seconds that the slowest rank takes, once all have come."""
    from mpi4py import MPI

    comm.Barrier()
    start = time.perf_counter()
    act()
    slowest: float = comm.allreduce(time.perf_counter() - start, MPI.MAX)
    return slowest


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", default="100mbit", help=f"of the link between two hosts; {SHARED_MEMORY}: one host")
    parser.add_argument("--mpi", default="mpich", choices=ENVIRONMENTS)
    parser.add_argument("--mbytes", type=float, default=2)
    parser.add_argument("--shape", default="512x512x1024")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
