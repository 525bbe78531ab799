"""What a planned operator of dovetail.torch costs beside the same calls by hand on the same group, on tiny tensors."""

from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import linear
from torch_contests import Column, Reduced

import dovetail.torch as dt


def tiny(has_gradients):
    return [torch.rand(8, 32, requires_grad=has_gradients), torch.rand(16, 32, requires_grad=has_gradients)]


def all_reduce(group):
    x, w = tiny(False)

    def by_hand():
        out = linear(x, w)
        dist.all_reduce(out, group=group)

    return by_hand, partial(dt.linear_all_reduce, x, w, group=group)


def reduce_scatter(group):
    x, w = tiny(False)

    def by_hand():
        out = torch.empty(8 // group.size(), 16)
        dist.reduce_scatter_single(out, linear(x, w), group=group)

    return by_hand, partial(dt.linear_reduce_scatter, x, w, group=group)


def all_gather(group):
    x, w = tiny(False)

    def by_hand():
        whole = torch.empty(8 * group.size(), 32)
        dist.all_gather_single(whole, x, group=group)
        linear(whole, w)

    return by_hand, partial(dt.all_gather_linear, x, w, group=group)


def step(layer, operator, rows):
    def calls(group):
        x, w = tiny(True)
        grad = torch.ones(rows(group), 16)

        def run(call):
            call(x, w).backward(grad)
            x.grad = w.grad = None

        return partial(run, lambda a, b: layer.apply(a, b, group, 0)), partial(run, partial(operator, group=group))

    return calls


TINY = {
    "linear_all_reduce": all_reduce,
    "all_gather_linear": all_gather,
    "linear_reduce_scatter": reduce_scatter,
    "linear_all_reduce and its backward": step(Reduced, dt.linear_all_reduce, lambda group: 8),
    "all_gather_linear and its backward": step(Column, dt.all_gather_linear, lambda group: 8 * group.size()),
}
