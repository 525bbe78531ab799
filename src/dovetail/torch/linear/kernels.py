"""kernels: the operators on CPU tensors: check, agree, run the plan's lanes, and lay the results out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch.nn.functional import linear

from dovetail.core import OperatorError
from dovetail.torch import spans
from dovetail.torch.linear.across import multiply
from dovetail.torch.linear.case import Case
from dovetail.torch.linear.costs import Timed
from dovetail.torch.linear.kinds import COLUMNS, GATHER, GATHERS, REDUCE, SCATTER
from dovetail.torch.linear.plans import Call, differing, is_warming, ready, wants_plan
from dovetail.torch.linear.serial import Made
from dovetail.torch.linear.warming import choose
from dovetail.torch.linear.wire import HALVES, PlansDiffer, SettlingWire, Wire

OPS = ("sum", "avg")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NAMES = {REDUCE: "linear_all_reduce", SCATTER: "linear_reduce_scatter"}  # of operators in profiles, by collective
Rows = Sequence[Any]


def rows_of(tensor: Any, dim: int | None) -> Any:
    """Return a matrix of the rows of a tensor, axis `dim` outermost; None: in the tensor's order."""
    if dim:
        tensor = tensor.movedim(dim, 0)
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() != 2 else tensor


def shaped(matrix: Any, like: Any, dim: int, length: int) -> Any:
    """Return a matrix of rows as a tensor like another, but with `length` on axis `dim`, which lies outermost."""
    if like.dim() == 2:
        return matrix
    others = [size for axis, size in enumerate(like.shape[:-1]) if axis != dim]
    return matrix.view(length, *others, matrix.shape[-1]).movedim(0, dim)


def linear_all_reduce(inputs: Rows, weights: Rows, bias: Any, op: str, group_name: str, row: Any = None) -> Any:
    """Return `Σ over ranks and i of inputs[i] · weights[i]ᵀ`, plus the bias, on every rank.

    `row`: added to this rank's products, before the sum.
    """
    key = ("all_reduce", op, _key(inputs, weights, (bias, row)))
    build = partial(_reducing, "all_reduce", inputs, weights, bias, op, None, row=row)
    group, call, settle = ready(group_name, key, build)
    matrices = [rows_of(each, None) for each in inputs]
    _, (out,), _ = _run((call, settle), group, matrices, [each.t() for each in weights], [row])
    if bias is not None:
        out.add_(bias)
    return out if inputs[0].dim() == 2 else out.view(*inputs[0].shape[:-1], out.shape[-1])


def linear_reduce_scatter(
    inputs: Rows, weights: Rows, bias: Any, op: str, dim: int, group_name: str, row: Any = None
) -> Any:
    """Return this rank's part along `dim` of `Σ over ranks and i of inputs[i] · weights[i]ᵀ`, plus the bias.

    `row`: added to this rank's products, before the sum.
    """
    key = ("reduce_scatter", op, dim, _key(inputs, weights, (bias, row)))
    build = partial(_reducing, "reduce_scatter", inputs, weights, bias, op, dim, row=row)
    group, call, settle = ready(group_name, key, build)
    dim %= inputs[0].dim()
    matrices = [rows_of(each, dim) for each in inputs]
    _, (out,), _ = _run((call, settle), group, matrices, [each.t() for each in weights], [row])
    if bias is not None:
        out.add_(bias)
    return shaped(out, inputs[0], dim, inputs[0].shape[dim] // group.size()).contiguous()


def all_gather_linear(
    tensor: Any, weights: Rows, biases: Rows, dim: int, gathered: bool, group_name: str
) -> tuple[Any, list[Any]]:
    """Return the tensor gathered along `dim` (None unless `gathered`), and its product with each weight."""
    key = ("all_gather", dim, gathered, _key((tensor,), weights, biases))
    group, call, settle = ready(group_name, key, partial(_gathering, tensor, weights, biases, dim, gathered))
    dim %= tensor.dim()
    matrix = rows_of(tensor, dim)
    matrix = matrix if matrix.is_contiguous() else matrix.contiguous()
    whole, outs, _ = _run((call, settle), group, [matrix], [each.t() for each in weights], biases)
    length = tensor.shape[dim] * group.size()
    results = [shaped(each, tensor, dim, length) for each in outs]
    return shaped(whole, tensor, dim, length) if gathered else None, results


def gather_columns_linear(tensor: Any, weights: Rows, gathered: bool, group_name: str) -> tuple[Any, list[Any]]:
    """Return a matrix (m, k) gathered along its columns (None unless `gathered`), and its product with each weight."""
    key = ("all_gather_columns", gathered, _key((tensor,), weights, ()))
    group, call, settle = ready(group_name, key, partial(_gathering_columns, tensor, weights, gathered))
    whole, outs, _ = _run(
        (call, settle), group, [tensor.contiguous()], [each.t() for each in weights], [None] * len(weights)
    )
    return whole if gathered else None, outs


def linear_of_replicated(tensor: Any, weights: Any, biases: Any, group: str) -> list[Any]:
    """Return a replicated input's product with each weight. No data move but for its gradient's."""
    return [linear(tensor, each, bias) for each, bias in zip(weights, biases, strict=True)]


def linear_gradients(
    grads: Rows, weights: Rows, tensor: Any, op: str, dim: int | None, group_name: str
) -> tuple[Any, list[Any]]:
    """Return the gradients of a gathered (`dim`) or replicated (None) input of products, and those of the weights.

    `tensor`: the whole input. The weight gradients are computed while the input's gradient is reduced.
    """
    kind = "all_reduce" if dim is None else "reduce_scatter"
    key = ("gradients", kind, op, dim, _key(grads, weights, (tensor,)))

    def build(group: Any) -> Case:
        return _reducing(kind, grads, [each.t() for each in weights], None, op, dim, group, later=True)

    group, call, settle = ready(group_name, key, build)
    place = None if dim is None else dim % grads[0].dim()
    matrices, whole = [rows_of(each, place) for each in grads], rows_of(tensor, place)

    def later() -> list[Any]:
        return [each.t().mm(whole) for each in matrices]

    _, (out,), found = _run((call, settle), group, matrices, weights, [None], later)
    if place is None:
        return out.view(tensor.shape), found
    return shaped(out, grads[0], place, grads[0].shape[place] // group.size()).contiguous(), found


def linear_scattered_gradients(
    grad: Any, weights: Rows, inputs: Rows, dim: int, group_name: str
) -> tuple[Any, list[Any], list[Any]]:
    """Return the gradient of a scattered sum of products, gathered along `dim`; those of the inputs; of the weights.

    The parts of the weight gradients that need this rank's rows are computed while other ranks' rows arrive. In half
    types they are computed whole, and so rounded once.
    """
    key = ("scattered_gradients", dim, _key((grad,), weights, inputs))
    is_cut = grad.dtype not in HALVES

    def build(group: Any) -> Case:
        turned = [each.t() for each in weights]
        return _gathering(grad, turned, [None] * len(weights), dim, True, group)._replace(later=is_cut)

    group, call, settle = ready(group_name, key, build)
    dim %= grad.dim()
    matrix, factors = rows_of(grad, dim).contiguous(), [rows_of(each, dim) for each in inputs]
    begin = group.rank() * len(matrix)
    own, others = slice(begin, begin + len(matrix)), (slice(0, begin), slice(begin + len(matrix), None))

    def of_own() -> list[Any]:
        return [matrix.t().mm(each[own]) for each in factors]

    def of_all(whole: Any, found: Any) -> list[Any]:
        if found is None:
            return [whole.t().mm(each) for each in factors]
        for made, each in zip(found, factors, strict=True):
            for rows in others:
                if len(whole[rows]):
                    made.addmm_(whole[rows].t(), each[rows])
        return list(found)

    none = [None] * len(weights)
    about = group, [matrix], weights, none, of_own if is_cut else None, of_all
    whole, outs, found = _run((call, settle), *about)
    length = grad.shape[dim] * group.size()
    return shaped(whole, grad, dim, length), [shaped(each, grad, dim, length) for each in outs], found


def _run(
    asked: tuple[Call, Callable[[], bool]],
    group: Any,
    matrices: Rows,
    weights: Rows,
    biases: Rows,
    later: Callable[[], Any] | None = None,
    finish: Callable[[Any, Any], Any] = lambda whole, found: found,
) -> Made:
    """Run a call by its plan; inside `warm_up`, choose the plan first.

    `asked`: the call, and what settles it. `finish`: makes the rest of what `later` began, given the gathered input.
    """
    call, settle = asked

    def run(lanes: Any, wire: Any) -> Made:
        whole, outs, found = lanes.run(group, wire, matrices, weights, biases, later)
        return whole, outs, finish(whole, found)

    if is_warming() and wants_plan(call):
        choose(call, group, run, _timed(call, group, matrices, weights, biases, later))
    begin = perf_counter()
    with spans.shown(_title(call, group) if spans.are_on() else ""):
        try:
            wire = SettlingWire(call.wire, settle)
            found = run(call.lanes, wire)
            wire.settle()
        except PlansDiffer:
            call.use(differing(call.case), group)
            found = run(call.lanes, call.wire)
    call.calls_in_python += 1
    call.seconds_in_python += perf_counter() - begin
    return found


def _title(call: Call, group: Any) -> str:
    """Return the name of a call in profiles, with the bytes that its collective moves to or from this rank."""
    case = call.case
    moved = case.ranks * case.rows * case.depths[0] if case.kind in GATHERS else case.rows * case.widths[0]
    what = NAMES.get(case.kind, "all_gather_linear")
    return spans.title(what, moved * getattr(torch, case.dtype).itemsize, group.group_name, call.words)


def _pairs(case: Case, matrices: Rows, weights: Rows, biases: Rows) -> Any:
    if case.kind == COLUMNS:
        return [(matrices[0], by[: matrices[0].shape[1]], None) for by in weights]
    if case.kind in GATHERS:
        return [(matrices[0], by, row) for by, row in zip(weights, biases, strict=True)]
    return [(a, by, None) for a, by in zip(matrices, weights, strict=True)]


def _timed(call: Call, group: Any, matrices: Rows, weights: Rows, biases: Rows, later: Any) -> Timed:
    """Return what measures a product of n rows or columns, the weight gradients, and a collective of n rows.

    Results lie in new memory, as those of a call do: its first use costs time. Of columns, the result is copied.
    """
    case, width = call.case, max(by.shape[1] for by in weights)
    whole = matrices[0] if case.kind not in GATHERS else matrices[0].repeat(case.ranks, 1)
    gathers, parts = case.kind in GATHERS, case.ranks if case.kind == SCATTER else 1
    new = partial(torch.empty, len(whole), width, dtype=whole.dtype)
    out, into_whole = new(), torch.empty_like(whole if gathers else whole[:0])
    wires = [Wire(case.op, whole.dtype, case.ranks, is_async=each) for each in (False, True)]

    def product(count: int, across: bool) -> None:
        if across:
            columns = count // parts
            tile = out.view(-1)[: len(whole) * columns].view(len(whole), columns)
            multiply(tile, slice(0, columns), matrices, weights, None)
            torch.empty(len(whole) // parts, width, dtype=whole.dtype)[:, :columns] = tile[: len(whole) // parts]
            return
        for a, by, row in _pairs(case, matrices, weights, biases):
            part, into = (
                (whole if gathers else a)[:count],
                (out if case.kind == SCATTER else new())[:count, : by.shape[1]],
            )
            torch.mm(part, by, out=into) if row is None else torch.addmm(row, part, by, out=into)

    def begin(is_async: bool, rows: int) -> Any:
        if gathers:
            return wires[is_async].begin(group, GATHER, into_whole[: rows * case.ranks], matrices[0][:rows])
        to = torch.empty(rows // case.ranks, width, dtype=whole.dtype) if case.kind == SCATTER else out[:rows]
        return wires[is_async].begin(group, case.kind, to, out[:rows])

    return Timed(product, begin, later)


def _key(inputs: Rows, weights: Rows, others: Rows) -> tuple[Any, ...]:
    return tuple([None if each is None else (each.shape, each.dtype) for each in (*inputs, *weights, *others)])


def _reducing(
    kind: str,
    inputs: Rows,
    weights: Rows,
    bias: Any,
    op: str,
    dim: int | None,
    group: Any,
    *,
    row: Any = None,
    later: bool = False,
) -> Case:
    """Return the case of a reduction of products. Raises OperatorError if the arguments are invalid."""
    if op not in OPS:
        raise OperatorError(f"no reduction '{op}'", hint=f"one of {', '.join(OPS)}")
    if not inputs or len(inputs) != len(weights):
        raise OperatorError(f"{len(inputs)} inputs and {len(weights)} weights", hint="a weight for each input")
    for tensor, weight in zip(inputs, weights, strict=True):
        _check_pair(tensor, weight)
        if tensor.shape[:-1] != inputs[0].shape[:-1] or weight.shape[0] != weights[0].shape[0]:
            found = f"inputs {_shapes(inputs)}, weights {_shapes(weights)}"
            raise OperatorError("products that cannot be added up", found=found)
        _check_dtype(tensor, inputs[0])
    for each in (bias, row):
        _check_bias(each, weights[0], inputs[0])
    length = 0
    if dim is not None:
        length = inputs[0].shape[_axis(inputs[0], dim)]
        if length % group.size():
            found = f"shape {list(inputs[0].shape)}, dim {dim}, {group.size()} ranks"
            raise OperatorError("reduce_scatter needs a number of rows that the ranks divide evenly", found=found)
    rows = inputs[0].numel() // inputs[0].shape[-1] if inputs[0].shape[-1] else inputs[0].shape[:-1].numel()
    depths, widths = tuple([each.shape[-1] for each in inputs]), (weights[0].shape[0],)
    return Case(kind, group.size(), rows, depths, widths, _name(inputs[0]), op, later=later)


def _gathering(tensor: Any, weights: Rows, biases: Rows, dim: int, gathered: bool, group: Any) -> Case:
    """Return the case of products of a gathered input. Raises OperatorError if the arguments are invalid."""
    if not weights or len(weights) != len(biases):
        raise OperatorError(f"{len(weights)} weights and {len(biases)} biases", hint="a bias, or None, for each weight")
    for weight, bias in zip(weights, biases, strict=True):
        _check_pair(tensor, weight)
        _check_bias(bias, weight, tensor)
    _axis(tensor, dim)
    rows = tensor.shape[:-1].numel()
    widths = tuple([each.shape[0] for each in weights])
    about = _name(tensor), "sum", gathered
    return Case("all_gather", group.size(), rows, (tensor.shape[-1],), widths, *about)


def _gathering_columns(tensor: Any, weights: Rows, gathered: bool, group: Any) -> Case:
    """Return the case of products of a matrix gathered by columns. Raises OperatorError if arguments are invalid."""
    ranks = group.size()
    for weight in weights:
        if tensor.dim() != 2 or weight.dim() != 2 or weight.shape[1] != ranks * tensor.shape[1]:
            found = f"input {list(tensor.shape)}, weight {list(weight.shape)}, {ranks} ranks"
            raise OperatorError("columns (m, k) of each rank are multiplied by a weight (n, ranks · k)", found=found)
        _check_kind(tensor)
        _check_dtype(weight, tensor)
    depths, widths = (tensor.shape[1],), tuple([each.shape[0] for each in weights])
    return Case(COLUMNS, ranks, tensor.shape[0], depths, widths, _name(tensor), "sum", gathered)


def _check_pair(tensor: Any, weight: Any) -> None:
    if tensor.dim() not in (2, 3) or weight.dim() != 2 or tensor.shape[-1] != weight.shape[1]:
        found = f"input {list(tensor.shape)}, weight {list(weight.shape)}"
        raise OperatorError("an input (…, k) of 2 or 3 axes is multiplied by a weight (n, k)", found=found)
    _check_kind(tensor)
    _check_dtype(weight, tensor)


def _check_kind(tensor: Any) -> None:
    if tensor.dtype not in DTYPES:
        takes = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise OperatorError(f"products of {_name(tensor)} are not served", hint=f"one of {takes}")


def _check_dtype(tensor: Any, like: Any) -> None:
    if tensor.dtype != like.dtype:
        found = f"{_name(like)} and {_name(tensor)}"
        raise OperatorError("tensors of different dtypes", found=found, hint="torch.autocast, or tensor.to(…)")


def _check_bias(bias: Any, weight: Any, tensor: Any) -> None:
    if bias is not None:
        if bias.shape != weight.shape[:1]:
            found = f"bias {list(bias.shape)}, weight {list(weight.shape)}"
            raise OperatorError("a bias has as many elements as its weight has rows", found=found)
        _check_dtype(bias, tensor)


def _axis(tensor: Any, dim: int) -> int:
    if not -tensor.dim() <= dim < tensor.dim() or dim % tensor.dim() == tensor.dim() - 1:
        hint = "one of the axes before the last, which the product sums over"
        raise OperatorError(f"dim {dim} of shape {list(tensor.shape)}", hint=hint)
    return dim % int(tensor.dim())


def _shapes(tensors: Rows) -> str:
    return ", ".join(str(list(each.shape)) for each in tensors)


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
