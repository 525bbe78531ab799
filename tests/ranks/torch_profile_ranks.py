"""Run by 2 ranks: calls of torch.distributed under torch.profiler, on gloo and on "dovetail", a file for each rank."""

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import dovetail.torch as dt

RANK, RANKS = int(os.environ["DOVETAIL_RANK"]), int(os.environ["DOVETAIL_RANKS"])
FOLDER = sys.argv[1]
STEPS, SIZE, LATE_S = 8, 1000, 0.03


def work(times):
    for _ in range(times):
        torch.mm(MATRIX, MATRIX)


def late():
    """Rank 1 takes longer before each call."""
    for _ in range(STEPS):
        work(2)
        time.sleep(LATE_S * RANK)
        dist.all_reduce(torch.ones(SIZE))


def begun():
    """Rank 0 works beside calls that rank 1 has not made yet."""
    for _ in range(STEPS):
        time.sleep(LATE_S * RANK)
        called = dist.all_reduce(torch.ones(SIZE), async_op=True)
        work(4)
        called.wait()


def kinds():
    dist.broadcast(torch.ones(SIZE), 0)
    dist.all_gather_into_tensor(torch.ones(SIZE * RANKS), torch.ones(SIZE))
    dist.reduce_scatter_tensor(torch.ones(SIZE), torch.ones(SIZE * RANKS))
    dist.barrier()
    dist.all_reduce(torch.ones(SIZE)[::2])  # with gaps: made in Python


def operator():
    dt.linear_all_reduce(torch.ones(8, 16), torch.ones(4, 16))


def main():
    global MATRIX
    torch.set_num_threads(1)
    MATRIX = torch.rand(150, 150)
    with profile(activities=[ProfilerActivity.CPU]):
        work(1)  # the first profile of a process begins late
    for backend in ("gloo", "dovetail"):
        where, limit = f"file://{FOLDER}/{backend}.store", timedelta(seconds=60)
        dist.init_process_group(backend, init_method=where, rank=RANK, world_size=RANKS, timeout=limit)
        for part in (late, begun, *((kinds, operator) if backend == "dovetail" else ())):
            part()
            dist.barrier()
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
                part()
            found.export_chrome_trace(f"{FOLDER}/{backend}.{part.__name__}.{RANK}.json")
        form = type(dist.group.WORLD).__name__
        dist.destroy_process_group()
    print(json.dumps({"form": form}), flush=True)


if __name__ == "__main__":
    main()
