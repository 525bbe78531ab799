"""symmetric: all_reduce on arrays that all ranks map, beside plain ones and the limits of two processes.

    dovetail launch --ranks 2 -- python bench/symmetric.py [BYTES ...]     or started by an mpiexec

Two ranks, in one job: every round times each way once, after the word exchange and the sums of limits.c, whose
functions run on memory of these very ranks. Prints JSON: medians and quartiles in seconds, and the median of each
round's ratio to its sums.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import dovetail as dt
from dovetail.call import use
from dovetail.run.ranks.comm import CollectiveCall, adopted
from dovetail.run.shared.environment import is_rank
from dovetail.store.selection import Row, Selection

HERE, SIZES, ROUNDS, ROUND_S = Path(__file__).parent, (65536, 1 << 19, 1 << 21, 1 << 24), 21, 4e-3
WRAPPED = """
#define main limits_main
#include "limits.c"
void join(char* memory, int rank) { slots = (Slot*)memory, buffer = (float*)(memory + 4096), me = rank; }
void fill(size_t count) {
    for (size_t at = 0; at < count; ++at) buffer[(size_t)me * count + at] = (float)(1 + me);
}
double word(int times) {
    const double begun = now_s();
    for (int i = 0; i < times; ++i) ++number, exchange(number, number);
    return (now_s() - begun) / times;
}
double sums(size_t count, int times) { return sums_s(count, times); }
"""


def main() -> None:
    comm = world()
    rank = comm.rank
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    found = {size: at_size(comm, limits(comm, max(sizes)), size) for size in sizes}
    if rank == 0:
        print(json.dumps({"bench": "symmetric", "rounds": ROUNDS, "sizes": found}, indent=1))


def world() -> Any:
    if is_rank():
        return dt.world()
    from mpi4py import MPI

    return MPI.COMM_WORLD


def limits(comm: Any, most_bytes: int) -> Any:
    """The functions of limits.c, on memory of rank 0 that both ranks map."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "limits_here.c", Path(folder) / "limits.so"
        source.write_text(WRAPPED)
        subprocess.run(
            ["cc", "-O3", "-march=native", "-shared", "-fPIC", f"-I{HERE}", source, "-o", library], check=True
        )
        made = ctypes.CDLL(os.fspath(library))
    made.word.restype = made.sums.restype = ctypes.c_double
    memory = dt.empty(4096 + 4 * most_bytes, "u1", comm)
    channels = adopted(comm).bound.neighbours
    place = channels.place(memory.ctypes.data, memory.nbytes)
    made.join(ctypes.c_void_p(channels.address(place, 0)), comm.rank)
    made.memory = memory
    return made


def at_size(comm: Any, limit: Any, num_bytes: int) -> dict[str, Any]:
    """Seconds of each way, by rounds that alternate."""
    count, ways = num_bytes // 4, dict[str, Any]()
    for name in ("all_pairs_all_reduce", "recursive_doubling_all_reduce"):
        ours = comm.Dup()
        use(ours, Selection({}, (Row("all_reduce", 2, 1, 0, 1 << 40, name, transport="shared"),)))
        for kind in ("mapped", "plain"):
            held, out = (dt.empty(count, "f4", ours) if kind == "mapped" else np.zeros(count, "f4") for _ in range(2))
            ways[f"{name}, {kind}"] = timing(ours, held, out)
            ways[f"{name}, {kind}, in place"] = timing(ours, held, held)
    limit.fill(ctypes.c_size_t(count))
    seconds: dict[str, list[float]] = {"word": [], "sums": [], **{way: [] for way in ways}}
    times = {}
    for round_number in range(-1, ROUNDS):
        for name in seconds:
            limit.word(100)  # all begin together
            if name == "word":
                took = limit.word(2000)
            elif name == "sums":
                took = limit.sums(ctypes.c_size_t(count), times.get(name, 1))
            else:
                took = ways[name](times.get(name, 3))
            if round_number < 0:
                times[name] = max(comm.allgather(3 + int(ROUND_S / took)))
            else:
                seconds[name].append(took)
    sums = seconds["sums"]
    over = {name: [s / limit_s for s, limit_s in zip(taken, sums, strict=True)] for name, taken in seconds.items()}
    return {name: summary(taken) | {"over_sums": statistics.median(over[name])} for name, taken in seconds.items()}


def timing(comm: Any, held: Any, out: Any) -> Any:
    """Return what times calls from C++, and keeps the arrays."""
    for _ in range(3):
        dt.all_reduce(held, comm, out=out)
    made = adopted(comm)
    asked = CollectiveCall("all_reduce", held.ctypes.data, out.ctypes.data, held.size, "float32", held.nbytes)
    words = made._words(asked)
    return lambda times, _arrays=(held, out): made.bound.timed(*words, times)


def summary(seconds: list[float]) -> dict[str, Any]:
    low, mid, high = statistics.quantiles(seconds, n=4)
    return {"median_s": mid, "quartiles_s": [low, high], "least_s": min(seconds)}


if __name__ == "__main__":
    main()
