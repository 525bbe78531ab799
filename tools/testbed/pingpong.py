"""Ping-pong between ranks 0 and 1: prints bytes, median one-way microseconds and MB/s per message size."""

import statistics
import sys
import time

import numpy as np
from mpi4py import MPI


def one_way_seconds(comm, num_bytes, repeats):
    """Median of half the round-trip times; ranks above 1 only meet at the barrier."""
    out, back = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    times_s = []
    comm.Barrier()
    for _ in range(repeats + 1):
        start_s = time.perf_counter()
        if comm.rank == 0:
            comm.Send(out, 1)
            comm.Recv(back, 1)
        elif comm.rank == 1:
            comm.Recv(back, 0)
            comm.Send(out, 0)
        times_s.append((time.perf_counter() - start_s) / 2)
    return statistics.median(times_s[1:])  # the first trip opens the connection


def main():
    comm = MPI.COMM_WORLD
    sizes = [int(word) for word in sys.argv[1:]] or [1, 1024, 65536, 1 << 20, 1 << 22]
    for num_bytes in sizes:
        seconds = one_way_seconds(comm, num_bytes, repeats=5)
        if comm.rank == 0:
            print(f"{num_bytes:>9} B {seconds * 1e6:>12.1f} us {num_bytes / seconds / 1e6:>9.2f} MB/s", flush=True)


main()
