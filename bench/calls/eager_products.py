"""A product called from Python by a schedule that is kept, beside the same messages and products written by hand.

    bench/calls/eager_products.py [--mpi mpich,openmpi] [--operators A,B] [--sizes 16,64] [--tiles 4] [--out FILE]

Two ranks on shared memory, in a cache folder of their own. Both move the same tiles, between arrays that stay: ours by
`dovetail.all_gather_matmul(a, b, comm, out=c)` and its kin, theirs by mpi4py's Isend, Irecv and Wait, and by
NumPy's matmul. A round times either for about `--batch` seconds, in random order, on the slowest rank; disturbed rounds
are repeated. `over_us`: ours less theirs, of one call; `lane_us`: over the lanes that the schedule has on a rank;
`look_up_us`: what it takes to find the plan of given arguments and bind them to it, of which `exchange_us` are the
exchange of 8 bytes between the ranks. Larger sizes compare the BLAS of SciPy, which ours calls, with NumPy's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from eager import batch, calls_in, cpu
from tuned import ENVIRONMENTS, HERE, provenance, table

LANE_US, LOOK_UP_US = 30.0, 7.0
TAG = 7
COLUMNS = (
    "with",
    "operator",
    "size",
    "ops",
    "ours_us",
    "theirs_us",
    "over_us",
    "lane_us",
    "op_us",
    "look_up_us",
    "exchange_us",
    "disturbed",
)
Call = Callable[[], object]


def main() -> None:
    args = arguments()
    if args.worker:
        worker(args)
        return
    out, rows = args.out or HERE / "results" / "eager-products.json", list[dict[str, Any]]()
    for mpi in args.mpi.split(","):
        rows += [{"with": mpi, **row} for row in launch(args, ENVIRONMENTS[mpi])]
        document = {"bench": "eager_products", "ranks": 2, **provenance(rows[-1:]), "rows": rows}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(rows, COLUMNS))
    print(f"\nwanted: at most {LANE_US:.0f} us a lane, and {LOOK_UP_US:.0f} us less the exchange to look up and bind")
    sys.exit(any(row["lane_us"] > LANE_US or row["look_up_us"] - row["exchange_us"] > LOOK_UP_US for row in rows))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", default="mpich,openmpi")
    parser.add_argument("--operators", default="all_gather_matmul,matmul_reduce_scatter")
    parser.add_argument("--sizes", default="16,64", help="rows, depth and columns of a rank")
    parser.add_argument("--tiles", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--batch", type=float, default=20e-3, help="seconds of calls between two stamps")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def launch(args: argparse.Namespace, environment: Path) -> list[dict[str, Any]]:
    """Run the worker on two ranks of one MPI, which keep their schedules in a folder of their own; the rows."""
    options = [f"--{word}={getattr(args, word)}" for word in ("operators", "sizes", "tiles", "rounds", "batch")]
    oversubscribe = ["--oversubscribe", "--bind-to", "none"] if environment.name.endswith("openmpi") else []
    command = [environment / "bin/mpiexec", *oversubscribe, "-n", "2", environment / "bin/python"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [*command, "-m", "mpi4py", __file__, "--worker", *options],
            env=os.environ | root | {"DOVETAIL_CACHE": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def worker(args: argparse.Namespace) -> None:
    """One rank: keep a schedule for each operator and size, then time both."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    sizes = [int(word) for word in args.sizes.split(",")]
    rows = [measure(comm, name, size, args) for name in args.operators.split(",") for size in sizes]
    if comm.rank == 0:
        print(json.dumps(rows))


def measure(comm: Any, name: str, size: int, args: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of both, and of the look-up, per call: medians over the rounds; what ours takes more, by rounds."""
    from dovetail.run.ranks.library import Shim, build_shim

    ours, theirs, looks, exchange, program = pair(comm, name, size, args.tiles)
    if not np.allclose(ours(), theirs(), rtol=1e-4):
        raise SystemExit(f"{name}: the loop by hand gives another result")
    names, calls = ("ours_us", "theirs_us", "look_up_us", "exchange_us"), (ours, theirs, looks, exchange)
    micros, good = rounds_of(comm, calls, args.rounds, args.batch)
    over = micros[:, 0] - micros[:, 1]
    low, middle, high = (float(each) for each in np.percentile(over, [25, 50, 75]))
    mine = program.columns["rank"] == comm.rank
    ops, lanes = int(mine.sum()), len(np.unique(program.columns["lane"][mine]))
    head = {"operator": name, "size": size, "tiles": args.tiles, "ops": ops, "lanes": lanes}
    medians = dict(zip(names, np.median(micros, axis=0).tolist(), strict=True))
    each = {"over_us": middle, "over_us_quartiles": [low, high], "lane_us": middle / lanes, "op_us": middle / ops}
    facts = {"mpi": Shim(build_shim()).library, "cpu": cpu()}
    return {**head, **medians, **each, "rounds": len(micros), "disturbed": int((~good).sum()), **facts}


def rounds_of(comm: Any, calls: Sequence[Call], count: int, batch_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds of a call, by round and call, of rounds that nothing disturbed; of all rounds, which those are."""
    from dovetail.run.job import disturbed_rounds

    each = [calls_in(comm, call, batch_s) for call in calls]
    shuffled, rows = random.Random(count), list[list[float]]()
    for _ in range(2 * count):
        row = [0.0] * len(calls)
        for at in shuffled.sample(range(len(calls)), len(calls)):
            row[at] = 1e6 * batch(comm, calls[at], each[at])
        rows.append(row)
        good = ~disturbed_rounds(np.array(rows))
        if good.sum() >= count:
            break
    enough = good.sum() >= min(3, count)
    return np.array(rows)[good] if enough else np.array(rows), good


def pair(comm: Any, name: str, size: int, tiles: int) -> tuple[Call, Call, Call, Call, Any]:
    """Our call, the loop by hand, the look-up of the plan, its exchange, and our Program, on arrays that stay.

    The schedule is kept for the shapes first, as tuning would.
    """
    import dovetail as dt
    from dovetail.call.products import asked_of, look_up
    from dovetail.ir import Schedule
    from dovetail.run.ranks.comm import adopted
    from dovetail.run.ranks.embedded import ranks_of
    from dovetail.store.tuned_schedules import save_schedule

    gathers, world, rng = name == "all_gather_matmul", ranks_of(comm), np.random.default_rng(comm.rank)
    a, b = (rng.random((rows, size), np.float32) for rows in (size if gathers else 2 * size, size))
    operator = (
        dt.AllGatherMatmul(2 * size, size, 2 * size) if gathers else dt.MatmulReduceScatter(2 * size, 2 * size, size)
    )
    cut = tuple(map(len, np.array_split(a[:size], tiles)))
    schedule = Schedule.of("uniform", tiles=cut, by="messages", own_block="first" if gathers else "last", fused=False)
    hosts = world.gather(platform.node())
    if comm.rank == 0:
        save_schedule(operator, schedule, world.library, hosts)
    comm.Barrier()
    rows = [slice(stop - count, stop) for stop, count in zip(np.cumsum(cut).tolist(), cut, strict=True)]
    out, call = np.empty((2 * size if gathers else size, size), np.float32), getattr(dt, name)
    by_hand = (gathered if gathers else scattered)(comm, a, b, rows)
    asked = asked_of(name, (a, b), out, {})
    looks = lambda: look_up(name, adopted(comm), asked)  # noqa: E731
    exchange = lambda: adopted(comm).gather_number(1)  # noqa: E731
    return lambda: call(a, b, comm, out=out), by_hand, looks, exchange, operator.program(schedule, 2)


def gathered(comm: Any, a: np.ndarray, b: np.ndarray, rows: list[slice]) -> Call:
    """The other rank's rows of A come tile by tile while the own ones are multiplied."""
    from mpi4py import MPI

    peer, came, c = 1 - comm.rank, np.empty_like(a), np.empty((2 * len(a), b.shape[1]), a.dtype)
    mine, theirs = (c[rank * len(a) : (rank + 1) * len(a)] for rank in (comm.rank, peer))

    def call() -> object:
        asked = [comm.Irecv(came[tile], peer, TAG) for tile in rows]
        sent = [comm.Isend(a[tile], peer, TAG) for tile in rows]
        np.matmul(a, b, out=mine)
        for request, tile in zip(asked, rows, strict=True):
            request.Wait()
            np.matmul(came[tile], b, out=theirs[tile])
        MPI.Request.Waitall(sent)
        return c

    return call


def scattered(comm: Any, a: np.ndarray, b: np.ndarray, rows: list[slice]) -> Call:
    """Tiles of the product for the other rank leave while the next is multiplied; what comes is added to the own."""
    from mpi4py import MPI

    peer, half = 1 - comm.rank, len(a) // 2
    own, other = (a[rank * half : (rank + 1) * half] for rank in (comm.rank, peer))
    made, came, c = (np.empty((half, b.shape[1]), a.dtype) for _ in range(3))

    def call() -> object:
        asked, sent = [comm.Irecv(came[tile], peer, TAG) for tile in rows], []
        for tile in rows:
            np.matmul(other[tile], b, out=made[tile])
            sent.append(comm.Isend(made[tile], peer, TAG))
        np.matmul(own, b, out=c)
        for request, tile in zip(asked, rows, strict=True):
            request.Wait()
            np.add(c[tile], came[tile], out=c[tile])
        MPI.Request.Waitall(sent)
        return c

    return call


if __name__ == "__main__":
    main()
