"""Run by every rank, without MPI: communicators come and go, and calls run, and nothing is left of them in the process."""

import gc
import os
import sys
from pathlib import Path

import numpy as np
from any_ranks import WORLD
from comm_ranks import forced

import dovetail as dt
from dovetail.call import use


def work(turns, calls):
    held, short = np.ones(30_000), np.ones(4)
    for _ in range(turns):
        for comm in (WORLD.Dup(), WORLD.Split(0, -WORLD.rank)):
            use(comm, forced(comm, "ring_all_reduce"))
            for _ in range(3):
                dt.all_reduce(held, comm, "max")
            dt.begin_all_reduce(short, comm, "max").wait()
            comm.Free()
        for _ in range(calls):
            dt.all_reduce(short, WORLD, "max")
            dt.all_gather(short, WORLD)


def kept():
    """What this process has: mapped segments, file descriptors, threads, and resident bytes."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("dovetail")
    own = Path("/proc/self/status").read_text()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return maps, len(os.listdir("/proc/self/fd")), own.split("Threads:")[1].split()[0], pages * os.sysconf("SC_PAGESIZE")


def main(turns, calls):
    work(4, 100)
    WORLD.barrier()
    *before, resident = kept()
    work(turns, calls)
    WORLD.barrier()
    *after, grown = kept()
    assert before == after, (before, after)
    print(f"{turns} turns of {calls} calls: {before}, {grown - resident} bytes more", flush=True)
    assert grown - resident < 4 << 20, (resident, grown)


main(*map(int, sys.argv[1:]))
