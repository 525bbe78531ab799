"""A collective called from Python on shared memory: ours beside mpi4py's own, in turn, at every size, under each MPI.

    bench/calls/eager.py [--mpi mpich,openmpi] [--ranks 2] [--min 8] [--max 64M] [--dtype float32] [--out FILE]

Both move the same arrays on the same communicator; what ours does is said by the machine's selection table, where there
is one (`dovetail tune all_reduce` makes it). A round calls each of the two for about `--batch` seconds, in random
order; its time is that of the slowest rank. `ratio` is their median over ours, round by round: above 1, ours is faster.
`--levels`: of thread support that mpi4py asks for, a launch each; by default it asks for multiple. `--knobs N=V …`:
one more launch, at the last level, with such settings of the library in its environment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import ENVIRONMENTS, provenance

from dovetail.core import parse_bytes

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
STANDARD = 0.9
MOST_CALLS = 20_000


def main() -> None:
    args = arguments()
    if args.worker:
        worker(args)
        return
    found = {}
    for mpi in args.mpi.split(","):
        levels, knobs = args.levels.split(","), dict(each.split("=", 1) for each in args.knobs)
        for level, setting in [*((each, {}) for each in levels), *([(levels[-1], knobs)] if knobs else [])]:
            name = " ".join([level, *(f"{knob}={value}" for knob, value in setting.items())])
            found[mpi, name] = launch(args, ENVIRONMENTS[mpi], level, setting)
            print_summary(f"{mpi} {level}", found[mpi, name]["rows"])
    facts = {"cpu": cpu(), "mpi": ", ".join(dict.fromkeys(each["library"] for each in found.values()))}
    rows = [{"mpi": mpi, "level": level, **row} for (mpi, level), each in found.items() for row in each["rows"]]
    least = min(row["ratio"] for row in rows)
    head = {"bench": "eager", "ranks": args.ranks, "dtype": args.dtype, **provenance([facts]), "least_ratio": least}
    document = head | {"rows": rows}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"least ratio {least:.2f}, to be at least {STANDARD}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", default="mpich,openmpi")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--min", default="8")
    parser.add_argument("--max", default="64M")
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--collectives", default=",".join(NAMES))
    parser.add_argument("--levels", default="multiple,serialized")
    parser.add_argument("--knobs", nargs="*", default=[])
    parser.add_argument("--cache", type=Path, help="that bench/collectives/collectives.py --cache tuned in")
    parser.add_argument("--dtype", default="float32", help="what the table was measured for; mpi4py must know it")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--batch", type=float, default=5e-3, help="seconds of calls between two stamps")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def launch(args: argparse.Namespace, environment: Path, level: str, knobs: dict[str, str]) -> dict[str, object]:
    """Run the worker on ranks of one MPI, at a level and with knobs of the library; what rank 0 printed."""
    words = ("ranks", "min", "max", "factor", "collectives", "dtype", "rounds", "batch")
    options = [f"--{word}={getattr(args, word)}" for word in words]
    oversubscribe = ["--oversubscribe"] if environment.name.endswith("openmpi") else []
    command = [environment / "bin/mpiexec", *oversubscribe, "-n", str(args.ranks), environment / "bin/python"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    mpi = next(name for name, place in ENVIRONMENTS.items() if place == environment)
    cache = {"DOVETAIL_CACHE": str(args.cache.resolve() / mpi)} if args.cache else {}
    done = subprocess.run(
        [*command, "-m", "mpi4py", "-rc", f"thread_level={level}", __file__, "--worker", *options],
        env=os.environ | root | cache | knobs,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def worker(args: argparse.Namespace) -> None:
    """One rank: measures every size of every collective."""
    from mpi4py import MPI

    comm, sizes = MPI.COMM_WORLD, [parse_bytes(args.min)]
    while sizes[-1] * args.factor < parse_bytes(args.max):
        sizes.append(sizes[-1] * args.factor)
    sizes += [] if sizes[-1] == parse_bytes(args.max) else [parse_bytes(args.max)]
    rows = [measure(comm, name, num_bytes, args) for name in args.collectives.split(",") for num_bytes in sizes]
    if comm.rank == 0:
        library = MPI.Get_library_version().splitlines()[0].rstrip("\0")
        print(json.dumps({"library": " ".join(library.split()), "rows": rows}))


def measure(comm: object, name: str, num_bytes: int, args: argparse.Namespace) -> dict[str, object]:
    """Medians of both, and the ratio of each round, for `num_bytes` of the larger of input and output."""
    from dovetail.call import choice_for

    calls = pair(comm, name, num_bytes, np.dtype(args.dtype))
    seconds: dict[str, list[float]] = {which: [] for which in calls}
    count = max(calls_in(comm, call, args.batch) for call in calls.values())
    shuffled = random.Random(num_bytes)
    for _ in range(args.rounds):
        for which in shuffled.sample(sorted(calls), 2):
            seconds[which].append(batch(comm, calls[which], count))
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = {f"{which}_s": statistics.median(values) for which, values in seconds.items()}
    choice = choice_for(comm, name, num_bytes, args.dtype)
    head = {"collective": name, "bytes": num_bytes, "choice": str(choice or "library"), **medians}
    return {**head, "ratio": middle, "ratio_quartiles": [low, high], "rounds": args.rounds, "calls": count}


def pair(comm: object, name: str, num_bytes: int, dtype: np.dtype) -> dict[str, Callable[[], object]]:
    """Ours and mpi4py's call on the same arrays, in place where both can."""
    from mpi4py import MPI

    import dovetail as dc

    whole = np.full(max(num_bytes // dtype.itemsize, comm.size), 0, dtype)  # written: untouched pages are all one page
    part, other = np.full(len(whole) // comm.size, 0, dtype), np.full_like(whole, 0)
    both = {
        "all_reduce": (lambda: dc.all_reduce(whole, comm), lambda: comm.Allreduce(MPI.IN_PLACE, whole)),
        "all_gather": (lambda: dc.all_gather(part, comm, whole), lambda: comm.Allgather(part, whole)),
        "reduce_scatter": (
            lambda: dc.reduce_scatter(whole, comm, "sum", part),
            lambda: comm.Reduce_scatter_block(whole, part),
        ),
        "all_to_all": (lambda: dc.all_to_all(whole, comm, other), lambda: comm.Alltoall(whole, other)),
        "broadcast": (lambda: dc.broadcast(whole, comm), lambda: comm.Bcast(whole)),
    }
    return dict(zip(("ours", "theirs"), both[name], strict=True))


def batch(comm: object, call: Callable[[], object], count: int) -> float:
    """Seconds of one of `count` calls, on the slowest rank."""
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    mine = (time.perf_counter() - begin) / count
    return max(comm.allgather(mine))


def calls_in(comm: object, call: Callable[[], object], seconds: float) -> int:
    """How many calls take about `seconds`, counted once they are warm: engines are made, connections opened."""
    batch(comm, call, 3)
    for count in (2 << k for k in range(MOST_CALLS.bit_length())):
        once_s = min(batch(comm, call, count) for _ in range(3))
        if count * once_s >= seconds / 2:
            break
    return max(2, min(MOST_CALLS, round(seconds / once_s)))


def print_summary(mpi: str, rows: list[dict[str, object]]) -> None:
    for row in rows:
        low, high = row["ratio_quartiles"]
        print(
            f"{mpi:8} {row['collective']:15} {row['bytes']:>9} B  ours {row['ours_s'] * 1e6:9.2f} us  theirs "
            f"{row['theirs_s'] * 1e6:9.2f} us  ratio {row['ratio']:.2f} ({low:.2f} to {high:.2f})  {row['choice']}",
            flush=True,
        )


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
