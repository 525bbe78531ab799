"""What a call of torch.distributed costs by the form of the process group: in Python, native, gloo's, and without one.

    torchrun --nproc-per-node 2 bench/pytorch/torch_forms.py [--bytes 8 1024 …] [--json FILE]

Each round makes all_reduce a few times by each form: `gloo`; `python` and `native`, Dovetail's two; `direct`, the
transport's own call without torch, from C++; on one rank `fake`, torch's C++ Backend that moves nothing. Rank 0 prints
medians in microseconds, and those of the best rounds. `async` rows wait at once for a call with `async_op=True`.
"""

import argparse
import importlib
import json
import statistics
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch_collectives import ROUND_S, ROUNDS, facts, seconds

from dovetail.torch import backend
from dovetail.torch.calls import ALL_REDUCE
from dovetail.torch.tensors import REDUCTIONS

BYTES = [8, 1024, 1 << 16, 1 << 20]
MOST = 500


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=BYTES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "native": dist.new_group(backend="dovetail")}
    backend.native_group = lambda: None
    groups["python"] = dist.new_group(backend="dovetail")
    if dist.get_world_size() == 1:
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers backend "fake"
        groups["fake"] = dist.new_group(backend="fake")
    assert not isinstance(groups["native"], backend.PythonGroup), "there is no C++ compiler"
    rows = [row(num_bytes, groups, way, args.rounds) for num_bytes in args.bytes for way in ("now", "async")]
    if dist.get_rank() == 0 and args.json:
        args.json.write_text(json.dumps({"bench": "torch_forms", **facts(), "rows": rows}, indent=1) + "\n")
    dist.destroy_process_group()


def row(num_bytes, groups, way, rounds):
    tensors = {key: torch.zeros(num_bytes // 4) for key in (*groups, "direct")}
    calls = {key: partial(CALLS[way], tensors[key], group) for key, group in groups.items()}
    count = torch.tensor(ROUND_S / max(seconds(call, 3) for call in calls.values()))
    dist.broadcast(count, 0)
    times = max(1, min(MOST, int(count)))
    found = {key: [] for key in (*calls, *(["direct"] if way == "now" else []))}
    for turn in range(rounds):
        for key in sorted(found, reverse=turn % 2 == 1):
            dist.barrier()
            took = direct(tensors[key], groups["native"], times) if key == "direct" else seconds(calls[key], times)
            found[key].append(1e6 * took)
    made = {"bytes": num_bytes, "way": way, "times": times}
    made |= {"us": {key: statistics.quantiles(each, n=4) for key, each in found.items()}}
    made |= {"best_us": {key: min(each) for key, each in found.items()}}
    if dist.get_rank() == 0:
        texts = [f"{key} {made['us'][key][1]:9.2f} (best {made['best_us'][key]:8.2f})" for key in found]
        print(f"{num_bytes:8} B {way:5}  " + "  ".join(texts), flush=True)
    return made


def now(tensor, group):
    dist.all_reduce(tensor, group=group)


def later(tensor, group):
    dist.all_reduce(tensor, group=group, async_op=True).wait()


def direct(tensor, group, times):
    """Return the seconds of one call of the transport, made from C++."""
    dtype, op = REDUCTIONS[torch.float32, dist.ReduceOp.SUM]
    words = (ALL_REDUCE, tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), dtype, op, 0, tensor.nbytes, [], b"")
    return group._calls.made.bound.timed(*words, times)


CALLS = {"now": now, "async": later}

if __name__ == "__main__":
    main()
