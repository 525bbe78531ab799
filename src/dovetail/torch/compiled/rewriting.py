"""rewriting: replace a collective and the products beside it by one operator that overlaps them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from dovetail.torch.compiled import nodes
from dovetail.torch.compiled.matching import (
    Gather,
    Product,
    Reduction,
    gather_of,
    product,
    readers_of,
    reduction_of,
    same_kind,
    terms_of,
)
from dovetail.torch.compiled.nodes import Left, aten, call, numbers, product_of, shape_of, turned_from, value
from dovetail.torch.compiled.operators import ops
from dovetail.torch.linear.kernels import DTYPES


def rewrite_gather(graph: Graph, start: Node, ranks: int, group: str) -> str:
    """Replace `mm(all_gather(shard), b)`, for each such b, by `all_gather_linear(shard, [bᵀ])`. Return words of it.

    Other readers of the gathered tensor read it as another result of the operator. Raises Left if nothing can be done.
    """
    found = gather_of(start, ranks)
    if found.dim == len(shape_of(found.shard)) - 1:
        raise Left("it gathers along the axis that a product sums over")
    products, others = readers_of(found.whole)
    if not products:
        raise Left(f"{_listed(others)} read{'s' * (len(others) == 1)} the result, no product of two matrices")
    products = [each for each in products if not _needs(each, start)]
    if not products:
        raise Left("the other operand of the product depends on the collective's result")
    same_kind([found.shard, *(each.b for each in products), *(each.row for each in products if each.row is not None)])
    _check_dtype(found.shard)
    views = _views(found.whole)
    readers = {each for node in (found.whole, *views) for each in node.users}
    is_whole_read = bool(readers - {*views, *(each.node for each in products)})
    shape = _joined(found.shard, found.dim)
    _check_layout([found.whole, *(each.node for each in products)], len(shape) > 2)
    inputs = [each for one in products for each in (one.b, one.row) if each is not None]
    first = min(found.whole.users)
    nodes.before(graph, first, [found.shard, *inputs], found.nodes)
    with graph.inserting_before(first):
        _gather_with(graph, found, shape, products, is_whole_read, group)
    nodes.erase([*found.nodes, *views, *(each.node for each in products)])
    count = len(products)
    also = ", and the gathered tensor" if is_whole_read else ""
    return f"all_gather_linear of {count} product{'s' * (count > 1)}{also}"


def _views(whole: Node) -> list[Node]:
    """Return the views of a tensor with other axes, and views of them."""
    found = list[Node]()
    queue = [whole]
    while queue:
        more = [each for each in queue.pop().users if nodes.passes_on(each)]
        found += more
        queue += more
    return found


def _needs(one: Product, start: Node) -> bool:
    """Return whether a product's right operand or row depends on a collective."""
    seen, queue = set[Node](), [one.b, *([] if one.row is None else [one.row])]
    while queue:
        node = queue.pop()
        if node is start:
            return True
        if node not in seen and node > start:
            seen.add(node)
            queue += node.all_input_nodes
    return False


def _joined(node: Node, dim: int) -> list[Any]:
    """Return the sizes of a tensor (rows, last), or (axes before `dim`, `dim` and those after, last)."""
    sizes = shape_of(node)
    lead = product_of(sizes[:dim])
    return [-1, sizes[-1]] if lead == 1 else numbers([lead, product_of(sizes[dim:-1]), sizes[-1]])


def _gather_with(
    graph: Graph, found: Gather, shape: list[Any], products: Sequence[Product], is_whole: bool, group: str
) -> None:
    like, dim = found.nodes[1], len(shape) - 2
    shard = _viewed(graph, like, found.shard, shape)
    weights = [_turned(graph, each.b) for each in products]
    rows = [each.row for each in products]
    out = call(graph, like, ops.all_gather_linear.default, shard, weights, rows, dim, is_whole, group)
    made = call(graph, like, operator.getitem, out, 1)
    for place, each in enumerate(products):
        result = call(graph, each.node, operator.getitem, made, place)
        nodes.replace(each.node, _laid_out(graph, result, each.node))
    if is_whole:
        result = call(graph, like, operator.getitem, out, 0)
        nodes.replace(found.whole, _laid_out(graph, result, found.whole))


class Sum(NamedTuple):
    """Products that a collective adds up, and a row. `later`: weight gradients, each with the operand that all share.
    `shape`: the sizes of an operand's tensor but for its columns."""

    products: Sequence[Product]
    row: Node | None
    later: Sequence[tuple[Node, Node]]
    shape: list[Any]

    @property
    def inputs(self) -> list[Node]:
        """All operands."""
        found = [each for one in self.products for each in (one.a, one.b)] + [each for _, each in self.later]
        return found if self.row is None else [*found, self.row]


def rewrite_reduction(graph: Graph, start: Node, ranks: int, group: str) -> str:
    """Replace `all_reduce(mm(a, b))`, or `reduce_scatter` of it, by one operator; also of a sum of such products.

    Products `aᵀ · x` beside it, the weights' gradients of a backward pass, become part of the operator, which makes
    them while the last messages travel. Return words of what was done. Raises Left if nothing can be done.
    """
    found = reduction_of(start, ranks)
    sizes = shape_of(found.source)
    if found.dim is not None and found.dim == len(sizes) - 1:
        raise Left("it cuts the result along the columns of the product")
    made, between = _sum_of(found)
    gradients = [each for each, _ in made.later]
    first = min([found.wait, *gradients])
    nodes.before(graph, first, made.inputs, [found.wait, start, *gradients])
    with graph.inserting_before(first):
        done = _reduce_with(graph, start, found, made, group)
    nodes.erase([*found.nodes, *between, *(each.node for each in made.products), *gradients])
    return done


def _sum_of(found: Reduction) -> tuple[Sum, list[Node]]:
    """Return what a collective reduces, and the nodes between. Raises Left if it is not served."""
    sizes = shape_of(found.source)
    products, row, between = terms_of(found.source, found.nodes)
    if any(shape_of(each.node) != [product_of(sizes[:-1]), sizes[-1]] for each in products):
        raise Left("a view between the product and the collective changes the last axis")
    later = [] if row is not None else _gradients(products)
    made = Sum(products, row, later, [-1] if found.dim is None else _joined(found.source, found.dim)[:-1])
    same_kind(made.inputs)
    _check_dtype(products[0].a)
    _check_layout([found.wait, *(each for each, _ in later)])
    return made, between


def _reduce_with(graph: Graph, start: Node, found: Reduction, made: Sum, group: str) -> str:
    like, products, later = found.wait, made.products, made.later
    dim = None if found.dim is None else len(made.shape) - 1

    def cut(matrix: Node) -> Node:
        return matrix if not dim else _viewed(graph, like, matrix, [*made.shape, shape_of(matrix)[1]])

    inputs = [cut(each.a) for each in products]
    several = f" of {len(products)} products" if len(products) > 1 else ""
    if later:
        whole = cut(later[0][1])
        about = inputs, [each.b for each in products], whole, found.op, dim, group
        out = call(graph, like, ops.linear_gradients.default, *about)
        result, found_later = (call(graph, like, operator.getitem, out, place) for place in range(2))
        for place, (node, _) in enumerate(later):
            nodes.replace(node, _laid_out(graph, call(graph, node, operator.getitem, found_later, place), node))
        done = f"linear_gradients{several}, and the gradients of the weights"
    else:
        weights = [_turned(graph, each.b) for each in products]
        result = call(graph, like, ops.products_reduced.default, inputs, weights, made.row, found.op, dim, group)
        kind = "linear_all_reduce" if found.dim is None else "linear_reduce_scatter"
        done = f"{kind}{several}"
    result = _laid_out(graph, result, found.wait)
    for user in [each for each in start.users if each.op == "output"]:
        user.replace_input_with(start, result)
    nodes.replace(found.wait, result)
    return done


def _gradients(products: Sequence[Product]) -> list[tuple[Node, Node]]:
    """Return for each product `a · b` the node of `aᵀ · x` and x, the same for all; none if one has no such node."""
    found = list[tuple[Node, Node]]()
    for one in products:
        turns = [each for each in one.a.users if turned_from(each) is one.a]
        made = [
            each for turn in turns for each in turn.users if each.target is aten.mm.default and each.args[0] is turn
        ]
        if len(made) != 1:
            return []
        found.append((made[0], product(made[0]).b))
    wholes = {each for _, each in found}
    columns = {shape_of(one.b)[1] for one in products}
    whole = wholes.pop()
    if wholes or columns != {shape_of(whole)[1]} or value(whole).dtype != value(products[0].a).dtype:
        return []
    return found


def _check_dtype(node: Node) -> None:
    dtype = value(node).dtype
    if dtype not in DTYPES:
        raise Left(f"products of {str(dtype).removeprefix('torch.')} are not served")


def _turned(graph: Graph, node: Node) -> Node:
    found = turned_from(node)
    return call(graph, node, aten.permute.default, node, [1, 0]) if found is None else found


def _viewed(graph: Graph, like: Node, node: Node, sizes: list[Any]) -> Node:
    if shape_of(node) == sizes:
        return node
    if -1 in sizes and len(shape_of(node)) == 2 and sizes[1] == shape_of(node)[1]:
        return node
    return call(graph, like, aten.reshape.default, node, sizes)


def _laid_out(graph: Graph, result: Node, old: Node) -> Node:
    """Return the result with the shape of an old node, and contiguous."""
    now, was = value(result), value(old)
    if not now.is_contiguous():
        result = call(graph, old, aten.clone.default, result, memory_format=torch.contiguous_format)
    if list(now.shape) != list(was.shape):
        result = call(graph, old, aten.view.default, result, numbers(was.shape))
    return result


def _check_layout(results: Sequence[Node], are_joined: bool = False) -> None:
    """Raise Left unless results can be laid out as the graph has them: contiguous, and by a view if one is needed.

    `are_joined`: whether the operator returns tensors of 3 axes.
    """
    for each in results:
        if are_joined or len(shape_of(each)) > 2:
            numbers(shape_of(each))
        if not value(each).is_contiguous():
            raise Left(f"{nodes.name(each)} has strides {value(each).stride()}")


def _listed(others: Sequence[Node]) -> str:
    names = dict.fromkeys(nodes.name(each) for each in others)
    return " and ".join(names) if names else "nothing"
