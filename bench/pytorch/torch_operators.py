"""The linear layers of dovetail.torch beside the same calls by hand, alternating within one job.

    torchrun --nproc-per-node 2 bench/pytorch/torch_operators.py [--rows 256 1024 …] [--dtypes float32 bfloat16]
                          [--json FILE]

Each row is one operator with given shapes, its forward pass or a step (forward and backward); a step of a
tensor-parallel MLP; or the prefill of 8 decoder blocks (examples/torch/decoder.py). Beside the planned operator run:
products and collectives one after the other, on gloo and on Dovetail's group; and a rival that cuts the rows into
chunks and begins gloo's collective of each while it multiplies the next (the best of 2, 4 and 8 chunks), in backward
too. Rank 0 prints medians of rounds, the plan, and times of the others over the operator's: above 1 the operator is
faster.

The ideal is the sum, over the phases of a call, of the longer of computation and collective, each alone. The share of
the ideal gain is what the operator saves over serial, of what serial takes beyond the ideal. *at once* is the same
share of a collective beside computation that needs nothing of it, on Dovetail's group and on gloo (against gloo's
serial and ideal): what is missing there, the machine takes, or the transport, and not the plan. *predicted* is serial's
time less what the plans were predicted to save; *apart*: what would be predicted if products and messages did not
slow each other down.

On several hosts set GLOO_SOCKET_IFNAME. `--overhead` compares the operators on tiny tensors with the same calls on
the same group.
"""

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch_contests import CALLS
from torch_overhead import TINY

import dovetail.torch as dt
from dovetail.torch.linear import products
from dovetail.torch.linear.plans import tables

ROUNDS, TINY_ROUNDS, TINY_CALLS = 15, 41, 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--width", type=int, default=1024, help="k and n of the whole product")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--calls", nargs="+", default=list(CALLS), choices=list(CALLS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("dovetail")
    groups = {"gloo": dist.new_group(backend="gloo"), "dovetail": dist.group.WORLD}
    rows = [overhead(name, groups["dovetail"]) for name in TINY] if args.overhead else []
    for dtype in () if args.overhead else args.dtypes:
        for count in args.rows:
            for name in args.calls:
                rows.append(row(name, count, args.width, getattr(torch, dtype), groups, args.rounds))
                write(args, rows)
    write(args, rows)
    dist.destroy_process_group()


def write(args, rows):
    if dist.get_rank() == 0 and args.json:
        facts = {"bench": "torch_operators", "rounds": args.rounds, **machine()}
        args.json.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def row(name, count, width, dtype, groups, rounds):
    """Measure one operator's contestants in alternation; return and print their figures."""
    torch.manual_seed(dist.get_rank())
    calls, phases = CALLS[name](count, width, dtype, groups)
    with dt.warm_up(again=True):
        calls["operator"]()
    plans, saved_s, apart_s = saved_by_plans(calls["operator"], groups["dovetail"])
    found = measured(calls | parts(phases, groups), rounds)
    middle = {key: statistics.median(values) for key, values in found.items()}
    rival = min((key for key in calls if key.startswith("rival")), key=middle.get)
    made = {"call": name, "rows": count, "width": width, "dtype": str(dtype).split(".")[1]}
    made["against"] = {key: ratio(found[key], found["operator"]) for key in ("gloo", "serial", rival)}
    made["seconds"] = {key: statistics.quantiles(values, n=4) for key, values in found.items()}
    made["phases"] = [phase.times for phase in phases]
    made["plans"] = plans
    made["predicted_s"], made["predicted_apart_s"] = middle["serial"] - saved_s, middle["serial"] - apart_s
    made |= shares(middle, phases)
    if dist.get_rank() == 0:
        show(made, middle)
    return made


def show(made, middle):
    shown = "  ".join(f"{key} {1e3 * middle[key]:.1f}" for key in (*made["against"], "operator"))
    ratios = "  ".join(f"{key} {each[1]:.2f} ×" for key, each in made["against"].items())
    alone = ", ".join(f"{1e3 * each:.1f}" for key, each in middle.items() if " alone" in key)
    print(
        "{call:26} {rows:5} rows {dtype:9}".format(**made),
        f"ms: {shown}  predicted {1e3 * made['predicted_s']:.1f}, apart {1e3 * made['predicted_apart_s']:.1f}",
    )
    print(f"    over the operator: {ratios}; {', '.join(each['words'] for each in made['plans'])}; alone {alone} ms")
    texts = ((name, f"{made[name]:.0%}" if made[name] is not None else "-") for name in SHARES)
    print("    of the ideal gain: " + ", ".join(f"{name} {text}" for name, text in texts), flush=True)


def parts(phases, groups):
    """Return calls that make the computation and the collective of each phase, alone and at once."""
    found = {}
    for place, phase in enumerate(phases):
        found[f"compute {place} alone"] = phase.compute
        for name, group in groups.items() if phase.begin else ():
            found[f"{name} {place} alone"] = lambda begin=phase.begin, group=group: begin(group).wait()
            found[f"{name} {place} at once"] = lambda phase=phase, group=group: at_once(phase, group)
    return found


def at_once(phase, group):
    work = phase.begin(group)
    phase.compute()
    work.wait()


SHARES = ("share", "at once", "gloo at once", "rival")


def shares(middle, phases):
    """Return shares of the ideal gain, of medians: the operator's, the phases' at once, and the best rival's."""
    serial, ideal, bound = middle["serial"], 0.0, 0.0
    ideal, bound = (whole(middle, phases, "dovetail", how) for how in (longer, together))
    gloo_ideal, gloo_bound = (whole(middle, phases, "gloo", how) for how in (longer, together))
    rival = min(each for key, each in middle.items() if key.startswith("rival"))
    of_rival = part(middle["gloo"], rival, gloo_ideal)
    found = (
        part(serial, middle["operator"], ideal),
        part(serial, bound, ideal),
        part(middle["gloo"], gloo_bound, gloo_ideal),
    )
    return dict(zip(SHARES, (*found, of_rival), strict=True)) | {"ideal_s": ideal}


def part(serial, found, ideal):
    return (serial - found) / (serial - ideal) if serial > ideal else None


def whole(middle, phases, name, how):
    """Return the seconds of all phases. `how`: of one phase."""
    return sum(phase.times * how(middle, place, name if phase.begin else None) for place, phase in enumerate(phases))


def longer(middle, place, name):
    return max(middle[f"compute {place} alone"], middle[f"{name} {place} alone"] if name else 0.0)


def together(middle, place, name):
    return middle[f"{name} {place} at once"] if name else middle[f"compute {place} alone"]


def saved_by_plans(call, group):
    """Return the plans of one run of a call, and the seconds that they were predicted to save: with what products and
    messages cost each other, and without."""
    before = {key: each.calls for key, each in tables[group].items()}
    call()
    used = [(each, each.calls - before[key]) for key, each in tables[group].items() if each.calls > before[key]]
    plans = [{"words": each.words, "times": times, **each.plan.to_json()} for each, times in used]
    overlapped = [(each.plan, times) for each, times in used if each.words != "serial"]
    saved = (sum(t * (p.serial_s - getattr(p, name)) for p, t in overlapped) for name in ("predicted_s", "apart_s"))
    return plans, *saved


def measured(calls, rounds):
    """Return the seconds of each call by round, the largest of all ranks."""
    draw = torch.Generator().manual_seed(0)  # the same order on all ranks
    found = torch.zeros(len(calls), rounds, dtype=torch.float64)
    for call in calls.values():
        call()
    for turn in range(rounds):
        order = torch.randperm(len(calls), generator=draw).tolist()
        for place, call in [(place, list(calls.values())[place]) for place in order]:
            dist.barrier()
            begin = time.perf_counter()
            call()
            found[place, turn] = time.perf_counter() - begin
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return dict(zip(calls, found.tolist(), strict=True))


def ratio(others, own):
    """Return the quartiles of the ratio by round."""
    return statistics.quantiles([a / b for a, b in zip(others, own, strict=True)], n=4)


def overhead(name, group):
    """Measure an operator on tiny tensors beside the same calls by hand; return and print the difference."""
    by_hand, operator = TINY[name](group)
    with dt.warm_up():
        operator()
    calls = {"by hand": repeated(by_hand), "in Python": in_python(repeated(operator)), "operator": repeated(operator)}
    found = {key: [each / TINY_CALLS for each in seconds] for key, seconds in measured(calls, TINY_ROUNDS).items()}
    made = {key: statistics.median(values) for key, values in found.items()} | {"call": name}
    for key in ("in Python", "operator"):
        more = [b - a for a, b in zip(found["by hand"], found[key], strict=True)]
        made[f"quartiles_of_more_s, {key}"] = statistics.quantiles(more, n=4)
    if dist.get_rank() == 0:
        figures = ", ".join(f"{key} {1e6 * made[key]:6.1f} µs" for key in calls)
        lower, more, upper = (1e6 * each for each in made["quartiles_of_more_s, operator"])
        print(f"{name:36} {figures}; {more:5.1f} ({lower:.1f} to {upper:.1f}) µs more", flush=True)
    return made


def repeated(call):
    def calls():
        for _ in range(TINY_CALLS):
            call()

    return calls


def in_python(calls):
    """Make calls without native code: the reference that it equals."""

    def reference():
        with mock.patch.object(products, "_native", return_value=None):
            calls()

    return reference


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "mpiexec"
    return {
        "ranks": dist.get_world_size(),
        "ranks_are": type(dist.group.WORLD._ranks).__name__,
        "launcher": launcher,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
    }


if __name__ == "__main__":
    main()
