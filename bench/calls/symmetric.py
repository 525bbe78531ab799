"""symmetric: collectives on arrays that all ranks map, beside plain ones and the limits of two processes.

    dovetail launch --ranks 2 -- python bench/calls/symmetric.py [BYTES ...]     or started by an mpiexec

Two ranks, in one job: every round times each way once, after the word exchange and the limit, C functions that run on
memory of these very ranks. The limit of all_reduce: each rank adds both arrays, whole, straight from shared memory; of
the others: each rank copies or adds what it is to get. Bytes are those of a rank's larger array. Prints JSON: medians
and quartiles in seconds, and the median of each round's ratio to its limit, of those rounds in which the cores were
equally far apart (`is_alike` false: too few such rounds, all are taken).
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dovetail as dt
from dovetail.call import use
from dovetail.call.validate import _asked
from dovetail.prober.baselines import Timing
from dovetail.run.ranks.comm import adopted
from dovetail.run.shared.environment import is_rank
from dovetail.store.selection import Row, Selection
from dovetail.tuner.baselines import alike

HERE, SIZES, ROUNDS, ROUND_S = Path(__file__).resolve().parents[1], (65536, 1 << 19, 1 << 21, 1 << 24), 21, 4e-3
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
double limit(int kind, size_t count, int times) {
    if (kind == 0) return sums_s(count, times);
    const size_t part = count / 2;
    const float *const mine = buffer + (size_t)me * count, *const other = buffer + (size_t)(1 - me) * count;
    float* const to = buffer + (size_t)(2 + me) * count;
    ++number, exchange(number, 0);
    const double begun = now_s();
    for (int i = 0; i < times; ++i) {
        ++number, exchange(number, 0);
        if (kind == 1) memcpy(to + me * part, mine, 4 * part), memcpy(to + (1 - me) * part, other, 4 * part);
        if (kind == 2) for (size_t at = me * part; at < (me + 1) * part; ++at) to[at] = mine[at] + other[at];
        if (kind == 3 && me == 1) memcpy(to, other, 4 * count);
        ++number, exchange(number, 0);
    }
    return (now_s() - begun) / times;
}
"""
WAYS = {  # the limit's number is the place
    "all_reduce": ("recursive_doubling_all_reduce", "all_pairs_all_reduce", "double_tree_all_reduce"),
    "all_gather": ("ring_all_gather",),
    "reduce_scatter": ("direct_reduce_scatter",),
    "broadcast": ("binomial_tree_broadcast",),
}


def main() -> None:
    comm = world()
    rank = comm.rank
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    limit = limits(comm, max(sizes))
    found = {kind: {size: at_size(comm, limit, kind, size) for size in sizes} for kind in WAYS}
    if rank == 0:
        print(json.dumps({"bench": "symmetric", "rounds": ROUNDS, "kinds": found}, indent=1))


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
    made.word.restype = made.limit.restype = ctypes.c_double
    memory = dt.empty(4096 + 4 * most_bytes, "u1", comm)
    channels = adopted(comm).bound.neighbours
    place = channels.place(memory.ctypes.data, memory.nbytes)
    made.join(ctypes.c_void_p(channels.address(place, 0)), comm.rank)
    made.memory = memory
    return made


def at_size(comm: Any, limit: Any, kind: str, num_bytes: int) -> dict[str, Any]:
    """Seconds of each way, by rounds that alternate."""
    count, ways = num_bytes // 4, dict[str, Any]()
    for name in WAYS[kind]:
        ours = comm.Dup()
        use(ours, Selection({}, (Row(kind, 2, 1, 0, 1 << 40, name, transport="shared"),)))
        for arrays in ("mapped", "plain"):
            for held, out in pairs(kind, count, arrays == "mapped", ours):
                where = ", in place" if np.shares_memory(held, out) else ""
                ways[f"{name}, {arrays}{where}"] = timing(kind, ours, held, out)
    limit.fill(ctypes.c_size_t(count))
    seconds: dict[str, list[float]] = {"word": [], "limit": [], **{way: [] for way in ways}}
    times = {}
    for round_number in range(-1, ROUNDS):
        for name in seconds:
            limit.word(100)  # all begin together
            if name == "word":
                took = limit.word(2000)
            elif name == "limit":
                took = limit.limit(list(WAYS).index(kind), ctypes.c_size_t(count), times.get(name, 1))
            else:
                took = ways[name](times.get(name, 3))
            if round_number < 0:
                times[name] = max(comm.allgather(3 + int(ROUND_S / took)))
            else:
                seconds[name].append(took)
    return judged(num_bytes, seconds)


def judged(num_bytes: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The summary of every way, in the rounds whose word exchanges say that the cores were equally far apart."""
    stamps = tuple(seconds["word"])
    timings = [Timing(num_bytes, tuple(taken), 0, stamps) for taken in seconds.values()]
    found = alike(timings)
    taken = {name: each.seconds for name, each in zip(seconds, found or timings, strict=True)}
    over = {way: [s / limit_s for s, limit_s in zip(each, taken["limit"], strict=True)] for way, each in taken.items()}
    ways = {way: summary(each) | {"over_limit": statistics.median(over[way])} for way, each in taken.items()}
    return {"is_alike": found is not None, "rounds": len(taken["limit"]), "ways": ways}


def pairs(kind: str, count: int, mapped: bool, comm: Any) -> list[tuple[Any, Any]]:
    """Arrays of a rank for one call each: apart, where the call has two, and in place, where it can be."""
    sizes = {"all_gather": (count // 2, count), "reduce_scatter": (count, count // 2)}.get(kind, (count, count))
    held, out = (dt.empty(size, "f4", comm) if mapped else np.zeros(size, "f4") for size in sizes)
    held[:] = 1
    own = slice(comm.Get_rank() * (count // 2), (comm.Get_rank() + 1) * (count // 2))
    apart = [] if kind == "broadcast" else [(held, out)]
    inside = {"all_reduce": [(held, held)], "all_gather": [(out[own], out)], "broadcast": [(held, held)]}
    return apart + inside.get(kind, [])


def timing(kind: str, comm: Any, held: Any, out: Any) -> Any:
    """Return what times calls from C++, and keeps the arrays."""
    for _ in range(3):
        dt.broadcast(held, comm) if kind == "broadcast" else getattr(dt, kind)(held, comm, out=out)
    made = adopted(comm)
    words = made._words(_asked(kind, made, held, None if kind == "broadcast" else out, "sum", 0, None)[2])
    return lambda times, _arrays=(held, out): made.bound.timed(*words, times)


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    low, mid, high = statistics.quantiles(seconds, n=4)
    return {"median_s": mid, "quartiles_s": [low, high], "least_s": min(seconds)}


if __name__ == "__main__":
    main()
