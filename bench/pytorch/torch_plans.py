"""Time a tensor-parallel block by its plan on gloo, on dovetail, and with `overlapped`: µs a forward and a step.

    torchrun --nproc-per-node 2 bench/pytorch/torch_plans.py [--tokens 16] [--width 64] [--rounds 15] [--calls 20]

The block is an attention (q, k, v and an output layer) whose sequence is cut over the ranks. Rounds of the three ways
alternate; medians, and the quartiles in brackets, of the slowest rank.
"""

import argparse
import statistics
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

import dovetail.torch as dt


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, tokens):
        q, k, v = self.q(tokens), self.k(tokens), self.v(tokens)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v))


def plan():
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    columns = {name: ColwiseParallel() for name in ("q", "k", "v")}
    return {"": gather, **columns, "out": RowwiseParallel(output_layouts=Shard(1))}


def models(width):
    """Return the block each way."""
    meshes = {"dovetail": init_device_mesh("cpu", (dist.get_world_size(),))}
    meshes["gloo"] = DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")
    ways = {
        "gloo": ("gloo", plan()),
        "dovetail": ("dovetail", plan()),
        "overlapped": ("dovetail", dt.overlapped(plan())),
    }
    return {way: parallelize_module(Attention(width), meshes[on], made) for way, (on, made) in ways.items()}


def seconds(call, calls):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    found = torch.tensor((time.perf_counter() - begin) / calls)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("tokens", 16), ("width", 64), ("rounds", 15), ("calls", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("dovetail")
    tokens = torch.rand(2, args.tokens, args.width)

    def forward(model):
        with torch.no_grad():
            model(tokens)

    made = models(args.width)
    with dt.warm_up():
        made["overlapped"](tokens).sum().backward()
    steps = {"forward": forward, "forward and backward": lambda model: model(tokens).sum().backward()}
    for what, step in steps.items():
        times = {way: [] for way in made}
        for turn in range(args.rounds + 2):
            for way, model in made.items():
                found = seconds(lambda model=model, step=step: step(model), args.calls)
                times[way] += [found] if turn > 1 else []
        for way, each in times.items():
            low, middle, high = (1e6 * part for part in statistics.quantiles(each, n=4))
            if dist.get_rank() == 0:
                print(f"{what:22} {way:11} {middle:8.0f} µs [{low:.0f}, {high:.0f}]", flush=True)
    if dist.get_rank() == 0:
        print(dt.explain())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
