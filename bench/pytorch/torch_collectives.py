"""torch.distributed's collectives on backend "dovetail" beside gloo, alternating within one job.

    torchrun --nproc-per-node 2 bench/pytorch/torch_collectives.py [--bytes 8 65536 …] [--json FILE]

Every round makes each collective a few times by one backend, then by the other. Rank 0 prints medians of rounds in
microseconds a call, and gloo's over Dovetail's, that of the best rounds too; the JSON has quartiles and machine. The
last rows are steps of a net under DistributedDataParallel with buckets of these bytes.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import dovetail.torch  # noqa: F401  (registers backend "dovetail")

BYTES = [8, 512, 4096, 1 << 15, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24]
BUCKETS = [1 << 14, 1 << 16, 1 << 20]
ROUNDS, ROUND_S, MOST = 15, 4e-3, 200


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=BYTES)
    parser.add_argument("--buckets", type=int, nargs="*", default=BUCKETS)
    parser.add_argument("--calls", nargs="+", default=list(CALLS), choices=list(CALLS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ours = dist.new_group(backend="dovetail")
    groups = {"gloo": dist.group.WORLD, "dovetail": ours}
    rows = []
    for num_bytes in args.bytes:
        for name in args.calls:
            rows.append(row(name, num_bytes, {key: CALLS[name](num_bytes, group) for key, group in groups.items()}))
    for bucket in args.buckets:
        rows.append(row("ddp step", bucket, {key: ddp_step(bucket, group) for key, group in groups.items()}))
    if dist.get_rank() == 0 and args.json:
        args.json.write_text(json.dumps({"bench": "torch_collectives", **facts(), "rows": rows}, indent=1) + "\n")
    dist.destroy_process_group()


def row(name, num_bytes, calls):
    """Measure the calls of both backends in alternation; return and print their figures."""
    count = torch.tensor(ROUND_S / max(seconds(call, 3) for call in calls.values()))
    dist.broadcast(count, 0)
    times = max(1, min(MOST, int(count)))
    found = {key: [] for key in calls}
    for turn in range(ROUNDS):
        for key in sorted(calls, reverse=turn % 2 == 1):
            dist.barrier()
            found[key].append(seconds(calls[key], times))
    made = {key: [1e6 * each for each in statistics.quantiles(values, n=4)] for key, values in found.items()}
    best = {key: 1e6 * min(values) for key, values in found.items()}
    made |= {"call": name, "bytes": num_bytes, "times": times, "best": best}
    made |= {"ratio": made["gloo"][1] / made["dovetail"][1], "ratio_of_best": best["gloo"] / best["dovetail"]}
    if dist.get_rank() == 0:
        print("{call:22} {bytes:9} B".format(**made), end="")
        print(
            f"  gloo {made['gloo'][1]:9.1f} us  dovetail {made['dovetail'][1]:9.1f} us  {made['ratio']:6.2f} x,"
            f" best rounds {made['ratio_of_best']:6.2f} x",
            flush=True,
        )
    return made


def seconds(call, times):
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def all_reduce(num_bytes, group):
    return partial(dist.all_reduce, torch.zeros(num_bytes // 4), group=group)


def all_reduce_async(num_bytes, group):
    tensor = torch.zeros(num_bytes // 4)
    return lambda: dist.all_reduce(tensor, group=group, async_op=True).wait()


def all_gather(num_bytes, group):
    whole, ranks = torch.zeros(num_bytes // 4), dist.get_world_size()
    return partial(dist.all_gather_single, whole, whole[: len(whole) // ranks].clone(), group=group)


def reduce_scatter(num_bytes, group):
    whole, ranks = torch.zeros(num_bytes // 4), dist.get_world_size()
    return partial(dist.reduce_scatter_single, torch.zeros(len(whole) // ranks), whole, group=group)


def all_to_all(num_bytes, group):
    return partial(dist.all_to_all_single, torch.zeros(num_bytes // 4), torch.zeros(num_bytes // 4), group=group)


def send_and_back(num_bytes, group):
    tensor, rank = torch.zeros(num_bytes // 4), dist.get_rank()

    def call():
        for source in (0, 1):
            if rank < 2:
                (dist.send if rank == source else dist.recv)(tensor, 1 - rank, group=group)

    return call


def ddp_step(bucket, group):
    """Return a step of a net of twelve layers whose gradients are reduced in buckets of these bytes."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12)))
    model = torch.nn.parallel.DistributedDataParallel(net, process_group=group, bucket_cap_mb=bucket / (1 << 20))
    inputs = torch.rand(64, 256)

    def step():
        model(inputs).square().mean().backward()

    step()
    return step


CALLS = {
    "all_reduce": all_reduce,
    "all_reduce, async_op": all_reduce_async,
    "all_gather_single": all_gather,
    "reduce_scatter_single": reduce_scatter,
    "all_to_all_single": all_to_all,
    "send and back": send_and_back,
}


def facts():
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "ranks": dist.get_world_size(),
        "rounds": ROUNDS,
        "torch": torch.__version__,
        "cpu": next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), ""),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "commit": commit.stdout.strip(),
    }


if __name__ == "__main__":
    main()
