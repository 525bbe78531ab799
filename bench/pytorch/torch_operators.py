"""The linear layers of dovetail.torch beside the same calls by hand, alternating within one job.

    torchrun --nproc-per-node 2 bench/pytorch/torch_operators.py [--rows 256 1024 …] [--dtypes float32 bfloat16]
                          [--json FILE]

Each row is one operator with given shapes, forward, or a step of a tensor-parallel MLP, forward and backward. Beside
the planned operator run: a product and a collective one after the other, on gloo and on Dovetail's group; and a rival
that cuts the rows into chunks and begins gloo's collective of each while it multiplies the next (the best of 2, 4 and
8 chunks). Rank 0 prints medians of rounds, the plan, and times of the others over the operator's: above 1 the operator
is faster. The ideal is the longer of the product and of the group's collective, each alone; the share of the ideal
gain is what the operator saves over serial, of what serial takes beyond the ideal. On several hosts set
GLOO_SOCKET_IFNAME, and start it with mpiexec. `--overhead` compares the operators on tiny tensors with the same calls
on the same group.
"""

import argparse
import json
import os
import platform
import statistics
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import gelu, linear

import dovetail.torch as dt

ROUNDS, CHUNKS, TINY_CALLS = 15, (2, 4, 8), 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--width", type=int, default=1024, help="k and n of the whole product")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--calls", nargs="+", default=list(CALLS), choices=list(CALLS))
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("dovetail")
    groups = {"gloo": dist.new_group(backend="gloo"), "dovetail": dist.group.WORLD}
    rows = [overhead(name, groups["dovetail"]) for name in TINY] if args.overhead else []
    for dtype in () if args.overhead else args.dtypes:
        for count in args.rows:
            rows += [row(name, count, args.width, getattr(torch, dtype), groups) for name in args.calls]
    if dist.get_rank() == 0 and args.json:
        args.json.write_text(json.dumps({"bench": "torch_operators", **facts(), "rows": rows}, indent=1) + "\n")
    dist.destroy_process_group()


def row(name, count, width, dtype, groups):
    """Measure one operator's contestants in alternation; return and print their figures."""
    torch.manual_seed(dist.get_rank())
    calls = CALLS[name](count, width, dtype, groups)
    with dt.warm_up():
        calls["operator"]()
    found = measured(calls)
    middle = {key: statistics.median(values) for key, values in found.items()}
    rival = min((key for key in middle if key.startswith("rival")), key=middle.get, default=None)
    against = {key: ratio(found[key], found["operator"]) for key in ("gloo", "serial", rival) if key in found}
    made = {"call": name, "rows": count, "width": width, "dtype": str(dtype).split(".")[1], "against": against}
    made |= {"seconds": {key: statistics.quantiles(values, n=4) for key, values in found.items()}}
    said = [line.strip() for line in dt.explain(groups["dovetail"]).split("\n")]
    made["plan"] = next(line for line in reversed(said) if line.startswith("plan: "))
    made["share"] = share(middle)
    if dist.get_rank() == 0:
        shown = "  ".join(
            f"{key} {1e3 * each:8.2f} ms" for key, each in middle.items() if key in (*against, "operator")
        )
        ratios = "  ".join(f"{key} {each[1]:5.2f} ×" for key, each in against.items())
        if made["share"] is not None:
            shown += f"  product {1e3 * middle['product']:.2f}, collective {1e3 * middle['collective']:.2f} ms alone"
            ratios += f", {made['share']:.0%} of the ideal gain"
        print(
            f"{name:22} {count:5} rows {made['dtype']:9} {shown}  over the operator: {ratios}, {made['plan']}",
            flush=True,
        )
    return made


def share(middle):
    """Return the share of the ideal gain, of medians; None if the two parts were not measured, or gain nothing."""
    if "product" not in middle:
        return None
    ideal = middle["serial"] - max(middle["product"], middle["collective"])
    return (middle["serial"] - middle["operator"]) / ideal if ideal > 0 else None


def measured(calls, times=1):
    """Return the seconds of each call by round, the largest of all ranks."""
    draw = torch.Generator().manual_seed(0)  # the same order on all ranks
    found = torch.zeros(len(calls), ROUNDS, dtype=torch.float64)
    for call in calls.values():
        call()
    for turn in range(ROUNDS):
        order = torch.randperm(len(calls), generator=draw).tolist()
        for place, call in [(place, list(calls.values())[place]) for place in order]:
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(times):
                call()
            found[place, turn] = (time.perf_counter() - begin) / times
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return dict(zip(calls, found.tolist(), strict=True))


def ratio(others, own):
    """Return the quartiles of the ratio by round."""
    return statistics.quantiles([a / b for a, b in zip(others, own, strict=True)], n=4)


def all_reduce_calls(count, width, dtype, groups):
    x, w = torch.rand(count, width // dist.get_world_size(), dtype=dtype), None
    w = torch.rand(width, x.shape[1], dtype=dtype)

    def serial(group):
        out = linear(x, w)
        dist.all_reduce(out, group=group)
        return out

    def chunked(chunks):
        out, works = torch.empty(count, width, dtype=dtype), []
        for rows, into in zip(x.chunk(chunks), out.chunk(chunks), strict=True):
            torch.mm(rows, w.t(), out=into)
            works.append(dist.all_reduce(into, group=groups["gloo"], async_op=True))
        for work in works:
            work.wait()

    parts = partial(linear, x, w), partial(dist.all_reduce, torch.empty(count, width, dtype=dtype))
    return contest(serial, chunked, partial(dt.linear_all_reduce, x, w, group=groups["dovetail"]), groups, parts)


def reduce_scatter_calls(count, width, dtype, groups):
    ranks = dist.get_world_size()
    x, w = torch.rand(count, width // ranks, dtype=dtype), torch.rand(width, width // ranks, dtype=dtype)

    def serial(group):
        out = torch.empty(count // ranks, width, dtype=dtype)
        dist.reduce_scatter_single(out, linear(x, w), group=group)
        return out

    def chunked(chunks):
        out, works, own = torch.empty(count // ranks, width, dtype=dtype), [], count // ranks
        for rows in range(0, own, own // chunks):
            part = slice(rows, rows + own // chunks)
            made = torch.cat([x[rank * own :][part] for rank in range(ranks)]).mm(w.t())
            works.append(dist.reduce_scatter_single(out[part], made, group=groups["gloo"], async_op=True))
        for work in works:
            work.wait()

    own, whole = torch.empty(count // ranks, width, dtype=dtype), torch.empty(count, width, dtype=dtype)
    parts = partial(linear, x, w), partial(dist.reduce_scatter_single, own, whole)
    return contest(serial, chunked, partial(dt.linear_reduce_scatter, x, w, group=groups["dovetail"]), groups, parts)


def all_gather_calls(count, width, dtype, groups):
    ranks = dist.get_world_size()
    x, w = torch.rand(count // ranks, width, dtype=dtype), torch.rand(width // ranks, width, dtype=dtype)

    def serial(group):
        whole = torch.empty(count, width, dtype=dtype)
        dist.all_gather_single(whole, x, group=group)
        return linear(whole, w)

    def chunked(chunks):
        out, own = torch.empty(count, width // ranks, dtype=dtype), count // ranks
        parts = [slice(rows, rows + own // chunks) for rows in range(0, own, own // chunks)]
        into = [torch.empty(ranks * own // chunks, width, dtype=dtype) for _ in parts]
        works = [
            dist.all_gather_single(each, x[part], group=groups["gloo"], async_op=True)
            for each, part in zip(into, parts, strict=True)
        ]
        for each, part, work in zip(into, parts, works, strict=True):
            work.wait()
            for rank, rows in enumerate(each.chunk(ranks)):
                torch.mm(rows, w.t(), out=out[rank * own :][part])

    whole = torch.empty(count, width, dtype=dtype)
    parts = partial(linear, whole, w), partial(dist.all_gather_single, whole, x)
    return contest(serial, chunked, partial(dt.all_gather_linear, x, w, group=groups["dovetail"]), groups, parts)


def contest(serial, chunked, operator, groups, parts):
    calls = {"gloo": partial(serial, groups["gloo"]), "serial": partial(serial, groups["dovetail"])}
    calls |= dict(zip(("product", "collective"), parts, strict=True))
    return calls | {f"rival of {chunks}": partial(chunked, chunks) for chunks in CHUNKS} | {"operator": operator}


class Gathered(torch.autograd.Function):
    """An all-gather by hand; its backward is a reduce-scatter."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        whole = torch.empty(x.shape[0] * group.size(), x.shape[1], dtype=x.dtype)
        dist.all_gather_single(whole, x, group=group)
        return whole

    @staticmethod
    def backward(ctx, grad):
        own = torch.empty(grad.shape[0] // ctx.group.size(), grad.shape[1], dtype=grad.dtype)
        dist.reduce_scatter_single(own, grad.contiguous(), group=ctx.group)
        return own, None


class Scattered(torch.autograd.Function):
    """A reduce-scatter by hand; its backward is an all-gather."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        own = torch.empty(x.shape[0] // group.size(), x.shape[1], dtype=x.dtype)
        dist.reduce_scatter_single(own, x, group=group)
        return own

    @staticmethod
    def backward(ctx, grad):
        whole = torch.empty(grad.shape[0] * ctx.group.size(), grad.shape[1], dtype=grad.dtype)
        dist.all_gather_single(whole, grad.contiguous(), group=ctx.group)
        return whole, None


def step_calls(count, width, dtype, groups):
    """A step of an MLP of `width`, 2 · width and `width` units on a sequence that is cut over the ranks."""
    ranks = dist.get_world_size()
    x = torch.rand(count // ranks, width, dtype=dtype, requires_grad=True)
    into = torch.rand(2 * width // ranks, width, dtype=dtype, requires_grad=True)
    out = torch.rand(width, 2 * width // ranks, dtype=dtype, requires_grad=True)

    def by_hand(group):
        Scattered.apply(linear(gelu(linear(Gathered.apply(x, group), into)), out), group).sum().backward()

    def operator():
        hidden = dt.all_gather_linear(x, into, group=groups["dovetail"])
        dt.linear_reduce_scatter(gelu(hidden), out, group=groups["dovetail"]).sum().backward()

    calls = {"gloo": partial(by_hand, groups["gloo"]), "serial": partial(by_hand, groups["dovetail"])}
    return calls | {"operator": operator}


CALLS = {
    "linear_all_reduce": all_reduce_calls,
    "all_gather_linear": all_gather_calls,
    "linear_reduce_scatter": reduce_scatter_calls,
    "MLP step": step_calls,
}


class Reduced(torch.autograd.Function):
    """A row-parallel layer by hand."""

    @staticmethod
    def forward(ctx, x, w, group):
        ctx.save_for_backward(x, w)
        out = linear(x, w)
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w, grad.t() @ x, None


class Column(torch.autograd.Function):
    """A column-parallel layer by hand."""

    @staticmethod
    def forward(ctx, x, w, group):
        whole = torch.empty(x.shape[0] * group.size(), x.shape[1])
        dist.all_gather_single(whole, x, group=group)
        ctx.group = group
        ctx.save_for_backward(whole, w)
        return linear(whole, w)

    @staticmethod
    def backward(ctx, grad):
        whole, w = ctx.saved_tensors
        own = torch.empty(whole.shape[0] // ctx.group.size(), whole.shape[1])
        dist.reduce_scatter_single(own, grad @ w, group=ctx.group)
        return own, grad.t() @ whole, None


def tiny(has_gradients):
    return [torch.rand(8, 32, requires_grad=has_gradients), torch.rand(16, 32, requires_grad=has_gradients)]


def tiny_all_reduce(group):
    x, w = tiny(False)

    def by_hand():
        out = linear(x, w)
        dist.all_reduce(out, group=group)

    return by_hand, partial(dt.linear_all_reduce, x, w, group=group)


def tiny_reduce_scatter(group):
    x, w = tiny(False)

    def by_hand():
        out = torch.empty(8 // group.size(), 16)
        dist.reduce_scatter_single(out, linear(x, w), group=group)

    return by_hand, partial(dt.linear_reduce_scatter, x, w, group=group)


def tiny_all_gather(group):
    x, w = tiny(False)

    def by_hand():
        whole = torch.empty(8 * group.size(), 32)
        dist.all_gather_single(whole, x, group=group)
        linear(whole, w)

    return by_hand, partial(dt.all_gather_linear, x, w, group=group)


def tiny_step(by_hand, operator, rows):
    def calls(group):
        x, w = tiny(True)
        grad = torch.ones(rows(group), 16)

        def step(layer):
            layer(x, w).backward(grad)
            x.grad = w.grad = None

        return partial(step, lambda a, b: by_hand.apply(a, b, group)), partial(step, partial(operator, group=group))

    return calls


TINY = {
    "linear_all_reduce": tiny_all_reduce,
    "all_gather_linear": tiny_all_gather,
    "linear_reduce_scatter": tiny_reduce_scatter,
    "linear_all_reduce and its backward": tiny_step(Reduced, dt.linear_all_reduce, lambda group: 8),
    "all_gather_linear and its backward": tiny_step(Column, dt.all_gather_linear, lambda group: 8 * group.size()),
}


def overhead(name, group):
    """Measure an operator on tiny tensors beside the same calls by hand; return and print the difference."""
    by_hand, operator = TINY[name](group)
    with dt.warm_up():
        operator()
    found = measured({"by hand": by_hand, "operator": operator}, TINY_CALLS)
    made = {key: statistics.median(values) for key, values in found.items()}
    made |= {"call": name, "more_s": made["operator"] - made["by hand"]}
    if dist.get_rank() == 0:
        figures = f"by hand {1e6 * made['by hand']:6.1f} µs, operator {1e6 * made['operator']:6.1f} µs"
        print(f"{name:36} {figures}, {1e6 * made['more_s']:5.1f} µs more", flush=True)
    return made


def facts():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "ranks": dist.get_world_size(),
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
    }


if __name__ == "__main__":
    main()
