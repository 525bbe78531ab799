"""How much of DDP's communication is hidden behind its backward pass, on backend "dovetail" beside gloo.

    torchrun --nproc-per-node 2 bench/pytorch/torch_overlap.py [--buckets BYTES …] [--batch ROWS] [--json FILE]

For each size of buckets and each backend, alternating within one job: seconds of forward and backward without
communication, of the buckets' all_reduces alone, and of a step with both. The hidden share is
(compute + communication - step) / min(compute, communication): 1 where the shorter one costs nothing, 0 where they take
turns.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch_collectives import facts

import dovetail.torch  # noqa: F401  (registers backend "dovetail")

WIDTH, LAYERS, ROUNDS = 512, 8, 15


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--buckets", type=int, nargs="+", default=[1 << 16, 1 << 20, 1 << 22])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "dovetail": dist.new_group(backend="dovetail")}
    rows = []
    for bucket in args.buckets:
        calls = {key: calls_of(bucket, args.batch, group) for key, group in groups.items()}
        found = {key: {name: [] for name in made} for key, made in calls.items()}
        for turn in range(ROUNDS):
            for key in sorted(calls, reverse=turn % 2 == 1):
                for name, call in calls[key].items():
                    dist.barrier()
                    found[key][name].append(seconds(call))
        rows += [row(bucket, key, its) for key, its in found.items()]
    if dist.get_rank() == 0 and args.json:
        args.json.write_text(json.dumps({"bench": "torch_overlap", **facts(), "rows": rows}, indent=1) + "\n")
    dist.destroy_process_group()


def calls_of(bucket, batch, group):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    model = torch.nn.parallel.DistributedDataParallel(net, process_group=group, bucket_cap_mb=bucket / (1 << 20))
    inputs = torch.rand(batch, WIDTH)
    num_bytes = sum(each.nbytes for each in net.parameters())
    largest = max(bucket, 4 * WIDTH * WIDTH)  # a bucket holds one parameter at least
    parts = [torch.zeros(min(largest, num_bytes - at) // 4) for at in range(0, num_bytes, largest)]

    def step():
        model(inputs).square().mean().backward()

    def compute():
        with model.no_sync():
            step()

    def communicate():
        for part in parts:
            dist.all_reduce(part, group=group)

    for call in (step, step, compute, communicate):
        call()
    return {"compute": compute, "communicate": communicate, "step": step}


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def row(bucket, backend, found):
    middle = {name: statistics.median(values) for name, values in found.items()}
    alone = middle["compute"], middle["communicate"]
    made = {"bucket": bucket, "backend": backend, **{f"{name}_s": value for name, value in middle.items()}}
    made["hidden"] = (sum(alone) - middle["step"]) / min(alone)
    if dist.get_rank() == 0:
        print(
            f"buckets of {bucket:8} B  {backend:9} compute {1e3 * alone[0]:7.2f} ms  communication"
            f" {1e3 * alone[1]:7.2f} ms  step {1e3 * middle['step']:7.2f} ms  hidden {made['hidden']:5.2f}",
            flush=True,
        )
    return made


if __name__ == "__main__":
    main()
