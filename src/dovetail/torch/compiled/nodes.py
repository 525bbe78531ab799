"""nodes: small questions about a traced graph: a node's arguments, its value, what it reads, and where it may stand."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

aten: Any = torch.ops.aten
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_COPIES = (aten.clone.default, aten.alias.default)
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.split.sizes)
_TURNS = (aten.t.default, aten.permute.default, aten.transpose.int)
_VALUES = ("val", "tensor_meta", "eager_input_vals", "unbacked_bindings", "example_value")  # belong to one node


class Left(Exception):
    """Why a collective is left unmodified."""


def arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call of an operator by name, with the defaults that were left out."""
    schema: Any = node.target._schema
    found: dict[str, Any] = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    found |= dict(zip([each.name for each in schema.arguments], node.args, strict=False)) | node.kwargs
    return found


def value(node: Node) -> Any:
    """Return the fake tensor of a node."""
    found = node.meta.get("val")
    if not isinstance(found, torch.Tensor):
        raise Left(f"{name(node)} has no tensor in the graph's metadata")
    return found


def name(node: Node) -> str:
    """Return the operator of a node in words."""
    if node.op == "placeholder":
        return "an input of the graph"
    if node.op == "output":
        return "the graph's result"
    return str(node.target).removesuffix(".default")


def shape_of(node: Node) -> list[Any]:
    """Return the sizes of a node's tensor."""
    return list(value(node).shape)


def is_number(size: Any) -> bool:
    """Return whether a size is known when the graph is compiled."""
    return isinstance(size, int)


def numbers(sizes: Sequence[Any]) -> list[Any]:
    """Return sizes for a view: numbers, and -1 in the place of one that varies. Raises Left if several vary."""
    if sum(not is_number(each) for each in sizes) > 1:
        raise Left("several sizes vary between calls (dynamic shapes)")
    return [each if is_number(each) else -1 for each in sizes]


def product_of(sizes: Iterable[Any]) -> Any:
    """Return the product of sizes."""
    return math.prod(sizes)


def base(node: Node) -> Node:
    """Return the node of which this one is a view with other axes."""
    while passes_on(node):
        node = node.args[0]
    return node


def passes_on(node: Node) -> bool:
    """Return whether a node has the elements of what it reads, in the same order in memory: a view, or a plain copy."""
    if node.target in VIEWS:
        return True
    return node.target in _COPIES and value(node).stride() == value(node.args[0]).stride()


def turned_from(node: Node) -> Node | None:
    """Return the matrix whose transpose this node is, if it is one."""
    if node.target in _TURNS and len(shape_of(node)) == 2 and node.target is not aten.permute.default:
        return node.args[0]
    if node.target is aten.permute.default and list(node.args[1]) == [1, 0]:
        return node.args[0]
    return None


def cut_from(parts: Sequence[Any], count: int) -> tuple[Node, int] | None:
    """Return the node and axis of which `parts` are the `count` equal parts, in order; None if they are not."""
    if len(parts) != count or not all(isinstance(each, Node) for each in parts):
        return None
    if all(each.target is operator.getitem for each in parts):
        return _split_from(parts)
    if all(each.target is aten.slice.Tensor for each in parts):
        return _sliced_from(parts)
    return None


def _split_from(parts: Sequence[Node]) -> tuple[Node, int] | None:
    split: Any = parts[0].args[0]
    if split.target not in SPLITS or [each.args for each in parts] != [(split, place) for place in range(len(parts))]:
        return None
    about = arguments(split)
    source, dim = about["self"], about["dim"] % len(shape_of(about["self"]))
    each, whole = shape_of(parts[0])[dim], shape_of(source)[dim]
    even = all(shape_of(part)[dim] == each for part in parts) and each * len(parts) == whole
    return (source, dim) if even else None


def _sliced_from(parts: Sequence[Node]) -> tuple[Node, int] | None:
    found = [arguments(each) for each in parts]
    source = found[0]["self"]
    dim, whole = found[0]["dim"] % len(shape_of(source)), shape_of(source)[found[0]["dim"]]
    if not is_number(whole) or whole % len(parts):
        return None
    each = whole // len(parts)
    for place, about in enumerate(found):
        ends = about["start"] or 0, min(whole if about["end"] is None else about["end"], whole)
        wanted = place * each, (place + 1) * each
        if (about["self"], about["dim"] % len(shape_of(source)), ends, about["step"]) != (source, dim, wanted, 1):
            return None
    return source, dim


def before(graph: Graph, first: Node, inputs: Iterable[Node], results: Iterable[Node]) -> None:
    """Move what `inputs` need before `first`. Raises Left if they need one of `results`, or if it cannot be moved."""
    needed, queue, own = set[Node](), list(inputs), set(results)
    while queue:
        node = queue.pop()
        if node not in needed:
            needed.add(node)
            queue += node.all_input_nodes
    if needed & own:
        raise Left("an operand of the product depends on the collective's result")
    place = first
    later = []
    while place.op != "root":
        if place in needed:
            later.append(place)
        place = place.next
    for node in later:
        if node.is_impure() or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise Left(f"an operand of the product comes of {name(node)}, which cannot be moved before it")
    for node in later:
        first.prepend(node)


def call(graph: Graph, like: Node, target: Callable[..., Any], *args: Any, **more: Any) -> Node:
    """Append a call at the graph's insertion point, with the value that it has for fake tensors."""
    node = graph.call_function(target, args, more)
    node.meta = {key: each for key, each in like.meta.items() if key not in _VALUES}
    fakes, kwargs = map_arg((args, more), lambda each: each.meta["val"])
    if target is operator.getitem:
        node.meta["val"] = target(*fakes)
    else:
        with value(like).fake_mode:
            node.meta["val"] = target(*fakes, **kwargs)
    return node


def replace(old: Node, new: Node) -> None:
    """Let all who read `old` read `new`, of equal shape, strides and dtype."""
    was, now = [(each.shape, each.stride(), each.dtype) for each in (value(old), value(new))]
    assert was == now, (old, was, now)
    old.replace_all_uses_with(new)


def erase(nodes: Iterable[Node]) -> None:
    """Remove the nodes that nobody reads, the last first."""
    for node in sorted(set(nodes), reverse=True):
        if not node.users:
            node.graph.erase_node(node)
