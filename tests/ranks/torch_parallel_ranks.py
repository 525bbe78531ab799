"""Run by ranks: torch.ops.symm_mem on CPU tensors, and `overlapped` plans, beside what PyTorch makes of them."""

import contextlib
import io
import itertools
import json
import os
import re
import sys
import textwrap
import time
import traceback
import warnings
from copy import deepcopy
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as definitions
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed._tensor import common_dtensor

import dovetail.torch as dt
from dovetail.core import OperatorError
from dovetail.torch.linear.plans import Plan, tables

RANK, RANKS = int(os.environ["DOVETAIL_RANK"]), int(os.environ["DOVETAIL_RANKS"])
FOLDER, NAMES = sys.argv[1], sys.argv[2:]
EVERY = range(RANKS)
ops = torch.ops.symm_mem
meshes = {}


def of(rank, shape, seed=0, dtype=torch.float32):
    """A rank's tensor, which every rank can make."""
    draw = torch.Generator().manual_seed(100 * seed + rank)
    return torch.rand(shape, generator=draw).sub_(0.5).to(dtype)


def alike(found, wanted, what=""):
    """Both are None, or of equal shape, strides, kind and placements, and close."""
    if wanted is None or found is None:
        assert found is wanted is None, what
        return
    assert isinstance(found, DTensor) == isinstance(wanted, DTensor), what
    if isinstance(wanted, DTensor):
        assert found.placements == wanted.placements, (what, found.placements, wanted.placements)
        assert found.shape == wanted.shape, (what, found.shape, wanted.shape)
        found, wanted = found.to_local(), wanted.to_local()
    close(found, wanted, what)
    assert found.stride() == wanted.stride(), (what, found.shape, found.stride(), wanted.stride())


def close(found, wanted, what=""):
    loose = {"rtol": 2e-2, "atol": 2e-2} if found.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found, wanted, **loose, msg=lambda text: f"{what}: {text}")


def raised(call, *parts):
    try:
        call()
    except OperatorError as error:
        text = str(error)
    else:
        raise AssertionError("no OperatorError")
    assert all(part in text for part in parts), text


def group():
    return dist.group.WORLD.group_name


# torch.ops.symm_mem


def gathers(dtypes=(torch.float32,)):
    """Yield arguments: dims of 2 to 4 axes, with the input's axes stored in both orders."""
    for dtype in dtypes:
        for shape in ((4, 6), (3, 4, 6), (2, 3, 4, 6), (1, 4, 6)):
            for dim in range(len(shape)):
                for a in (of(RANK, shape, 1, dtype), of(RANK, shape, 1, dtype).transpose(0, -2).contiguous()):
                    a = a if a.shape == shape else a.transpose(0, -2)
                    depth = 6 * RANKS if dim == len(shape) - 1 else 6
                    yield a, [of(RANK, (depth, n), 2 + n, dtype) for n in (5, 1)], dim, group()


def scatters(dtypes=(torch.float32,)):
    for dtype in dtypes:
        for shape in ((2 * RANKS, 6), (2 * RANKS, 4 * RANKS, 6), (RANKS, RANKS, 2 * RANKS, 6), (RANKS, 1, 6)):
            for dim in range(len(shape)):
                if dim == len(shape) - 1 or shape[dim] % RANKS == 0:
                    for op in ("sum", "avg"):
                        yield of(RANK, shape, 1, dtype), of(RANK, (6, 3 * RANKS), 2, dtype), op, dim, group()


def check_gather_equals_its_definition():
    for arguments in gathers((torch.float32, torch.bfloat16)):
        for return_a in (True, False):
            whole, outs = ops.fused_all_gather_matmul(*arguments, return_A=return_a)
            wanted = definitions._fused_all_gather_matmul_fallback(*arguments, return_A=return_a)
            for found, other in zip([whole, *outs], [wanted[0], *wanted[1]], strict=True):
                alike(found, other, (arguments[0].shape, arguments[2]))


def check_scatter_equals_its_definition():
    for arguments in scatters((torch.float32, torch.bfloat16)):
        found = ops.fused_matmul_reduce_scatter(*arguments)
        alike(found, definitions._fused_matmul_reduce_scatter_fallback(*arguments), (arguments[0].shape, arguments[3]))


def check_shapes_of_the_upstream_cases():
    """A (8, 64, 32) by three B, and A (8, 64, 1024) by one: what AsyncTPTest of PyTorch asserts, for every axis."""
    for dim in range(3):
        shape = [8, 64, 32]
        shape[dim] //= RANKS
        arguments = of(RANK, shape, 1), [of(RANK, (32, 16), 2 + each) for each in range(3)], dim, group()
        found = ops.fused_all_gather_matmul(*arguments)
        wanted = definitions._fused_all_gather_matmul_fallback(*arguments)
        for one, other in zip([found[0], *found[1]], [wanted[0], *wanted[1]], strict=True):
            alike(one, other, dim)
        arguments = of(RANK, (8, 64, 1024), 1), of(RANK, (1024, 16), 2), "avg", dim, group()
        alike(
            ops.fused_matmul_reduce_scatter(*arguments), definitions._fused_matmul_reduce_scatter_fallback(*arguments)
        )
        stored = definitions.restride_A_shard_for_fused_all_gather_matmul(of(RANK, (8, 64, 32), 3), dim)
        by = of(RANK, (32 * (RANKS if dim == 2 else 1), 16), 4)
        alike(
            ops.fused_all_gather_matmul(stored, [by], dim, group())[0],
            definitions._fused_all_gather_matmul_fallback(stored, [by], dim, group())[0],
        )


def check_every_schedule_computes_the_same():
    """Calls so far were serial. Here each schedule of each call runs in turn."""
    calls = list(tables[dist.group.WORLD].values())
    assert {call.case.kind for call in calls} >= {"all_gather", "all_gather_columns", "reduce_scatter"}
    first = [call.plan for call in calls]
    for turn in range(1, 4):
        used = [call for call in calls if len(list(call.case.schedules())) > turn and not call.is_alone]
        assert used, turn
        for call in used:
            call.use(Plan(list(call.case.schedules())[turn], "measured"), dist.group.WORLD)
        check_gather_equals_its_definition()
        check_scatter_equals_its_definition()
    for call, plan in zip(calls, first, strict=True):
        call.use(plan, dist.group.WORLD)


def check_plans_of_gathered_columns_are_measured():
    a, b = of(RANK, (48, 8), 1), of(RANK, (8 * RANKS, 12), 2)
    with dt.warm_up():
        _, (out,) = ops.fused_all_gather_matmul(a, [b], 1, group())
    close(out, torch.cat([of(rank, (48, 8), 1) for rank in EVERY], 1) @ b)
    (call,) = [each for each in tables[dist.group.WORLD].values() if each.case.rows == 48]
    assert call.plan.origin == "measured"
    assert call.plan.predicted_s > 0


def check_gradients():
    """Those of both operators equal what float64 copies of all ranks' tensors give."""
    for dim in range(3):
        parts, depth = [of(rank, (2, 4, 6), 1).double() for rank in EVERY], 6 * RANKS if dim == 2 else 6
        weights = [[of(rank, (depth, n), n).double() for rank in EVERY] for n in (5, 3)]
        parts[RANK].requires_grad_()
        for each in weights:
            each[RANK].requires_grad_()
        whole = torch.cat(parts, dim)
        loss = sum(of(r, (), 7).double() * (torch.matmul(whole, w[r]) ** 2).sum() for w in weights for r in EVERY)
        loss = loss + sum(of(r, (), 8).double() * (whole**2).sum() for r in EVERY)
        loss.backward()
        own = [each.detach().requires_grad_() for each in (parts[RANK], *(w[RANK] for w in weights))]
        found, outs = ops.fused_all_gather_matmul(own[0], own[1:], dim, group())
        mine = of(RANK, (), 7).double() * sum((each**2).sum() for each in outs)
        (mine + of(RANK, (), 8).double() * (found**2).sum()).backward()
        for leaf, wanted in zip(own, (parts[RANK], *(w[RANK] for w in weights)), strict=True):
            close(leaf.grad, wanted.grad, dim)


def check_gradients_of_scatter():
    for dim, op in ((0, "sum"), (1, "avg"), (2, "sum"), (2, "avg")):
        parts = [of(rank, (2 * RANKS, 2 * RANKS, 6), 1).double() for rank in EVERY]
        weights = [of(rank, (6, 4 * RANKS), 2).double() for rank in EVERY]
        for each in (parts[RANK], weights[RANK]):
            each.requires_grad_()
        total = sum(torch.matmul(a, b) for a, b in zip(parts, weights, strict=True)) / (RANKS if op == "avg" else 1)
        sum(of(r, (), 7).double() * (part**2).sum() for r, part in enumerate(total.chunk(RANKS, dim))).backward()
        own = [each.detach().requires_grad_() for each in (parts[RANK], weights[RANK])]
        out = ops.fused_matmul_reduce_scatter(*own, op, dim, group())
        (of(RANK, (), 7).double() * (out**2).sum()).backward()
        close(own[0].grad, parts[RANK].grad, (dim, op))
        close(own[1].grad, weights[RANK].grad, (dim, op))


def check_gradients_of_gradients():
    a = of(RANK, (4, 6), 1).double().requires_grad_()
    b = of(RANK, (6 * RANKS, 3), 2).double().requires_grad_()
    _, (out,) = ops.fused_all_gather_matmul(a, [b], 1, group())
    (grad,) = torch.autograd.grad(out.sum(), b, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), a)
    whole = torch.cat([of(rank, (4, 6), 1).double() for rank in EVERY], 1)
    sums = whole.sum(0, keepdim=True)
    close(second, (RANKS * 2 * 3 * sums).expand(4, -1).chunk(RANKS, 1)[RANK])


def check_registry():
    """All of opcheck's tests but that of dynamic shapes, which takes seconds a call."""
    utils = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    check = torch.library.opcheck
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*autograd kernel.*")
        for dim, used in ((1, utils[:3]), (2, utils)):
            a, b = (of(RANK, shape, 1).requires_grad_() for shape in ((2, 4, 6), (6 * RANKS if dim == 2 else 6, 4)))
            check(ops.fused_all_gather_matmul.default, (a, [b], dim, group()), test_utils=used)
            x, w = of(RANK, (2, 2 * RANKS, 6), 1).requires_grad_(), of(RANK, (6, 2 * RANKS), 1).requires_grad_()
            check(ops.fused_matmul_reduce_scatter.default, (x, w, "avg", dim, group()), test_utils=utils[:3])


def check_autocast_keeps_dtypes():
    with torch.autocast("cpu", torch.bfloat16):
        _, (out,) = ops.fused_all_gather_matmul(of(RANK, (4, 6)), [of(RANK, (6, 3))], 0, group())
        part = ops.fused_matmul_reduce_scatter(of(RANK, (2 * RANKS, 6)), of(RANK, (6, 3)), "sum", 0, group())
    assert out.dtype == part.dtype == torch.float32


def check_invalid_arguments_are_refused_on_all_ranks():
    a, b, is_first = of(RANK, (2 * RANKS, 6), 1), of(RANK, (6, 4), 2), RANK == 0
    gather, scatter = ops.fused_all_gather_matmul, ops.fused_matmul_reduce_scatter
    raised(lambda: gather(a[:1] if is_first else a, [b], 0, group()), "do not fit", "1 × 6")
    raised(lambda: gather(a, [b[:5] if is_first else b], 0, group()), "rank 0", "(n, k)")
    raised(lambda: gather(a, [b], 1, group()), "6", f"{RANKS} ranks")
    raised(lambda: gather(a[0] if is_first else a, [b], 0, group()), "rank 0", "A [6]")
    raised(lambda: gather(a, [], 0, group()), "A (…, k)")
    raised(lambda: gather(a, [b], 2 if is_first else 0, group()), "rank 0", "dim 2")
    raised(lambda: gather(a.int(), [b.int()], 0, group()), "int32")
    raised(lambda: gather(a, [b.double()], 0, group()), "different dtypes")
    raised(lambda: gather(a.requires_grad_(), [b], -3, group()), "dim -3")
    a = a.detach()
    raised(lambda: scatter(a[:-1], b, "sum", 0, group()), "ranks divide evenly")
    raised(lambda: scatter(a, b[:, :3] if RANKS == 2 else b, "sum", 1, group()), "ranks divide evenly")
    raised(lambda: scatter(a, b, "max", 0, group()), "no reduction 'max'")
    raised(lambda: gather(a, [b], 0, group()) if is_first else scatter(a, b, "sum", 0, group()), "rank 0: all_gather")
    raised(lambda: gather(a, [b], 0, "nobody"), "no process group 'nobody'")
    raised(lambda: gather(a, [b], 0, meshes["gloo"].get_group().group_name), 'backend "dovetail"', "gloo")
    close(gather(a, [b], 0, group())[1][0], torch.cat([of(r, (2 * RANKS, 6), 1) for r in EVERY]) @ b)


def check_explained():
    ops.fused_all_gather_matmul(of(RANK, (5, 6), 1), [of(RANK, (6 * RANKS, 4), 2)], 1, group())
    text = dt.explain(dist.group.WORLD)
    at = text.index("all_gather_columns of 5 × 6 by 4 columns")
    assert "torch_parallel_ranks.py:" in text[:at].splitlines()[-1]
    assert "no plan is known" in text[at:].split("\n")[2]


# overlapped plans


class MLP(nn.Module):
    def __init__(self, width=6, hidden=4 * RANKS, bias=True):
        super().__init__()
        self.into, self.out = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        return self.out(torch.tanh(self.into(x)))


class Block(nn.Module):
    """A norm, then attention's projections q, k and v of one input, and a gated MLP."""

    def __init__(self, bias=True):
        super().__init__()
        width = 4 * RANKS
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Module()
        self.attention.forward = self.attend
        for name in ("wq", "wk", "wv", "wo"):
            setattr(self.attention, name, nn.Linear(width, width, bias=bias))

    def attend(self, x):
        q, k, v = (getattr(self.attention, name)(x) for name in ("wq", "wk", "wv"))
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.attention.wo(heads)

    def forward(self, x):
        return self.attention(self.norm(x))


def block_plan():
    return {
        "norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    }


def parallel(model, plan):
    """Return copies of a model: by the plan on gloo, and overlapped."""
    by_torch = parallelize_module(deepcopy(model), meshes["gloo"], plan())
    return by_torch, parallelize_module(deepcopy(model), meshes["dovetail"], dt.overlapped(plan()))


def whole(grad):
    return grad.full_tensor() if isinstance(grad, DTensor) else grad


def own(grad):
    return grad.to_local() if isinstance(grad, DTensor) else grad


def compare(model, plan, x, steps=2, is_replicated=False):
    """Run steps of both; outputs, their strides, and all gradients are equal. Return the overlapped model."""
    models = parallel(model, plan)
    for _ in range(steps):
        grads = []
        for name, each in zip(("gloo", "dovetail"), models, strict=True):
            given = x(meshes[name]).requires_grad_()
            out = each(given)
            seed = of(0 if is_replicated else RANK, out.shape, 9)
            if isinstance(out, DTensor):
                seed = distribute_tensor(of(0, out.shape, 9), meshes[name], out.placements)
            each.zero_grad()
            out.backward(seed)
            grads.append((out.detach(), given.grad, {n: p.grad for n, p in each.named_parameters()}))
        (out, of_input, found), (wanted, of_x, others) = reversed(grads)
        alike(out, wanted, "output")
        alike(of_input, of_x, "gradient of the input")
        assert found.keys() == others.keys()
        for name, grad in found.items():
            assert isinstance(grad, DTensor) == isinstance(others[name], DTensor), name
            close(whole(grad), whole(others[name]), name)
            assert own(grad).stride() == own(others[name]).stride(), name
    return models[1]


def local(shape, dim=None):
    """Return what makes a rank's input: its own, or (dim None) one that all ranks have."""
    return lambda _: of(0 if dim is None else RANK, shape, 4)


def sharded(shape, dim):
    return lambda mesh: distribute_tensor(of(0, shape, 4), mesh, [Shard(dim)]).detach()


def check_mlp():
    for bias in (True, False):
        torch.manual_seed(1)
        model = MLP(bias=bias)
        plan = lambda: {"into": ColwiseParallel(), "out": RowwiseParallel()}  # noqa: E731
        for shape in ((3, 6), (2, 3, 6), (2, 1, 3, 6)):
            compare(model, plan, local(shape), 1, is_replicated=True)
        for shape, dim in (((2, 6), 0), ((2, 3, 6), 1), ((2, 3, 6), 0), ((2, 3, 2, 6), 1)):
            cut = lambda dim=dim: {  # noqa: E731
                "into": ColwiseParallel(input_layouts=Shard(dim)),
                "out": RowwiseParallel(output_layouts=Shard(dim)),
            }
            compare(model, cut, local(shape, dim), 1)


def check_layouts():
    """DTensors between the layers, other output layouts, and inputs that must be moved first."""
    torch.manual_seed(1)
    model = MLP()

    def chained():
        into = ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
        return {"into": into, "out": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)}

    compare(model, chained, sharded((2, 3 * RANKS, 6), 1))
    compare(model, lambda: {"into": ColwiseParallel(output_layouts=Replicate())}, local((3, 6)), is_replicated=True)
    compare(model, lambda: {"out": RowwiseParallel(input_layouts=Replicate())}, local((3, 6)), is_replicated=True)
    last = {"into": ColwiseParallel(), "out": RowwiseParallel(output_layouts=Shard(-1))}
    compare(MLP(2 * RANKS), lambda: last, local((3, 2 * RANKS)))
    assert "out (RowwiseParallel of Linear" in dt.explain()
    assert "its output layout is" in dt.explain()


def check_layers_of_their_own():
    """Strides of a gathered layer's output; the shape of a DTensor whose columns the ranks do not share evenly."""
    torch.manual_seed(1)
    compare(nn.Linear(6, 2 * RANKS), lambda: ColwiseParallel(input_layouts=Shard(1)), local((2, 3, 6), 1), 1)
    uneven = nn.Linear(6, 2 * RANKS + 1)
    compare(uneven, lambda: ColwiseParallel(use_local_output=False), local((3, 6)), 1, is_replicated=True)


def check_uneven_columns():
    """Units that the ranks do not share evenly."""
    torch.manual_seed(1)
    model = MLP(hidden=2 * RANKS + 1)
    chained = {"into": ColwiseParallel(use_local_output=False), "out": RowwiseParallel()}
    compare(model, lambda: chained, local((3, 6)), is_replicated=True)


def columns_seen():
    return [call.case.widths for call in tables[dist.group.WORLD].values() if call.case.kind == "all_gather"]


def check_one_gather_for_q_k_v():
    torch.manual_seed(1)
    for bias in (True, False):
        before = len(columns_seen())
        found = compare(Block(bias), block_plan, sharded((2, 3 * RANKS, 4 * RANKS), 1))
        new = columns_seen()[before:]
        assert [len(each) for each in new if len(each) > 1] == [3], new
        assert found.attention.wq.forward.siblings._made is None
        again = deepcopy(found.attention)
        x = of(RANK, (2, 3, 4 * RANKS), 5)
        with torch.inference_mode():
            close(again(x), found.attention(x))
        assert len(again.wq.forward.siblings._layers) == 3
        assert again.wk.forward.siblings is again.wq.forward.siblings


def check_transformer_of_the_wheel():
    """A step of torch's own test model by its own plan: embeddings, norms, attention, MLP, tied weights."""
    for is_sequence, is_checkpointed in ((True, False), (True, True), (False, False)):
        args = common_dtensor.ModelArgs(dropout_p=0.0, checkpoint_activations=is_checkpointed, max_seq_len=4 * RANKS)
        tokens = torch.arange(3 * 4 * RANKS).reshape(3, -1) % args.vocab_size
        found = []
        for name, wraps in (("gloo", lambda plan: plan), ("dovetail", dt.overlapped)):
            torch.manual_seed(1)
            model = common_dtensor.Transformer(args)
            apply = lambda module, mesh, plan, wraps=wraps: parallelize_module(module, mesh, wraps(plan))  # noqa: E731
            with mock.patch.object(common_dtensor, "parallelize_module", apply):
                model = model.parallelize(model, meshes[name], is_sequence, local_output_for_attn=True)
            for _ in range(2):
                model.zero_grad()
                out = model(tokens)
                (out**2).sum().backward()
            found.append((out.detach(), {key: whole(each.grad) for key, each in model.named_parameters()}))
        alike(found[1][0], found[0][0], "logits")
        for key, grad in found[0][1].items():
            torch.testing.assert_close(found[1][1][key], grad, rtol=1e-4, atol=1e-4)
    assert "norm" not in dt.explain()
    assert "tok_embeddings (RowwiseParallel of Embedding): left to PyTorch" in dt.explain()


def check_siblings_with_other_inputs():
    """Cross-attention: q of one input, k and v of another. From the second call on, q and k with v gather apart."""
    torch.manual_seed(1)
    model = nn.Module()
    for name, width in (("q", 6), ("k", 6), ("v", 6), ("wide", 8)):
        setattr(model, name, nn.Linear(width, 2 * RANKS))
    styles = {name: ColwiseParallel(input_layouts=Shard(0)) for name in ("q", "k", "v", "wide")}
    made = parallelize_module(model, meshes["dovetail"], dt.overlapped(styles))
    x, memory = of(RANK, (3, 6), 1), of(RANK, (7, 6), 2)
    for turn in range(3):
        before = sum(call.calls for call in tables[dist.group.WORLD].values())
        for layer, given in ((made.q, x), (made.k, memory), (made.v, memory)):
            every = torch.cat([of(r, given.shape, 1 if given is x else 2) for r in EVERY])
            close(layer(given), every @ layer.weight.to_local().t() + layer.bias.to_local())
        assert sum(call.calls for call in tables[dist.group.WORLD].values()) - before == 2, turn
    x.add_(1)  # another input, though the same tensor
    close(
        made.q(x),
        torch.cat([of(r, (3, 6), 1) + 1 for r in EVERY]) @ made.q.weight.to_local().t() + made.q.bias.to_local(),
    )
    made.k(memory)
    memory.add_(1)
    every = torch.cat([of(r, (7, 6), 2) + 1 for r in EVERY])
    close(made.v(memory), every @ made.v.weight.to_local().t() + made.v.bias.to_local())


def check_inputs_that_others_read_are_gathered_then():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.seen = nn.Linear(6, 2 * RANKS), None

        def forward(self, x):
            self.seen = tuple(x.to_local().shape)
            return self.linear(x) + x.sum(-1, keepdim=True).to_local(grad_placements=[Partial()]) * 2

    def plan():
        prepare = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
        return {"": prepare, "linear": ColwiseParallel()}

    torch.manual_seed(1)
    assert compare(Reads(), plan, sharded((2 * RANKS, 6), 0)).seen == (2 * RANKS, 6)
    both = PrepareModuleInputOutput(
        input_layouts=Shard(0),
        desired_input_layouts=Replicate(),
        output_layouts=Shard(-1),
        desired_output_layouts=Shard(0),
    )
    compare(Reads(), lambda: {"": both, "linear": ColwiseParallel()}, local((2, 6), 0))


def check_left_layers_are_explained():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    model = nn.ModuleDict({"table": nn.Embedding(8, 6), "own": Own(6, 2 * RANKS)})
    plan = {"table": RowwiseParallel(input_layouts=Replicate()), "own": ColwiseParallel()}
    made = parallelize_module(model, meshes["dovetail"], dt.overlapped(plan))
    out = made["own"](made["table"](torch.arange(4)))
    assert out.shape == (4, 2)
    text = dt.explain(dist.group.WORLD)
    assert "table (RowwiseParallel of Embedding): left to PyTorch, because Embedding is no Linear" in text
    assert "its forward is not that of Linear" in text


def check_uneven_rows():
    """A DTensor says so: PyTorch's way is taken. A local tensor cannot: an error, before data move."""
    if RANKS == 1:
        return
    torch.manual_seed(1)
    plan = lambda: {"into": ColwiseParallel(input_layouts=Shard(0)), "out": RowwiseParallel()}  # noqa: E731
    compare(MLP(), plan, sharded((2 * RANKS + 1, 6), 0), 1)
    assert "rows of its input are not shared evenly" in dt.explain()
    model = parallelize_module(MLP(), meshes["dovetail"], dt.overlapped(plan()))
    raised(lambda: model(of(RANK, (2 + (RANK == 0), 6))), "do not fit", "3 × 6")
    raised(lambda: model(of(RANK, (2, 6)).to(torch.float64 if RANK == 0 else torch.float32)), "rank 0", "dtypes")


def check_plans_are_refused():
    plan = {"into": ColwiseParallel()}
    raised(lambda: parallelize_module(MLP(), meshes["gloo"], dt.overlapped(plan)), 'backend "dovetail"', "gloo")
    raised(lambda: dt.overlapped("into"), "plan of parallelize_module", "str")
    raised(lambda: dt.overlapped({"into": Shard(0)}), "'into'", "Shard")
    other = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("data", "model"))
    raised(lambda: dt.overlapped(ColwiseParallel())._apply(nn.Linear(6, 4), other), "2 dimensions")
    model = parallelize_module(MLP(), meshes["dovetail"], dt.overlapped(plan))
    raised(lambda: model.into(of(0, (3, 6)).to("meta")), "device meta")


def check_copies_saving_and_frozen_weights():
    torch.manual_seed(1)
    model = MLP()
    model.into.weight.requires_grad_(False)
    plan = dt.overlapped({"into": ColwiseParallel(input_layouts=Shard(0)), "out": RowwiseParallel()})
    made = parallelize_module(model, meshes["dovetail"], plan)
    assert not made.into.weight.requires_grad
    again = deepcopy(made)
    x = of(RANK, (2, 6), 3)
    close(again(x), made(x))
    with torch.inference_mode():
        close(again(x), made(x))
        again.into.weight.zero_()
    assert not torch.allclose(again(x), made(x))
    assert set(made.state_dict()) == {"into.weight", "into.bias", "out.weight", "out.bias"}


def check_compiled():
    torch.manual_seed(1)
    plan = dt.overlapped(
        {"into": ColwiseParallel(input_layouts=Shard(0)), "out": RowwiseParallel(output_layouts=Shard(0))}
    )
    made = parallelize_module(MLP(), meshes["dovetail"], plan)
    shared = parallelize_module(Block(), meshes["dovetail"], dt.overlapped(block_plan()))
    for model, shape in ((made, (2, 6)), (shared.attention, (2, 3, 4 * RANKS))):
        x = of(RANK, shape, 3).requires_grad_()
        model(x).sum().backward()
        wanted, x.grad = x.grad, None
        torch.compile(model, fullgraph=True, backend="aot_eager")(x).sum().backward()
        close(x.grad, wanted)


def check_the_page():
    """The program of docs/torch_plans.md prints what the page says."""
    text = (Path(__file__).parents[2] / "docs" / "torch_plans.md").read_text()
    lines = itertools.takewhile(
        lambda line: not line.strip() or line.startswith("    "), text.split("\n\n", 2)[2].split("\n")
    )
    program = textwrap.dedent("\n".join(lines)).rpartition("torchrun")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "torch_plans.md", "exec"), {})
    shape = [2, 16, 64]
    assert str(torch.Size(shape)) in text
    found = printed.getvalue()
    assert str(torch.Size(shape)) in found
    if RANKS == 2:
        for said in re.findall(r"`((?:all_gather|reduce_scatter) of [^`]*)`", text.replace("\n", " ")):
            assert re.search(rf"torch_plans.md:\d+: {re.escape(said)},", found), (said, found)
    assert "(measured)" in found


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch, about names that it will drop
    dist.init_process_group("dovetail", init_method=f"file://{FOLDER}/world", rank=RANK, world_size=RANKS)
    meshes["dovetail"] = init_device_mesh("cpu", (RANKS,))
    meshes["gloo"] = DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")
    for name, check in [(n, c) for n, c in globals().items() if n in NAMES]:
        begin = time.perf_counter()
        try:
            check()
            text = "passed"
        except BaseException:
            text = traceback.format_exc()
        print(json.dumps([name, RANK, text, round(time.perf_counter() - begin, 3)]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
