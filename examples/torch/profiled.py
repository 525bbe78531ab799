"""Steps of a tensor-parallel MLP under torch.profiler, a file for each rank, which `dovetail trace import` reads.

    torchrun --nproc-per-node 2 examples/torch/profiled.py FOLDER [gloo]
    dovetail trace import FOLDER/rank*.json -o FOLDER/steps.dovetail
    dovetail trace advise FOLDER/steps.dovetail

Rank 1 computes a product ten times, as if it had more to do; the advice names it. `gloo`: on that backend.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import gelu, linear
from torch.profiler import ProfilerActivity, profile

import dovetail.torch  # noqa: F401  (registers backend "dovetail")

TOKENS, WIDTH, HIDDEN, STEPS = 256, 256, 1024, 50


def main(folder, backend="dovetail"):
    Path(folder).mkdir(parents=True, exist_ok=True)  # torch.profiler writes nothing into a folder that is missing
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    into, out = torch.rand(HIDDEN // ranks, WIDTH), torch.rand(WIDTH, HIDDEN // ranks)
    tokens = torch.rand(TOKENS, WIDTH)

    def step():
        for _ in range(10 if rank == 1 else 1):
            hidden = gelu(linear(tokens, into))
        result = linear(hidden, out)
        dist.all_reduce(result)
        return result

    with profile(activities=[ProfilerActivity.CPU]):
        step()  # the first profile of a process begins late
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        for _ in range(STEPS):
            step()
    found.export_chrome_trace(str(Path(folder, f"rank{rank}.json")))
    dist.barrier()
    if rank == 0:
        print(f"on {ranks} ranks, {backend}: {folder}/rank*.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
