"""matching: a collective of a traced graph with what stands around it: the products before it, or those after it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from dovetail.torch.compiled.nodes import Left, arguments, aten, base, cut_from, name, passes_on, shape_of, value

c10d: Any = torch.ops._c10d_functional
WAIT = c10d.wait_tensor.default
GATHER, SCATTER, REDUCE = (
    c10d.all_gather_into_tensor.default,
    c10d.reduce_scatter_tensor.default,
    c10d.all_reduce.default,
)


@dataclass(frozen=True)
class Product:
    """A matrix product of a graph: `node = a · b`, plus a row."""

    node: Node
    a: Node
    b: Node
    row: Node | None = None


@dataclass(frozen=True)
class Gather:
    """An all_gather. `whole`: the gathered tensor, joined along `dim`. `nodes`: from the collective to `whole`."""

    shard: Node
    whole: Node
    dim: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Reduction:
    """A reduce_scatter along `dim`, or an all_reduce (`dim` None). `source`: what is reduced; `wait`: its result."""

    source: Node
    wait: Node
    dim: int | None
    op: str
    nodes: tuple[Node, ...]


def _awaited(start: Node) -> Node:
    """Return the node that waits for a collective, its only reader but for the graph's results."""
    waits = [each for each in start.users if each.target is WAIT]
    if len(waits) != 1:
        raise Left(f"{len(waits)} nodes wait for it")
    others = [each for each in start.users if each.target is not WAIT]
    if any(each.op != "output" for each in others):
        raise Left(f"{name(others[0])} reads it before it has ended")
    return waits[0]


def gather_of(start: Node, ranks: int) -> Gather:
    """Return an all_gather with its gathered tensor."""
    wait, shard = _awaited(start), arguments(start)["input"]
    _only_reader(start, wait)
    parts = [part for user in wait.users for part in ((user,) if user.target is aten.slice.Tensor else user.users)]
    for join in {join for part in parts for join in part.users if join.target is aten.cat.default}:
        about = arguments(join)
        if cut_from(about["tensors"], ranks) == (wait, 0) and all(set(part.users) == {join} for part in parts):
            dim = about["dim"] % len(shape_of(shard))
            return Gather(shard, join, dim, (start, wait, *wait.users, *parts, join))
    return Gather(shard, wait, 0, (start, wait))


def reduction_of(start: Node, ranks: int) -> Reduction:
    """Return a reduce_scatter or an all_reduce with the tensor that it reduces."""
    about, wait = arguments(start), _awaited(start)
    source, dim, nodes = about["input"], None, (start, wait)
    if start.target is SCATTER:
        dim = 0
        if source.target is aten.cat.default and arguments(source)["dim"] == 0:
            parts = arguments(source)["tensors"]
            if (found := cut_from(parts, ranks)) is not None:
                whole = [part.args[0] for part in parts if part.args[0] is not found[0]]
                nodes = (*whole, *parts, source, start, wait)
                for part in parts:
                    _only_reader(part, source)
                _only_reader(source, start)
                source, dim = found
    if about["reduce_op"] not in ("sum", "avg"):
        raise Left(f"operation '{about['reduce_op']}' is not served: sum and avg are")
    return Reduction(source, wait, dim, about["reduce_op"], nodes)


def _only_reader(node: Node, reader: Node) -> None:
    others = [each for each in node.users if each is not reader]
    if others:
        raise Left(f"{name(others[0])} reads the product too")


def product(node: Node) -> Product:
    """Return a node as a product. Raises Left if it is none, or one with other scales than 1."""
    if node.target is aten.mm.default:
        return Product(node, *node.args)
    if node.target is not aten.addmm.default:
        raise Left(f"{name(node)} is no product of two matrices")
    about = arguments(node)
    if (about["beta"], about["alpha"]) != (1, 1):
        raise Left(f"a product is scaled: addmm with beta {about['beta']}, alpha {about['alpha']}")
    return Product(node, about["mat1"], about["mat2"], about["self"])


def terms_of(source: Node, readers: Sequence[Node]) -> tuple[list[Product], Node | None, list[Node]]:
    """Return the products that add up to a tensor, the row that is added to them, and the nodes between.

    `source`: what a collective reduces. `readers`: its parts' nodes, or the collective. Raises Left if other nodes
    read what is between, or if it is no sum of products.
    """
    products, rows, nodes = list[Product](), list[Node](), list[Node]()
    queue = [(source, set(readers))]
    while queue:
        node, allowed = queue.pop(0)
        found = None if passes_on(node) or _adds_equals(node) else _term(node)
        others = [each for each in node.users if each not in allowed]
        if others:
            raise Left(f"{name(others[0])} reads the product too")
        nodes.append(node)
        if found is None:
            read = node.args[:1] if passes_on(node) else node.args[:2]
            queue += [(each, {node}) for each in read if isinstance(each, Node)]
            continue
        products.append(found)
        if found.row is not None and len(shape_of(found.row)) == 2:
            queue.append((found.row, {node}))
        elif found.row is not None:
            rows.append(found.row)
    if len(rows) > 1:
        raise Left("several products with a bias each are added up")
    return products, rows[0] if rows else None, nodes


def _term(node: Node) -> Product:
    """Return a term of a sum of products, by which the collective is known to reduce a product."""
    if _is_ours(node):
        raise Left("its product is overlapped with another collective")
    if node.target not in (aten.mm.default, aten.addmm.default):
        raise Left(f"what it reduces comes of {name(node)}, not of a product of two matrices")
    return product(node)


def _is_ours(node: Node) -> bool:
    """Return whether a node is a result of an operator of Dovetail, or a copy of one."""
    while node.target in (operator.getitem, aten.clone.default):
        node = node.args[0]
    return getattr(node.target, "namespace", "") == "dovetail"


def _adds_equals(node: Node) -> bool:
    if node.target is not aten.add.Tensor:
        return False
    about = arguments(node)
    both = [about["self"], about["other"]]
    return about["alpha"] == 1 and all(isinstance(each, Node) and shape_of(each) == shape_of(node) for each in both)


def readers_of(whole: Node) -> tuple[list[Product], list[Node]]:
    """Return the products whose left operand is a gathered tensor, and the other nodes that read it."""
    depth, products, others = shape_of(whole)[-1], list[Product](), list[Node]()
    queue = [(whole, user) for user in whole.users]
    while queue:
        node, user = queue.pop(0)
        if passes_on(user) and shape_of(user)[-1] == depth:
            queue += [(user, each) for each in user.users]
            continue
        try:
            found = product(user)
        except Left:
            others.append(user)
            continue
        is_row = found.row is None or len(shape_of(found.row)) == 1
        if found.a is node and is_row and base(found.b) is not whole and base(found.row or found.b) is not whole:
            products.append(found)
        else:
            others.append(user)
    return products, others


def same_kind(nodes: Sequence[Node]) -> None:
    """Raise Left unless tensors are of the CPU, and of one dtype that the operators serve."""
    tensors = [value(each) for each in nodes]
    if any(each.device.type != "cpu" for each in tensors):
        raise Left(f"tensors are on device {next(e.device for e in tensors if e.device.type != 'cpu')}")
    if len({each.dtype for each in tensors}) > 1:
        raise Left("operands have different dtypes")
