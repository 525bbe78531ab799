"""Run by 2 ranks: what the pass of dovetail.torch.compiled makes of graphs, against the same graphs without it."""

import faulthandler
import json
import os
import sys
import time
import traceback
import warnings

import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import linear

import dovetail.torch as dt
from dovetail.torch.compiled import OverlapPass, rewriting
from dovetail.torch.compiled.operators import ops

RANK, RANKS = int(os.environ["DOVETAIL_RANK"]), int(os.environ["DOVETAIL_RANKS"])
FOLDER, NAMES = sys.argv[1], sys.argv[2:]
LEFT = "left unmodified"


def of(*shape, seed=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(100 * seed + RANK)
    return torch.rand(shape, generator=draw).sub_(0.5).to(dtype)


def same(seed, *shape):
    """A tensor that is equal on all ranks."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).sub_(0.5)


def compiled(function, *inputs, grad=False, dynamic=False):
    """Return the graphs and reports of a function that is compiled with the pass, once its results equal eager ones.

    Results must have equal values, strides and gradients; every node's metadata must be what its kernel returns.
    """
    step, graphs = OverlapPass(), []

    def inner(module, _):
        step(module.graph)
        module.recompile()
        graphs.append(module)
        return make_boxed_func(lambda *args: Checked(module).run(*args))

    backend = aot_autograd(
        fw_compiler=inner,
        inference_compiler=inner,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch._dynamo.reset()
    made = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    found, wanted = ([] for _ in range(2))
    for run, into in ((made, found), (function, wanted)):
        leaves = [each.detach().requires_grad_(grad) for each in inputs]
        with torch.set_grad_enabled(grad):
            out = run(*leaves)
        outs = out if isinstance(out, tuple) else (out,)
        into += [each.clone() if hasattr(each, "wait") else each for each in outs]
        if grad:
            sum((each.square().sum() for each in into), torch.zeros(())).backward()
            into += [each.grad for each in leaves]
    for one, other in zip(found, wanted, strict=True):
        assert one.stride() == other.stride(), (one.stride(), other.stride())
        bound = 1e-5 if one.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)
    return step, graphs


class Checked(torch.fx.Interpreter):
    """Runs a graph, and compares each result with the node's metadata."""

    def run_node(self, n):
        found = super().run_node(n)
        self.compare(n, n.meta.get("val"), found)
        return found

    def compare(self, n, said, found):
        if isinstance(found, torch.Tensor) and all(isinstance(each, int) for each in said.shape):
            facts = [(tuple(each.shape), each.stride(), each.dtype) for each in (said, found)]
            assert facts[0] == facts[1], (n, facts)


def targets(graphs):
    return [str(node.target) for each in graphs for node in each.graph.nodes if node.op == "call_function"]


def count(graphs, part):
    return sum(part in each for each in targets(graphs))


def reported(step, *texts):
    """Compare the lines of a report, by parts of them, with those that are expected."""
    lines = step.explain().split("\n")
    assert len(lines) == len(texts), step.explain()
    assert all(text in line for text, line in zip(texts, lines, strict=True)), step.explain()
    assert all("torch_compiled_ranks.py:" in line for line in lines), step.explain()


SHAPES = (((6, 8), 0), ((2, 4, 8), 0), ((2, 4, 8), 1), ((2, 4, 3, 8), 1), ((2, 3, 4, 8), 2))


def check_all_gather():
    group = dist.group.WORLD
    w, v, b = of(5, 8, seed=1), of(3, 8, seed=2), of(5, seed=3)
    for shape, dim in SHAPES:

        def one(x, w, b, dim=dim):
            return linear(funcol.all_gather_tensor(x, dim, group), w, b)

        step, graphs = compiled(one, of(*shape), w, b)
        reported(step, "all_gather_linear of 1 product")
        assert "gathered tensor" not in step.explain()
        assert count(graphs, "_c10d_functional") + count(graphs, "addmm") == 0, targets(graphs)

    def several(x, w, v, b):
        whole = funcol.all_gather_tensor(x, 1, group)
        return linear(whole, w, b), whole.relu(), linear(whole, v)

    step, graphs = compiled(several, of(2, 4, 8), w, v, b)
    reported(step, "all_gather_linear of 2 products, and the gathered tensor")
    assert count(graphs, "_c10d_functional") == 0, targets(graphs)


def check_reductions():
    group = dist.group.WORLD
    w, b = of(6, 8, seed=1), of(6, seed=3)

    def scattered(op, dim):
        return lambda x, w, b: funcol.reduce_scatter_tensor(linear(x, w, b), op, dim, group)

    def reduced(op):
        return lambda x, w: funcol.all_reduce(x @ w.t(), op, group) + 1

    for op, shape, dim in (*(("sum", *each) for each in SHAPES), ("avg", (2, 4, 8), 1)):
        step, graphs = compiled(scattered(op, dim), of(*shape), w, b)
        reported(step, "linear_reduce_scatter")
        assert count(graphs, "_c10d_functional") + count(graphs, "mm") == 0, targets(graphs)
    for op, shape in (("sum", (6, 8)), ("sum", (2, 3, 4, 8)), ("avg", (2, 4, 8))):
        step, graphs = compiled(reduced(op), of(*shape), w)
        reported(step, "linear_all_reduce")
        assert count(graphs, "_c10d_functional") + count(graphs, "mm") == 0, targets(graphs)


def check_backward():
    """Both graphs of a layer: gradients of weights become part of the operator that reduces the input's gradient."""
    group = dist.group.WORLD
    for shape, dim in (((6, 8), 0), ((2, 4, 8), 1)):

        def layer(x, w, v, dim=dim):
            hidden = linear(funcol.all_gather_tensor_autograd(x, dim, group), w)
            return funcol.reduce_scatter_tensor_autograd(linear(hidden.relu(), v), "sum", dim, group)

        step, graphs = compiled(layer, of(*shape), of(6, 8, seed=1), of(8, 6, seed=2), grad=True)
        reported(
            step,
            "all_gather_linear of 1 product, and the gathered tensor",
            "linear_reduce_scatter",
            "all_gather_linear of 1 product, and the gathered tensor",
            "linear_gradients, and the gradients of the weights",
        )
        assert count(graphs, "_c10d_functional") == 0, targets(graphs)
        assert count(graphs, "aten.mm") == 1, targets(graphs)  # the weight gradient behind the gathered gradient


def check_several_products_share_a_collective():
    group = dist.group.WORLD

    def attention(x, q, k, v):
        whole = funcol.all_gather_tensor_autograd(x, 1, group)
        return linear(whole, q).sin() + linear(whole, k) * linear(whole, v).cos()

    step, graphs = compiled(attention, of(2, 4, 8), *(of(6, 8, seed=each) for each in range(1, 4)), grad=True)
    reported(
        step,
        "all_gather_linear of 3 products, and the gathered tensor",
        "linear_gradients of 3 products, and the gradients of the weights",
    )
    assert count(graphs, "_c10d_functional") + count(graphs, "aten.mm") == 0, targets(graphs)

    def added(x, y, w, v, b):
        return funcol.all_reduce(x @ w.t() + torch.addmm(b, y, v.t()), "sum", group)

    step, graphs = compiled(added, of(4, 8), of(4, 5, seed=1), of(6, 8, seed=2), of(6, 5, seed=3), of(6, seed=4))
    reported(step, "linear_all_reduce of 2 products")


def check_dtensor():
    """A module that PyTorch parallelizes, with biases, in each layout of its input."""
    mesh = init_device_mesh("cpu", (RANKS,))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.into, self.out = nn.Linear(8, 12), nn.Linear(12, 8)

        def forward(self, x):
            return self.out(self.into(x).relu())

    for layout, lines in (
        (Shard(0), ("all_gather_linear", "linear_reduce_scatter", "all_gather_linear", "linear_gradients")),
        (Shard(1), ("all_gather_linear", "linear_reduce_scatter", "all_gather_linear", "linear_gradients")),
        (Replicate(), ("linear_all_reduce", "linear_gradients")),
    ):
        plan = {
            "into": ColwiseParallel(input_layouts=layout),
            "out": RowwiseParallel(output_layouts=layout),
        }
        net = parallelize_module(Net(), mesh, plan)
        x = same(5, 2, 4, 8) if isinstance(layout, Replicate) else of(2, 4, 8)

        def run(x, net=net):
            return net(x)

        step, graphs = compiled(run, x, grad=True)
        found = step.explain().split("\n")
        assert len(found) == len(lines), step.explain()
        assert all(word in line for word, line in zip(lines, found, strict=True)), step.explain()
        assert count(graphs, "_c10d_functional") == 0, targets(graphs)


def check_what_is_left_and_why():
    group = dist.group.WORLD
    x, w, b = of(4, 8), of(6, 8, seed=1), of(6, seed=2)

    def read_elsewhere(x, w):
        out = x @ w.t()
        return funcol.all_reduce(out, "sum", group), out.relu()

    def by_columns(x, w):
        return funcol.reduce_scatter_tensor(x @ w.t(), "sum", 1, group)

    def gathers_columns(x, w):
        return funcol.all_gather_tensor(x, 1, group) @ torch.cat([w.t(), w.t()])

    def twice(x, w):
        whole = funcol.all_gather_tensor(x, 0, group)
        return whole @ whole.t()

    def both(x, w):
        return funcol.all_reduce(funcol.all_gather_tensor(x, 1, group) @ w.t(), "sum", group)

    step, _ = compiled(both, of(2, 4, 8), w)
    reported(step, "all_gather_linear", f"{LEFT}: its product is overlapped with another collective")

    def biases(x, w, b):
        return funcol.all_reduce(linear(x, w, b) + linear(x, w, b), "sum", group)

    cases = {
        "aten.relu, not of a product": lambda x: funcol.all_reduce(x.relu(), "sum", group),
        "an input of the graph, not of a product": lambda x: funcol.all_reduce(x, "sum", group),
        "aten.relu reads the product too": read_elsewhere,
        "operation 'max' is not served": lambda x, w: funcol.all_reduce(x @ w.t(), "max", group),
        "along the columns of the product": by_columns,
        "the axis that a product sums over": gathers_columns,
        "the other operand of the product depends on": twice,
        "aten.sin reads the result, no product": lambda x: funcol.all_gather_tensor(x, 0, group).sin(),
        "addmm with beta 2": lambda x, w, b: funcol.all_reduce(torch.addmm(b, x, w.t(), beta=2), "sum", group),
        "no operator overlaps this kind": lambda x: funcol.all_to_all_single(x, None, None, group),
        "several products with a bias": lambda x, w, b: funcol.all_reduce(
            linear(x, w, b) + linear(x, w, b), "sum", group
        ),
        "not of a product": lambda x, w: funcol.all_reduce(
            x + (x[:, :6] @ w[:, :6].t()).repeat(1, 2)[:, :8], "sum", group
        ),
        "products of int32 are not served": lambda x, w: funcol.all_reduce(x.int() @ w.t().int(), "sum", group),
        "aten.view.dtype reads the result": lambda x, w: funcol.all_gather_tensor(x, 0, group).view(torch.int32),
    }
    _check_left(cases, x, w, b)


def _check_left(cases, *inputs):
    for text, function in cases.items():
        step, graphs = compiled(function, *inputs[: function.__code__.co_argcount])
        reported(step, LEFT)
        assert text in step.explain(), (text, step.explain())
        assert count(graphs, "_c10d_functional") >= 2, targets(graphs)


def check_parts_by_slices():
    """Gathered and reduced tensors whose parts are slices, as some versions of PyTorch trace them."""
    group = dist.group.WORLD

    def layer(x, w, v):
        whole = funcol.all_gather_tensor(x, 0, group)
        rows = x.shape[0]
        out = (torch.cat([whole[part * rows : (part + 1) * rows] for part in range(RANKS)], 1) @ w).relu() @ v
        each = out.shape[1] // RANKS
        joined = torch.cat([out[:, part * each : (part + 1) * each] for part in range(RANKS)])
        return funcol.reduce_scatter_tensor(joined, "sum", 0, group)

    step, graphs = compiled(layer, of(2, 4, 8), of(8, 6, seed=1), of(6, 5, seed=2))
    reported(step, "all_gather_linear", "linear_reduce_scatter")
    assert count(graphs, "_c10d_functional") + count(graphs, "slice") == 0, targets(graphs)

    def trimmed(x, w):
        whole = funcol.all_gather_tensor(x, 0, group)
        return torch.cat([whole[:2], whole[2:]], 1)[:, :7] @ w

    step, _ = compiled(trimmed, of(2, 4, 8), of(8, 6, seed=1))
    reported(step, f"{LEFT}: aten.slice.Tensor reads the result")


def check_rows_that_vary():
    group = dist.group.WORLD

    def layer(x, w, v):
        hidden = linear(funcol.all_gather_tensor(x, 0, group), w)
        return funcol.all_reduce(linear(hidden.relu(), v), "sum", group)

    step, _ = compiled(layer, of(5, 8), of(6, 8, seed=1), of(4, 6, seed=2), dynamic=True)
    reported(step, "all_gather_linear", "linear_all_reduce")
    step, _ = compiled(layer, of(3, 5, 8), of(6, 8, seed=1), of(4, 6, seed=2), dynamic=True)
    reported(step, LEFT, f"{LEFT}: several sizes vary")
    assert "s" in step.explain().split("\n")[0].split(" of ")[1], "the rows are a symbol"


def check_halves():
    group = dist.group.WORLD

    def layer(x, w, v):
        hidden = linear(funcol.all_gather_tensor(x, 0, group), w)
        return funcol.all_reduce(linear(hidden.relu(), v), "sum", group)

    inputs = [of(*shape, seed=seed, dtype=torch.bfloat16) for seed, shape in enumerate(((4, 8), (6, 8), (5, 6)))]
    step, _ = compiled(layer, *inputs)
    reported(step, "all_gather_linear", "linear_all_reduce")


def check_metadata_is_kept():
    group = dist.group.WORLD
    _, (graph,) = compiled(lambda x, w: funcol.all_reduce(x @ w.t(), "sum", group), of(4, 8), of(6, 8, seed=1))
    (node,) = [each for each in graph.graph.nodes if "products_reduced" in str(each.target)]
    assert "torch_compiled_ranks.py" in node.meta["stack_trace"]
    assert all("val" in each.meta for each in graph.graph.nodes if each.op == "call_function")


def check_the_operator_of_compiled_sums():
    group = dist.group.WORLD.group_name
    for dim in (None, 0):
        about = [of(4, 8)], [of(6, 8, seed=1)], of(6, seed=2), "sum", dim, group
        torch.library.opcheck(ops.products_reduced.default, about, test_utils=("test_schema", "test_faketensor"))


def check_faults_are_found():
    """The comparison with eager results finds a pass that forgets a bias, and one that joins another axis."""
    group = dist.group.WORLD

    def biased(x, w, b):
        return funcol.all_reduce(linear(x, w, b), "sum", group)

    def joined(x, w):
        return linear(funcol.all_gather_tensor(x, 1, group), w)

    right_terms, right_join = rewriting.terms_of, rewriting._joined
    faults = (
        (
            "terms_of",
            lambda *args: (right_terms(*args)[0], None, right_terms(*args)[2]),
            biased,
            (of(4, 8), of(6, 8), of(6)),
        ),
        ("_joined", lambda node, dim: right_join(node, 0), joined, (of(2, 4, 8), of(6, 8))),
    )
    for name, fault, function, inputs in faults:
        right = getattr(rewriting, name)
        setattr(rewriting, name, fault)
        try:
            compiled(function, *inputs)
            text = "nothing was found"
        except Exception as error:
            text = repr(error)
        finally:
            setattr(rewriting, name, right)
        assert "not close" in text or "AssertionError" in text, text
        compiled(function, *inputs)


def check_cache_keys():
    """The key of compiled code holds what a graph has not: the backends of groups."""
    first = OverlapPass().uuid()
    assert OverlapPass().uuid() == first
    other = dist.new_group(backend="gloo")
    assert OverlapPass().uuid() != first
    dist.barrier()  # else a rank leaves while another still connects
    dist.destroy_process_group(other)
    assert OverlapPass().uuid() == first


def check_inductor():
    """Machine code by inductor, as users compile. Compiled code chooses plans. The second time it is cached."""
    group = dist.new_group(list(range(RANKS)))

    def layer(x, w, v):
        hidden = linear(funcol.all_gather_tensor_autograd(x, 1, group), w)
        return funcol.reduce_scatter_tensor_autograd(linear(hidden.relu(), v), "sum", 1, group)

    leaves = [each.requires_grad_() for each in (of(2, 4, 8), of(6, 8, seed=1), of(8, 6, seed=2))]
    layer(*leaves).square().sum().backward()
    wanted = [each.grad for each in leaves]
    for turn in range(2):
        torch._dynamo.reset()
        step = OverlapPass()
        assert "no graph was compiled" in step.explain()
        made = torch.compile(layer, fullgraph=True, options={"post_grad_custom_post_pass": step})
        for each in leaves:
            each.grad = None
        with dt.warm_up():
            out = made(*leaves)
            out.square().sum().backward()
        assert out.stride() == layer(*leaves).stride()
        torch.testing.assert_close(out, layer(*leaves), rtol=1e-5, atol=1e-5)
        for leaf, grad in zip(leaves, wanted, strict=True):
            torch.testing.assert_close(leaf.grad, grad, rtol=1e-5, atol=1e-5)
        if turn == 0:
            assert step.explain().count("overlapped: ") == 4, step.explain()
    assert "took the compiled code from its cache" in step.explain()
    said = [text for text in dt.explain(group).split("\n") if "weight gradients" in text or "(measured)" in text]
    assert any("reduce_scatter of 16 × 6 by 8 columns and weight gradients" in text for text in said), said
    assert sum("(measured)" in text for text in said) == 3, said  # both gathers have equal shapes


def check_groups_that_are_not_served():
    other, alone = dist.new_group(backend="gloo"), [dist.new_group([rank]) for rank in range(RANKS)][RANK]
    cases = {
        'its group has backend "gloo", not "dovetail"': lambda x, w: funcol.all_reduce(x @ w.t(), "sum", other),
        "its group has one rank": lambda x, w: funcol.all_reduce(x @ w.t(), "sum", alone),
    }
    _check_left(cases, of(4, 8), of(6, 8, seed=1))


def main():
    faulthandler.dump_traceback_later(100, repeat=True)  # shows where ranks are, should they ever wait for each other
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("dovetail", init_method=f"file://{FOLDER}/world", rank=RANK, world_size=RANKS)
    for name, check in [(n, c) for n, c in globals().items() if n in NAMES]:
        begin = time.perf_counter()
        try:
            check()
            text = "passed"
        except BaseException:
            text = traceback.format_exc()
        print(json.dumps([name, RANK, text, round(time.perf_counter() - begin, 3)]), flush=True)
    torch._dynamo.reset()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
