"""What torch_operators.py compares: layers of dovetail.torch, the same calls by hand, and rivals in chunks.

A contest is a Contest: contestants by name, and the phases that the ideal is made of.
"""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.functional import gelu, linear

import dovetail.torch as dt

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "torch"))
import decoder

CHUNKS, LAYERS = (2, 4, 8), 8


class Phase(NamedTuple):
    """Computation that the ideal runs at once with a collective, `times` times. `begin(group)` begins the collective
    and returns its work; None: there is none."""

    compute: Any
    begin: Any = None
    times: int = 1


class Contest(NamedTuple):
    calls: dict
    phases: list


def contest(by_hand, rival, operator, groups, phases):
    calls = {"gloo": partial(by_hand, groups["gloo"]), "serial": partial(by_hand, groups["dovetail"])}
    calls |= {f"rival of {chunks}": partial(rival, chunks) for chunks in CHUNKS}
    return Contest(calls | {"operator": operator}, phases)


def begins_all_reduce(tensor):
    return lambda group: dist.all_reduce(tensor, group=group, async_op=True)


def begins_scatter(own, whole):
    return lambda group: dist.reduce_scatter_single(own, whole, group=group, async_op=True)


def begins_gather(whole, own):
    return lambda group: dist.all_gather_single(whole, own, group=group, async_op=True)


# Forward, in chunks whose collectives gloo makes while the next one is multiplied


def reduced_chunks(x, w, chunks, group):
    out, works = torch.empty(len(x), len(w), dtype=x.dtype), []
    for rows, into in zip(x.chunk(chunks), out.chunk(chunks), strict=True):
        torch.mm(rows, w.t(), out=into)
        works.append(dist.all_reduce(into, group=group, async_op=True))
    waited(works)
    return out


def scattered_chunks(x, w, chunks, group, meanwhile=lambda: None):
    ranks = group.size()
    own = len(x) // ranks
    out, works, kept = torch.empty(own, len(w), dtype=x.dtype), [], []
    for part in slices(own, chunks):
        kept.append(torch.cat([x[rank * own :][part] for rank in range(ranks)]).mm(w.t()))
        works.append(dist.reduce_scatter_single(out[part], kept[-1], group=group, async_op=True))
    found = meanwhile()
    waited(works)
    return out, found


def gathered_chunks(x, w, chunks, group, whole=None):
    """`whole`: also gathers the input there."""
    ranks, own = group.size(), len(x)
    out, parts = torch.empty(own * ranks, len(w), dtype=x.dtype), slices(own, chunks)
    into = [torch.empty(ranks * own // chunks, x.shape[1], dtype=x.dtype) for _ in parts]
    works = [
        dist.all_gather_single(each, x[part], group=group, async_op=True)
        for each, part in zip(into, parts, strict=True)
    ]
    for each, part, work in zip(into, parts, works, strict=True):
        work.wait()
        for rank, rows in enumerate(each.chunk(ranks)):
            torch.mm(rows, w.t(), out=out[rank * own :][part])
            if whole is not None:
                whole[rank * own :][part].copy_(rows)
    return out


def slices(length, chunks):
    return [slice(begin, begin + length // chunks) for begin in range(0, length, length // chunks)]


def waited(works):
    for work in works:
        work.wait()


# Layers by hand with gradients. `chunks` 0: one collective, waited for at once


class Reduced(torch.autograd.Function):
    """A row-parallel layer. Its backward moves nothing."""

    @staticmethod
    def forward(ctx, x, w, group, chunks):
        ctx.save_for_backward(x, w)
        if chunks:
            return reduced_chunks(x, w, chunks, group)
        out = linear(x, w)
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w, grad.t() @ x, None, None


class Column(torch.autograd.Function):
    """A column-parallel layer of a sequence that is cut over the ranks; its backward is a reduce-scatter."""

    @staticmethod
    def forward(ctx, x, w, group, chunks):
        ctx.about = group, chunks
        whole = x.new_empty((len(x) * group.size(), x.shape[1]))
        ctx.save_for_backward(whole, w)
        if chunks:
            return gathered_chunks(x, w, chunks, group, whole)
        dist.all_gather_single(whole, x, group=group)
        return linear(whole, w)

    @staticmethod
    def backward(ctx, grad):
        (whole, w), (group, chunks) = ctx.saved_tensors, ctx.about
        if chunks:
            own, of_weight = scattered_chunks(grad, w.t(), chunks, group, lambda: grad.t() @ whole)
            return own, of_weight, None, None
        own = whole.new_empty((len(whole) // group.size(), whole.shape[1]))
        dist.reduce_scatter_single(own, grad @ w, group=group)
        return own, grad.t() @ whole, None, None


class Row(torch.autograd.Function):
    """A row-parallel layer whose result is cut over the ranks; its backward is an all-gather."""

    @staticmethod
    def forward(ctx, x, w, group, chunks):
        ctx.about = group, chunks
        ctx.save_for_backward(x, w)
        if chunks:
            return scattered_chunks(x, w, chunks, group)[0]
        own = x.new_empty((len(x) // group.size(), len(w)))
        dist.reduce_scatter_single(own, linear(x, w), group=group)
        return own

    @staticmethod
    def backward(ctx, grad):
        (x, w), (group, chunks) = ctx.saved_tensors, ctx.about
        whole = grad.new_empty((len(x), grad.shape[1]))
        if chunks:
            return gathered_chunks(grad, w.t(), chunks, group, whole), whole.t() @ x, None, None
        dist.all_gather_single(whole, grad.contiguous(), group=group)
        return whole @ w, whole.t() @ x, None, None


# The layers of these shapes: `count` tokens, weights of `width` × `width` in all


def row_parallel(count, width, dtype, requires_grad=False):
    ranks = dist.get_world_size()
    x = torch.rand(count, width // ranks, dtype=dtype, requires_grad=requires_grad)
    return x, torch.rand(width, width // ranks, dtype=dtype, requires_grad=requires_grad)


def column_parallel(count, width, dtype, requires_grad=False):
    ranks = dist.get_world_size()
    x = torch.rand(count // ranks, width, dtype=dtype, requires_grad=requires_grad)
    return x, torch.rand(width // ranks, width, dtype=dtype, requires_grad=requires_grad)


def forward(layer, shapes, chunked, operator, phases):
    """Return what makes the contest of a layer's forward pass."""

    def calls(count, width, dtype, groups):
        x, w = shapes(count, width, dtype)

        def by_hand(group):
            with torch.no_grad():
                return layer.apply(x, w, group, 0)

        planned = partial(operator, x, w, group=groups["dovetail"])
        return contest(by_hand, lambda chunks: chunked(x, w, chunks, groups["gloo"]), planned, groups, phases(x, w)[:1])

    return calls


def step(layer, shapes, operator, phases):
    """Return what makes the contest of a layer's forward and backward pass."""

    def calls(count, width, dtype, groups):
        x, w = shapes(count, width, dtype, True)
        grad = torch.ones_like(operator(x.detach(), w.detach(), group=groups["dovetail"]))

        def run(out):
            out.backward(grad)
            x.grad = w.grad = None

        def by_hand(group):
            run(layer.apply(x, w, group, 0))

        def planned():
            run(operator(x, w, group=groups["dovetail"]))

        rival = lambda chunks: run(layer.apply(x, w, groups["gloo"], chunks))  # noqa: E731
        return contest(by_hand, rival, planned, groups, phases(x.detach(), w.detach()))

    return calls


def reduced_phases(x, w):
    out = x.new_zeros((len(x), len(w)))
    return [Phase(partial(linear, x, w), begins_all_reduce(out)), Phase(both_gradients(torch.ones_like(out), x, w))]


def column_phases(x, w):
    whole = x.new_ones((len(x) * dist.get_world_size(), x.shape[1]))
    grad = x.new_ones((len(whole), len(w)))
    forth = Phase(partial(linear, whole, w), begins_gather(whole, x))
    return [forth, Phase(both_gradients(grad, whole, w), begins_scatter(torch.empty_like(x), whole.clone()))]


def row_phases(x, w):
    whole = x.new_ones((len(x), len(w)))
    own = x.new_ones((len(x) // dist.get_world_size(), len(w)))
    forth = Phase(partial(linear, x, w), begins_scatter(own, whole))
    return [forth, Phase(both_gradients(whole, x, w), begins_gather(whole.clone(), own))]


def both_gradients(grad, x, w):
    return lambda: (grad @ w, grad.t() @ x)


def mlp_step(count, width, dtype, groups):
    """A step of an MLP of `width`, 2 · width and `width` units on a sequence that is cut over the ranks."""
    ranks, ours = dist.get_world_size(), groups["dovetail"]
    x = torch.rand(count // ranks, width, dtype=dtype, requires_grad=True)
    into = torch.rand(2 * width // ranks, width, dtype=dtype, requires_grad=True)
    out = torch.rand(width, 2 * width // ranks, dtype=dtype, requires_grad=True)

    def run(made):
        made.sum().backward()
        x.grad = into.grad = out.grad = None

    def by_hand(group, chunks=0):
        run(Row.apply(gelu(Column.apply(x, into, group, chunks)), out, group, chunks))

    def operator():
        run(dt.linear_reduce_scatter(gelu(dt.all_gather_linear(x, into, group=ours)), out, group=ours))

    hidden = torch.rand(count, len(into), dtype=dtype, requires_grad=True)
    between = Phase(lambda: torch.autograd.grad(gelu(hidden), hidden, hidden.detach()))
    phases = [*column_phases(x.detach(), into.detach()), *row_phases(hidden.detach(), out.detach()), between]
    return contest(by_hand, partial(by_hand, groups["gloo"]), operator, groups, phases)


def prefill(count, width, dtype, groups):
    """A prompt of `count` tokens through decoder blocks of LLaMA's shapes, `width` wide, with two all-reduces each."""
    scale, name = decoder.WIDTH // width, str(dtype).split(".")[1]
    about = SimpleNamespace(scale=scale, layers=LAYERS, prompt=count, tokens=0, dtype=name)
    model, ours = decoder.Model(about, dist.get_world_size()), groups["dovetail"]
    zeros = torch.zeros(count, width, dtype=dtype)
    inputs = {name: torch.rand(count, getattr(model.blocks[0], name).shape[1]).to(dtype) for name in ("joined", "down")}
    phases = [Phase(partial(model.prefill, lambda x, w: zeros))]
    for name, x in inputs.items():
        product = partial(linear, x, getattr(model.blocks[0], name))
        phases.append(Phase(product, begins_all_reduce(zeros.clone()), LAYERS))
    chunked = lambda chunks: model.prefill(lambda x, w: reduced_chunks(x, w, chunks, groups["gloo"]))  # noqa: E731
    return contest(
        lambda group: model.prefill(decoder.reduced_on(group)),
        chunked,
        partial(model.prefill, lambda x, w: dt.linear_all_reduce(x, w, group=ours)),
        groups,
        phases,
    )


CALLS = {
    "linear_all_reduce": forward(Reduced, row_parallel, reduced_chunks, dt.linear_all_reduce, reduced_phases),
    "all_gather_linear": forward(Column, column_parallel, gathered_chunks, dt.all_gather_linear, column_phases),
    "linear_reduce_scatter": forward(Row, row_parallel, scattered_chunks, dt.linear_reduce_scatter, row_phases),
    "linear_all_reduce step": step(Reduced, row_parallel, dt.linear_all_reduce, reduced_phases),
    "all_gather_linear step": step(Column, column_parallel, dt.all_gather_linear, column_phases),
    "linear_reduce_scatter step": step(Row, row_parallel, dt.linear_reduce_scatter, row_phases),
    "MLP step": mlp_step,
    "prefill": prefill,
}
