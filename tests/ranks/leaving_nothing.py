"""Run by every rank, without MPI: communicators come and go, calls run, and nothing of them stays in the process."""

import ctypes
import gc
import os
import sys
import time
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
    """Mapped files of ours, file descriptors and threads of this process."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("dovetail")
    return maps, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def resident():
    """Bytes, without those that malloc has free."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def main(turns, calls):
    work(3, 100)
    time.sleep(1.2)  # threads of begun calls end when they were idle for a second
    before, bytes_before = kept(), resident()
    work(turns, calls)
    until = time.monotonic() + 20
    while (after := kept()) != before and time.monotonic() < until:
        time.sleep(0.05)
    assert after == before, (before, after)
    more = resident() - bytes_before
    print(f"{turns} turns of {calls} calls: maps, files, threads {after}, {more} bytes more", flush=True)
    assert more < 8 << 20, more


main(*map(int, sys.argv[1:]))
