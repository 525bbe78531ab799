"""Run by 2 or 3 ranks: the operators of dovetail.torch, against whole products in float64 and against autograd."""

import gc
import json
import os
import sys
import time
import traceback
import warnings
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.functional import linear

import dovetail.torch as dt
from dovetail.core import OperatorError
from dovetail.torch.linear import kernels, products
from dovetail.torch.linear.plans import Plan, is_serial, tables
from dovetail.torch.linear.schemas import ops

RANK, RANKS = int(os.environ["DOVETAIL_RANK"]), int(os.environ["DOVETAIL_RANKS"])
FOLDER, NAMES = sys.argv[1], sys.argv[2:]
EVERY = range(RANKS)
ONE_OF_EACH_WIDTH = (torch.float32, torch.bfloat16)
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-13, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def of(rank, shape, seed=0, dtype=torch.float32):
    """A rank's tensor, which every rank can make."""
    draw = torch.Generator().manual_seed(100 * seed + rank)
    return torch.rand(shape, generator=draw).sub_(0.5).to(dtype)


def every(shape, seed=0, dtype=torch.float32):
    return [of(rank, shape, seed, dtype) for rank in EVERY]


def close(found, wanted, terms=1):
    scale = wanted.double().abs().max().item() or 1.0
    error = (found.double() - wanted.double()).abs().max().item() if found.numel() else 0.0
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    assert error <= 4 * terms * ROUNDING[found.dtype] * scale, (found.dtype, error, scale)


def raised(call, *parts):
    try:
        call()
    except OperatorError as error:
        text = str(error)
    else:
        raise AssertionError("no OperatorError")
    assert all(part in text for part in parts), text


def calls():
    return list(tables[dist.group.WORLD].values())


def by_every_schedule(run):
    """Make calls by each schedule that they have in turn; they begin and end with the first."""
    before = {id(call): call.calls for call in calls()}
    run()
    made = [call for call in calls() if call.calls > before.get(id(call), 0) and not call.is_alone]
    group, by_call = dist.group.WORLD, [(call, call.plan, list(call.case.schedules())) for call in made]
    assert by_call
    assert all(plan.schedule == schedules[0] for _, plan, schedules in by_call)
    for turn in range(1, max(len(schedules) for _, _, schedules in by_call)):
        for call, _, schedules in by_call:
            if turn < len(schedules):
                call.use(Plan(schedules[turn], "measured"), group)
        run()
    for call, plan, _ in by_call:
        call.use(plan, group)


def check_all_reduce(dtypes=tuple(ROUNDING)):
    for dtype in dtypes:
        for shape in ((12, 10), (3, 5, 10)):
            x, w, b = every(shape, 1, dtype), every((7, 10), 2, dtype), of(0, (7,), 3, dtype)
            wanted = sum(a.double() @ c.double().t() for a, c in zip(x, w, strict=True))
            for op, scale in (("sum", 1), ("avg", RANKS)):
                out = dt.linear_all_reduce(x[RANK], w[RANK], b, op=op)
                close(out, wanted / scale + b.double(), 2 * RANKS)
                close(dt.linear_all_reduce(x[RANK], w[RANK], op=op), wanted / scale, 2 * RANKS)
                assert out.is_contiguous()
            others = [[of(RANK, shape, 4, dtype), x[RANK]], [of(RANK, (7, 10), 5, dtype), w[RANK]]]
            more = sum(of(q, shape, 4, dtype).double() @ of(q, (7, 10), 5, dtype).double().t() for q in EVERY)
            close(dt.linear_all_reduce(*others), wanted + more, 4 * RANKS)


def check_all_gather(dtypes=tuple(ROUNDING)):
    for dtype in dtypes:
        for shape, dim in (((6, 10), 0), ((3, 4, 10), 0), ((3, 4, 10), 1), ((3, 4, 10), -2)):
            x, w = every(shape, 1, dtype), [of(RANK, (7, 10), 2, dtype), of(RANK, (3, 10), 3, dtype)]
            b = [of(RANK, (7,), 4, dtype), None]
            whole, outs = dt.all_gather_linear(x[RANK], w, b, dim=dim, gathered=True)
            wanted = torch.cat(x, dim)
            assert torch.equal(whole, wanted)
            close(outs[0], wanted.double() @ w[0].double().t() + b[0].double(), 2)
            close(outs[1], wanted.double() @ w[1].double().t(), 2)
            assert all(each.movedim(dim, 0).is_contiguous() for each in (whole, *outs))
            close(dt.all_gather_linear(x[RANK], w[0], b[0], dim=dim), outs[0], 2)
            turned = x[RANK].transpose(0, 1).contiguous().transpose(0, 1)
            assert torch.equal(dt.all_gather_linear(turned, w, b, dim=dim, gathered=True)[0], wanted)
            close(dt.linear_of_replicated(wanted, w[0], b[0]), outs[0], 2)


def check_reduce_scatter(dtypes=tuple(ROUNDING)):
    for dtype in dtypes:
        for shape, dim in (((6 * RANKS, 10), 0), ((2 * RANKS, 4, 10), 0), ((3, 4 * RANKS, 10), 1)):
            x, w, b = every(shape, 1, dtype), every((7, 10), 2, dtype), of(0, (7,), 3, dtype)
            wanted = sum(a.double() @ c.double().t() for a, c in zip(x, w, strict=True))
            own = wanted.chunk(RANKS, dim)[RANK]
            out = dt.linear_reduce_scatter(x[RANK], w[RANK], b, dim=dim)
            close(out, own + b.double(), 2 * RANKS)
            assert out.is_contiguous()
            close(dt.linear_reduce_scatter(x[RANK], w[RANK], dim=dim, op="avg"), own / RANKS, 2 * RANKS)


def check_gathered_columns():
    """Every schedule adds up the products of all ranks' columns; half types in float32."""

    def run():
        for dtype in (torch.float32, torch.bfloat16):
            x, w = every((5, 4), 1, dtype), [of(RANK, (n, 4 * RANKS), 2 + n, dtype) for n in (7, 3)]
            for gathered in (True, False):
                whole, outs = kernels.gather_columns_linear(x[RANK], w, gathered, dist.group.WORLD.group_name)
                assert torch.equal(whole, torch.cat(x, 1)) if gathered else whole is None
                for out, by in zip(outs, w, strict=True):
                    close(out, torch.cat(x, 1).double() @ by.double().t(), RANKS)

    by_every_schedule(run)


def check_columns_that_differ_by_rank():
    """Each rank may have other columns of a column-parallel weight, and other rows of a row-parallel one."""
    widths = [3 + 2 * rank for rank in EVERY]
    x, w = every((4, 6), 1), [of(rank, (widths[rank], 6), 2) for rank in EVERY]
    whole = torch.cat(x).double()
    close(dt.all_gather_linear(x[RANK], w[RANK]), whole @ w[RANK].double().t(), 2)
    x, w = ([of(rank, (rows, widths[rank]), 3) for rank in EVERY] for rows in (4 * RANKS, 5))
    wanted = sum(a.double() @ b.double().t() for a, b in zip(x, w, strict=True))
    close(dt.linear_reduce_scatter(x[RANK], w[RANK]), wanted.chunk(RANKS)[RANK], 4)
    close(dt.linear_all_reduce(x[RANK], w[RANK]), wanted, 4)


def check_every_schedule_computes_the_same():
    before = set(map(id, calls()))
    assert before, "the checks above made calls"
    dtypes = tuple(ROUNDING) if RANKS == 2 else ONE_OF_EACH_WIDTH  # two ranks have each dtype by each schedule
    by_every_schedule(lambda: [check(dtypes) for check in (check_all_reduce, check_all_gather, check_reduce_scatter)])
    assert all(is_serial(call.plan.schedule) for call in calls())
    most = max(len(list(call.case.schedules())) for call in calls())
    assert most >= 5, most


def without_native(run):
    """Make calls as they are made where no native code is."""
    with mock.patch.object(products, "_native", return_value=None):
        return run()


def check_native_calls_equal_those_in_python():
    """Forward and backward, bit by bit. Python makes the backward of a gathered result that is used itself."""

    def step(shape, dim, op, *, uses_whole):
        leaves = of(RANK, shape, 1), of(RANK, (8, 6), 2), of(RANK, (5, 8), 5), of(RANK, (8,), 3), of(0, (5,), 4)
        x, w1, w2, b1, b2 = (each.clone().requires_grad_() for each in leaves)
        whole, hidden = dt.all_gather_linear(x, w1, b1, dim=dim, gathered=True)
        several = dt.all_gather_linear(x, [w1, w2[:, :6]], [None, b2], dim=dim)
        out = dt.linear_reduce_scatter([hidden, hidden.tanh()], [w2, w2], b2, dim=dim, op=op)
        reduced = dt.linear_all_reduce(out, w2.t(), op=op)
        loss = reduced.sum() + several[0].mean() + several[1].square().sum()
        (loss + whole.mean() if uses_whole else loss).backward()
        with torch.no_grad():
            found = [dt.linear_all_reduce(x, w1, b1, op=op), dt.all_gather_linear(x, w1, dim=dim)]
        return [whole, hidden, *several, out, reduced, *found, *(each.grad for each in (x, w1, w2, b1, b2))]

    def counted():
        native = sum(call.native.calls for call in calls() if call.native)
        return torch.tensor([native, sum(call.calls_in_python for call in calls())])

    for shape, dim in (((4, 6), 0), ((2, 4, 6), 1), ((2, 4, 6), -2)):
        for op, uses_whole in (("sum", False), ("avg", False), ("sum", True)):
            run = partial(step, shape, dim, op, uses_whole=uses_whole)
            run()  # plans are looked up
            before = counted()
            found = run()
            assert (counted() - before).tolist() == ([8, 2] if uses_whole else [9, 0]), (before, counted())
            for one, other in zip(found, without_native(run), strict=True):
                assert torch.equal(one, other), (shape, dim, op)
                assert one.stride() == other.stride(), (shape, dim, op)


def check_ranks_that_know_different_gathers():
    """Columns may differ by rank, so that a call is known to one rank and new to another: all make it serially."""
    x = every((4, 6), 1)
    whole = torch.cat(x).double()

    def gather(columns):
        w = of(RANK, (columns, 6), 2)
        close(dt.all_gather_linear(x[RANK], w), whole @ w.double().t(), 2)

    def plan(columns):
        found = [each for each in calls() if each.case.kind == "all_gather" and each.case.widths == (columns,)]
        return next(each for each in found if not each.case.gathered and each.case.rows == 4)

    def mixed(columns):
        for _ in range(2):
            gather(31 if RANK == 0 else columns)
        assert is_serial(plan(31 if RANK == 0 else columns).plan.schedule)

    gather(31)
    mixed(33)  # known natively to rank 0
    call = plan(31)
    overlapped = list(call.case.schedules())[1]
    call.use(Plan(overlapped, "measured"), dist.group.WORLD)
    mixed(35)  # known to rank 0, by a schedule that overlaps
    call.use(Plan(overlapped, "measured"), dist.group.WORLD)
    gather(31 if RANK == 0 else 33)  # known to all, but by different schedules
    assert is_serial(call.plan.schedule) or RANK
    for _ in range(2):
        with dt.warm_up():
            mixed_in_warm_up = 31 if RANK == 0 else 37
            gather(mixed_in_warm_up)
    assert plan(mixed_in_warm_up).plan.origin == "measured"
    with dt.warm_up():
        gather(31 if RANK == 0 else 39)
    call.use(Plan(next(iter(call.case.schedules())), "measured"), dist.group.WORLD)
    gather(31)


def check_native_calls_that_do_not_fit_are_refused():
    """Also in backward, where only one rank's results have other gradients."""
    x, w = of(RANK, (2 * RANKS, 6), 1), of(RANK, (4, 6), 2)
    for _ in range(2):
        dt.linear_all_reduce(x, w), dt.linear_reduce_scatter(x, w), dt.all_gather_linear(x, w)
    one, other = (dt.linear_all_reduce, dt.linear_reduce_scatter) if RANK == 0 else (dt.linear_reduce_scatter,) * 2
    raised(lambda: one(x, w), "rank 0: all_reduce", "rank 1: reduce_scatter")
    close(other(x, w), dt.linear_reduce_scatter(x, w))
    grown = [each.clone().requires_grad_() for each in (x, w)]
    for call in (dt.all_gather_linear, dt.linear_reduce_scatter):
        call(*grown).sum().backward()
    made = dt.all_gather_linear(*grown), dt.linear_reduce_scatter(*grown)
    raised(made[min(RANK, 1)].sum().backward, "do not fit")
    close(dt.linear_reduce_scatter(x, w), other(x, w))


def check_halves_are_rounded_once():
    """Sums over the ranks: each rank's product is rounded, then all are added in float32 and rounded once."""
    x, w = every((8, 16), 6, torch.bfloat16), every((5, 16), 7, torch.bfloat16)
    products = torch.stack([a @ c.t() for a, c in zip(x, w, strict=True)])
    wanted = products.float().sum(0).bfloat16()
    assert torch.equal(dt.linear_all_reduce(x[RANK], w[RANK]), wanted)
    own = dt.linear_reduce_scatter(x[RANK].repeat(RANKS, 1), w[RANK])
    assert torch.equal(own, wanted)


def whole_and_parts(run, whole, *leaves):
    """Return gradients of leaves by `run`, and of float64 copies by `whole`."""
    parts = [each.clone().requires_grad_() for each in leaves]
    run(*parts)
    found = [each.grad for each in parts]
    wide = [each.double().requires_grad_() for each in leaves]
    whole(*wide)
    return zip(found, [each.grad for each in wide], strict=True)


def check_gradients_of_sequence_parallel_layers(dtypes=ONE_OF_EACH_WIDTH):
    """A column-parallel, then a row-parallel layer: gradients equal those of one rank with whole tensors."""
    for dtype in dtypes:
        for shape, dim in (((4, 6), 0), ((2, 4, 6), 1)):
            x, g = every(shape, 1, dtype), every((*shape[:-1], 5), 2, dtype)
            w1, w2, b1, b2 = (every(s, 3 + i, dtype) for i, s in enumerate([(8, 6), (5, 8), (8,), (5,)]))

            def run(a, v1, v2, c1, c2, dim=dim, g=g):
                hidden = dt.all_gather_linear(a, v1, c1, dim=dim)
                out = dt.linear_reduce_scatter(torch.tanh(hidden), v2, c2, dim=dim)
                out.backward(g[RANK])

            leaves = [x[RANK], w1[RANK], w2[RANK], b1[RANK], b2[0]]
            parts = [each.clone().requires_grad_() for each in leaves]
            run(*parts)
            wide = [
                each.double().requires_grad_()
                for each in (torch.cat(x, dim), torch.cat(w1), torch.cat(w2, 1), torch.cat(b1), b2[0])
            ]
            out = linear(torch.tanh(linear(wide[0], wide[1], wide[3])), wide[2], wide[4])
            out.backward(torch.cat(g, dim).double())
            n = RANKS
            close(parts[0].grad, wide[0].grad.chunk(n, dim)[RANK], 8)
            close(parts[1].grad, wide[1].grad.chunk(n, 0)[RANK], 8)
            close(parts[2].grad, wide[2].grad.chunk(n, 1)[RANK], 8)
            close(parts[3].grad, wide[3].grad.chunk(n, 0)[RANK], 8)
            close(parts[4].grad, wide[4].grad, 8)


def check_gradients_of_replicated_layers():
    for op, scale in (("sum", 1), ("avg", RANKS)):
        x, g = of(0, (2, 4, 6), 1), of(0, (2, 4, 5), 2)
        w1, w3, w2, b1, b2 = (every(s, 3 + i) for i, s in enumerate([(8, 6), (8, 6), (5, 8), (8,), (5,)]))
        parts = [each.clone().requires_grad_() for each in (x, w1[RANK], w3[RANK], w2[RANK], b1[RANK], b2[0])]
        a, v1, v3, v2, c1, c2 = parts
        left, right = dt.linear_of_replicated(a, [v1, v3], [c1, None])
        dt.linear_all_reduce(torch.tanh(left) * right, v2, c2, op=op).backward(g)
        wide = [each.double().requires_grad_() for each in (x, *map(torch.cat, (w1, w3)), torch.cat(w2, 1))]
        c1, c2 = torch.cat(b1).double().requires_grad_(), b2[0].double().requires_grad_()
        hidden = torch.tanh(linear(wide[0], wide[1], c1)) * linear(wide[0], wide[2])
        linear(hidden, wide[3] / scale, c2).backward(g.double())
        n = RANKS
        close(parts[0].grad, wide[0].grad, 8)
        for place, axis in ((1, 0), (2, 0), (3, 1)):
            close(parts[place].grad, wide[place].grad.chunk(n, axis)[RANK], 8)
        close(parts[4].grad, c1.grad.chunk(n)[RANK], 8)
        close(parts[5].grad, c2.grad, 8)


def check_gradients_by_every_schedule():
    dtypes = ONE_OF_EACH_WIDTH if RANKS == 2 else (torch.float32,)
    by_every_schedule(
        lambda: (check_gradients_of_sequence_parallel_layers(dtypes), check_gradients_of_replicated_layers())
    )
    assert any(call.case.later for call in calls())


def check_gradients_of_some_results():
    """Results and inputs without gradients are left out; the gathered input has its gradient too."""
    x, w = of(RANK, (4, 6), 1).requires_grad_(), [of(RANK, (3, 6), 2), of(RANK, (5, 6), 3).requires_grad_()]
    whole, (left, _) = dt.all_gather_linear(x, w, gathered=True)
    (left.sum() + 2 * whole.sum()).backward()
    wanted = sum(each.sum(0) for each in every((3, 6), 2)) + 2 * RANKS
    close(x.grad, wanted.expand(4, 6), 4)
    assert w[1].grad is None
    x.grad = None
    dt.all_gather_linear(x, w, gathered=True)[0].sum().backward()
    close(x.grad, torch.full((4, 6), float(RANKS)), 4)
    second = of(RANK, (4, 6), 1).requires_grad_()
    out = dt.all_gather_linear(second, w[0])
    (grad,) = torch.autograd.grad((out * out).sum(), second, create_graph=True)
    assert grad.requires_grad
    grad.sum().backward()
    gram = sum(each.t() @ each for each in every((3, 6), 2))
    close(second.grad, (2 * torch.ones(4, 6) @ gram), 8)


def check_gradients_of_gradients():
    """Of a weight's gradient with respect to the input, which the gathered input carries."""
    x, w, g = of(RANK, (4, 6), 1).requires_grad_(), of(RANK, (3, 6), 2).requires_grad_(), of(RANK, (4 * RANKS, 3), 3)
    (grad,) = torch.autograd.grad(dt.all_gather_linear(x, w), w, g, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), x)
    whole = torch.cat(every((4, 6), 1)).double()
    wanted = sum(2 * g.double() @ (g.double().t() @ whole) for g in every((4 * RANKS, 3), 3))
    close(second, wanted.chunk(RANKS)[RANK], 16)


def check_empty_tensors_and_groups_of_one_rank():
    w = of(RANK, (7, 10), 2)
    assert dt.linear_all_reduce(torch.empty(0, 10), w).shape == (0, 7)
    assert dt.all_gather_linear(torch.empty(2, 0, 10), w, dim=1).shape == (2, 0, 7)
    own = [dist.new_group([rank], backend="dovetail") for rank in EVERY][RANK]
    x = of(RANK, (4, 10), 1)
    for call in (dt.linear_all_reduce, dt.linear_reduce_scatter, dt.all_gather_linear):
        close(call(x, w, group=own), x.double() @ w.double().t(), 2)
    whole, _ = dt.all_gather_linear(x, w, group=own, gathered=True)
    assert whole.data_ptr() != x.data_ptr()


def check_strides_of_fake_tensors_and_the_registry():
    """All of opcheck's tests: schema, autograd's registration, fake tensors, and ahead-of-time graphs."""
    name = dist.group.WORLD.group_name
    for grad in (False, True):

        def leaf(shape, seed, grad=grad):
            return of(RANK, shape, seed).requires_grad_(grad)

        x, w, v, b = leaf((2, 2 * RANKS, 6), 1), leaf((4, 6), 2), leaf((3, 6), 3), leaf((4,), 4)
        flat = leaf((2 * RANKS, 6), 5)
        check = torch.library.opcheck
        check(ops.linear_all_reduce, ([x, x], [w, w], b, "sum", name))
        check(ops.linear_reduce_scatter, ([x], [w], b, "sum", 1, name))
        check(ops.all_gather_linear, (x, [w, v], [b, None], 1, True, name))
        check(ops.linear_of_replicated, (x, [w, v], [b, None], name))
        if not grad:
            turned = of(RANK, (2 * RANKS, 2, 6), 1).transpose(0, 1)
            check(ops.all_gather_linear, (turned, [w], [None], 0, False, name))
            check(ops.linear_reduce_scatter, ([turned], [w], None, "avg", 1, name))
            check(ops.linear_reduce_scatter, ([flat], [w], None, "avg", 0, name))
            check(ops.linear_gradients, ([x @ w.t()], [w], x, "sum", 1, name))
            check(ops.linear_gradients, ([x @ w.t()], [w], x, "sum", None, name))
            grads, several = of(RANK, (2, 6), 6), [of(RANK, (2 * RANKS, 3), 7), of(RANK, (2 * RANKS, 4), 8)]
            check(ops.linear_scattered_gradients, (grads, [v.t(), w.t()], several, 0, name))


def check_autocast():
    x, w, b = of(RANK, (2 * RANKS, 6), 1), of(RANK, (4, 6), 2), of(0, (4,), 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = dt.linear_all_reduce(x, w, b), dt.linear_reduce_scatter(x, w, b), dt.all_gather_linear(x, [w], [b])[0]
        assert dt.linear_all_reduce(x.double(), w.double()).dtype == torch.float64
    assert all(each.dtype == torch.bfloat16 for each in found)
    half = [each.bfloat16() for each in (x, w, b)]
    assert torch.equal(found[0], dt.linear_all_reduce(*half))


def check_vmap():
    x, w, b = of(RANK, (3, 2 * RANKS, 5, 6), 1), of(RANK, (4, 6), 2), of(0, (4,), 3)
    for axis in (0, 1, 2):
        rows = x.movedim(0, axis)
        for call, dims in ((dt.linear_all_reduce, [{}]), (dt.all_gather_linear, [{"dim": 0}, {"dim": 1}]),
                           (dt.linear_reduce_scatter, [{"dim": 0}]), (dt.linear_of_replicated, [{}])):  # fmt: skip
            for about in dims:
                found = torch.vmap(lambda a, call=call, about=about: call(a, w, b, **about), in_dims=axis)(rows)
                wanted = torch.stack([call(each, w, b, **about) for each in rows.unbind(axis)])
                close(found, wanted, 2)
    raised(lambda: torch.vmap(lambda v: dt.linear_all_reduce(x[0], v))(torch.stack([w, w])), "vmap over weights")


def check_compiled():
    """torch.compile traces through the operators, forward and backward, without a break."""
    x, w, v = of(RANK, (2, 6), 1).requires_grad_(), of(RANK, (4, 6), 2).requires_grad_(), of(RANK, (5, 4), 3)

    def layer(a, b, c):
        return dt.linear_reduce_scatter(dt.all_gather_linear(a, b).relu(), c)

    layer(x, w, v).sum().backward()
    wanted, x.grad, w.grad = (x.grad, w.grad), None, None
    torch.compile(layer, fullgraph=True, backend="aot_eager")(x, w, v).sum().backward()
    assert torch.equal(x.grad, wanted[0])
    assert torch.equal(w.grad, wanted[1])


def check_invalid_arguments_are_refused_on_all_ranks():
    x, w, b = of(RANK, (2 * RANKS, 6), 1), of(RANK, (4, 6), 2), of(0, (4,), 3)
    is_first = RANK == 0
    raised(lambda: dt.linear_all_reduce(x, w[:, :5] if is_first else w), "rank 0", "(n, k)")
    raised(lambda: dt.linear_all_reduce(x.double() if is_first else x, w), "rank 0", "different dtypes")
    raised(lambda: dt.linear_all_reduce(x, w, b[:3] if is_first else b), "rank 0", "bias")
    raised(lambda: dt.linear_all_reduce(x[:2] if is_first else x, w), "rank 1", f"{2 * RANKS} × 6", "2 × 6")
    raised(lambda: dt.all_gather_linear(x[:1] if is_first else x, w), "do not fit")
    raised(lambda: dt.linear_reduce_scatter(x[:-1], w), "ranks divide evenly")
    raised(lambda: dt.linear_reduce_scatter(x, w, op="max"), "no reduction 'max'")
    raised(lambda: dt.all_gather_linear(x, w, dim=1), "dim 1")
    raised(lambda: dt.all_gather_linear(x, [w], [None, None]), "1 weights and 2 biases")
    raised(lambda: dt.all_gather_linear(x.int(), w.int()), "int32")
    raised(lambda: dt.linear_all_reduce(x.to("meta") if is_first else x, w), "rank 0", "device meta")
    raised(
        lambda: (dt.all_gather_linear if is_first else dt.linear_all_reduce)(x, w), "rank 0: all_gather", "rank 1: all_"
    )
    raised(lambda: dt.linear_all_reduce(x, w, group="nobody"), "no process group 'nobody'")
    other = dist.new_group(backend="gloo")
    raised(lambda: dt.linear_all_reduce(x, w, group=other), 'backend "dovetail"', "gloo")
    wanted = sum(a @ c.t() for a, c in zip(every((2 * RANKS, 6), 1), every((4, 6), 2), strict=True))
    close(dt.linear_all_reduce(x, w), wanted, 4)


def check_plans_are_measured_saved_and_explained():
    x, w = of(RANK, (40, 24), 1).requires_grad_(), of(RANK, (16, 24), 2).requires_grad_()
    wanted = sum(a @ c.t() for a, c in zip(every((40, 24), 1), every((16, 24), 2), strict=True))

    def step():
        x.grad = None
        out = dt.linear_reduce_scatter(dt.linear_all_reduce(x, w).repeat(1, 2)[: 2 * RANKS], w.repeat(1, 2)[:, :32])
        dt.all_gather_linear(out, of(RANK, (8, 16), 3)).sum().backward()

    step()
    assert "no plan is known" in dt.explain()
    assert "torch_linear_ranks.py" in dt.explain()
    with dt.warm_up():
        step()
        close(dt.linear_all_reduce(x, w).detach(), wanted, 4)
    step()
    text = dt.explain(dist.group.WORLD)
    about = text[text.index("all_reduce of 40 × 24 by 16") :].split("\n")
    assert "(measured)" in about[1], about
    assert "predicted" in about[2], about
    assert any(line.startswith("  seen: ") for line in about[3:6]), about
    found = {call.case: call.plan for call in calls() if call.plan.origin == "measured"}
    dist.barrier()
    for table in (tables[dist.group.WORLD],):
        for key in [key for key, call in table.items() if call.case in found]:
            del table[key]
    step()
    again = {call.case: call.plan for call in calls() if call.case in found}
    assert again
    for case, plan in again.items():
        assert plan.origin == "saved", case
        assert plan.schedule == found[case].schedule, case
        assert abs(plan.serial_s - found[case].serial_s) < 1e-9


def check_only_warm_ranks_are_refused():
    x, w = of(RANK, (4, 6), 1), of(RANK, (4, 6), 2)
    with dt.warm_up() if RANK == 0 else warnings.catch_warnings():
        raised(lambda: dt.linear_all_reduce(x, w), "inside warm_up")


def check_steps_leak_nothing():
    x, w = of(RANK, (8, 6), 1).requires_grad_(), of(RANK, (4, 6), 2).requires_grad_()

    def step():
        x.grad = w.grad = None
        dt.linear_reduce_scatter(dt.all_gather_linear(x, w), w[:2, :4]).sum().backward()

    def count():
        gc.collect()
        return len(gc.get_objects())

    for _ in range(20):
        step()
    before = count()
    for _ in range(300):
        step()
    assert count() - before < 100, (before, count())


def check_a_destroyed_group_is_forgotten():
    before = len(tables)
    group = dist.new_group(list(EVERY))
    with dt.warm_up():
        dt.linear_all_reduce(of(RANK, (8, 6), 1), of(RANK, (4, 6), 2), group=group)
    assert len(tables) == before + 1
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert len(tables) == before


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch, about names that it will drop
    dist.init_process_group("dovetail", init_method=f"file://{FOLDER}/world", rank=RANK, world_size=RANKS)
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
