"""A program whose calls on gloo end as it ends, on one core: gloo's threads then drop tensors late."""

import os

import torch
import torch.distributed as dist

import dovetail.torch  # noqa: F401  (waits for those threads)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
core = min(os.sched_getaffinity(0))
for task in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(task), {core})
for _ in range(50):
    dist.all_reduce(torch.ones(8), async_op=True)
