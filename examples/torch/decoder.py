"""Run decoder blocks of LLaMA's shapes on ranks: torchrun --nproc-per-node 2 examples/torch/decoder.py [--scale 4]

Each rank has a part of the attention's heads and of the hidden units (RMSNorm, attention with rotary positions,
SwiGLU). Prefill computes a prompt, decode one token a step from cached keys and values. The ranks add up the results
of two layers a block, by each of

    gloo        a product, then `torch.distributed.all_reduce` on a gloo group. DeepSpeed's AutoTP falls back to these
                calls on CPUs (`LinearAllreduce`).
    by name     the same calls on a group of backend "dovetail"
    tp_plan     the calls of Hugging Face's `tp_plan`: a DTensor of partial sums, redistributed to whole ones; on gloo
    by name     the same calls on a mesh of backend "dovetail"
    operator    `dovetail.torch.linear_all_reduce`

Neither DeepSpeed nor Transformers is imported: the layers below make their calls in their place. The program compares
all results, then times the variants in alternating rounds and prints medians, the longest of all ranks.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

import dovetail.torch as dt

WIDTH, HIDDEN, HEAD, LAYERS = 2048, 8192, 64, 16  # LLaMA 3.2 1B; every 4 query heads share a key
Adds = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """One decoder block with this rank's parts of the weights. `adds`: multiplies, and adds up over the ranks."""

    def __init__(self, width: int, hidden: int, ranks: int, dtype: torch.dtype) -> None:
        super().__init__()
        keys = width // 4
        shapes = {
            "query": (width // ranks, width),
            "key": (keys // ranks, width),
            "value": (keys // ranks, width),
            "joined": (width, width // ranks),
            "gate": (hidden // ranks, width),
            "up": (hidden // ranks, width),
            "down": (width, hidden // ranks),
        }
        for name, shape in shapes.items():
            made = torch.randn(shape) * shape[1] ** -0.5
            self.register_parameter(name, nn.Parameter(made.to(dtype), requires_grad=False))

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor], turns: torch.Tensor, adds: Adds) -> torch.Tensor:
        """Return the block's result of tokens x (tokens, width), which follow those in the cache."""
        y = rms_norm(x, x.shape[-1:])
        query, key, value = (linear(y, w).unflatten(-1, (-1, HEAD)) for w in (self.query, self.key, self.value))
        is_prompt = not cache
        now = [turned(key, turns).transpose(0, 1), value.transpose(0, 1)]
        cache[:] = now if is_prompt else [torch.cat(pair, 1) for pair in zip(cache, now, strict=True)]
        query = turned(query, turns).transpose(0, 1)
        seen = scaled_dot_product_attention(query, *cache, is_causal=is_prompt, enable_gqa=True)
        x = x + adds(seen.transpose(0, 1).flatten(1), self.joined)
        y = rms_norm(x, x.shape[-1:])
        return x + adds(silu(linear(y, self.gate)) * linear(y, self.up), self.down)


def turned(heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Return heads (tokens, heads, size), each pair of elements turned by its angle."""
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(heads.dtype)


def angles(tokens: int) -> torch.Tensor:
    """Return the rotary turns of positions, (tokens, size / 2), as complex numbers."""
    speeds = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    turn = torch.outer(torch.arange(tokens), speeds)
    return torch.polar(torch.ones_like(turn), turn)


def reduced_on(group: dist.ProcessGroup) -> Adds:
    """Return a product and an `all_reduce` on a group."""

    def adds(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = linear(x, weight)
        dist.all_reduce(out, group=group)
        return out

    return adds


def redistributed_on(group: dist.ProcessGroup) -> Adds:
    """Return a product whose partial sums are a DTensor on a group, redistributed."""
    mesh = DeviceMesh.from_group(group, "cpu")

    def adds(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        partial = DTensor.from_local(linear(x, weight), mesh, [Partial()], run_check=False)
        return partial.redistribute(placements=[Replicate()]).to_local()

    return adds


class Model:
    """Blocks, a prompt, and the state of decoding: the cache of each block after the prompt."""

    def __init__(self, args: argparse.Namespace, ranks: int) -> None:
        self.width, dtype = WIDTH // args.scale, getattr(torch, args.dtype)
        self.blocks = [Block(self.width, HIDDEN // args.scale, ranks, dtype) for _ in range(args.layers)]
        draw = torch.Generator().manual_seed(3)
        self.prompt = torch.randn(args.prompt, self.width, generator=draw).to(dtype)
        self.turns, self.tokens = angles(args.prompt + args.tokens), args.tokens

    def prefill(self, adds: Adds) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
        """Return the prompt's result, and the caches."""
        x, caches = self.prompt, [[] for _ in self.blocks]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache, self.turns[: len(x)], adds)
        return x, caches

    def decode(self, adds: Adds, last: torch.Tensor, caches: list[list[torch.Tensor]]) -> torch.Tensor:
        """Return the last of `tokens` further tokens. Each block's input is the token before, as it left the blocks."""
        caches, x, begin = [list(each) for each in caches], last[-1:], len(self.prompt)
        for step in range(begin, begin + self.tokens):
            for block, cache in zip(self.blocks, caches, strict=True):
                x = block(x, cache, self.turns[step : step + 1], adds)
            x = rms_norm(x, x.shape[-1:])
        return x


def seconds(call: Callable[[], object]) -> float:
    """Return the longest time of a call on all ranks."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    found = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def timed(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call by round, in an order that changes."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls) if turn % 2 else reversed(calls):
            found[name].append(seconds(calls[name]))
    return found


def check(model: Model, variants: dict[str, Adds]) -> float:
    """Return the largest difference of a variant's results from gloo's, relative to their largest element."""
    ends = {}
    for name, adds in variants.items():
        whole, caches = model.prefill(adds)
        ends[name] = torch.cat([whole, model.decode(adds, whole, caches)]).float()
    wanted = ends["gloo"]
    return max(((each - wanted).abs().max() / wanted.abs().max()).item() for each in ends.values())


def table(phase: str, found: dict[str, list[float]], per: int) -> None:
    """Print a line for each variant: milliseconds, and how much faster than gloo by round (quartiles)."""
    for name, times in found.items():
        ratios = [a / b for a, b in zip(found["gloo"], times, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        each_ms = 1e3 * statistics.median(times) / per
        print(f"{phase:8} {name:20} {each_ms:9.3f} ms   {middle:5.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=int, default=4, help="divides width 2048 and hidden 8192")
    parser.add_argument("--layers", type=int, default=4, help="blocks, of 16")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=16, help="tokens that are decoded")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--dtype", default="float32", help="bfloat16 where the CPU multiplies it fast")
    args = parser.parse_args()
    dist.init_process_group("dovetail")
    if WIDTH // args.scale % (4 * HEAD * dist.get_world_size()):
        sys.exit(f"--scale {args.scale}: every rank needs whole heads of {HEAD} for its quarter of keys and values")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model, gloo, ours = Model(args, ranks), dist.new_group(backend="gloo"), dist.group.WORLD
    variants = {
        "gloo": reduced_on(gloo),
        "by name": reduced_on(ours),
        "tp_plan": redistributed_on(gloo),
        "tp_plan by name": redistributed_on(ours),
        "operator": lambda x, weight: dt.linear_all_reduce(x, weight, group=ours),
    }
    with torch.inference_mode():
        with dt.warm_up():
            whole, caches = model.prefill(variants["operator"])
            model.decode(variants["operator"], whole, caches)
        error = check(model, variants)
        assert error < (0.05 if model.prompt.dtype == torch.bfloat16 else 1e-4), error
        prefills = timed({name: lambda a=adds: model.prefill(a) for name, adds in variants.items()}, args.rounds)
        decodes = timed({n: lambda a=adds: model.decode(a, whole, caches) for n, adds in variants.items()}, args.rounds)
    if rank == 0:
        shapes = f"{args.layers} blocks of width {model.width}, hidden {HIDDEN // args.scale}, {args.dtype}"
        print(f"{shapes}, {ranks} ranks; differences up to {error:.1e}\n")
        print("phase    variant                   median      times faster than gloo (quartiles)")
        table("prefill", prefills, 1)
        table("decode", decodes, args.tokens)
        print(f"\n{dt.explain(ours)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
