"""overlap_pass: the pass of torch.compile that overlaps collectives with the products beside them, and reports it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from dovetail.torch import dispatch
from dovetail.torch.backend import NAME
from dovetail.torch.compiled import matching
from dovetail.torch.compiled.nodes import Left, arguments
from dovetail.torch.compiled.rewriting import rewrite_gather, rewrite_reduction
from dovetail.torch.linear.agreement import named
from dovetail.torch.linear.plans import SCHEMA

REWRITES: dict[Any, Callable[[Graph, Node, int, str], str]] = {
    matching.GATHER: rewrite_gather,
    matching.SCATTER: rewrite_reduction,
    matching.REDUCE: rewrite_reduction,
}
KINDS = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_FOLDER = Path(__file__).parent
_FILES = [*_FOLDER.glob("*.py"), *(_FOLDER.parent / "linear").glob("*.py")]


@dataclass(frozen=True)
class Compiled:
    """What became of one collective of a compiled graph.

    `graph`: its number. `kind`: of the collective. `place`: file and line of the program. `shape`, `dtype`: of the
    tensor that it moves. `group`: its name. `operator`: what replaced it and the products beside it; empty if nothing
    did. `why`: why it was left unmodified.
    """

    graph: int
    kind: str
    place: str
    shape: str
    dtype: str
    group: str
    operator: str = ""
    why: str = ""

    def __str__(self) -> str:
        done = f"overlapped: {self.operator}" if self.operator else f"left unmodified: {self.why}"
        return f"{self.place}: {self.kind} of {self.shape} {self.dtype}, group {self.group}: {done}"


class OverlapPass(CustomGraphPass):  # type: ignore[misc]
    """A pass for torch.compile: overlap collectives with the products beside them.

        step = OverlapPass()
        model = torch.compile(model, options={"post_grad_custom_post_pass": step})

    In each graph, forward and backward, it replaces

    - `mm(all_gather(x), w)`, of one or several w, by `all_gather_linear`;
    - `reduce_scatter(mm(x, w))` and `all_reduce(mm(x, w))`, also of a sum of products, by `linear_reduce_scatter` and
      `linear_all_reduce`; in a backward graph together with the products that are the weights' gradients;

    where mm may be addmm with a bias. Collectives are those of `torch.distributed._functional_collectives`, which
    DTensor calls too, on groups of backend "dovetail". The operators look their plans up when they are called, as they
    do in a program that calls them: run the compiled model once inside `dovetail.torch.warm_up()`.

    Attributes
    ----------
    collectives : list of Compiled
        What became of each collective of the graphs that this pass has seen.
    """

    def __init__(self) -> None:
        self.collectives: list[Compiled] = []
        self.num_graphs = 0
        self._was_asked = False

    def __call__(self, graph: Graph) -> None:
        """Rewrite a graph in place."""
        for node in list(graph.nodes):
            if is_collective(node):
                self.collectives.append(_compiled(graph, node, self.num_graphs))
        self.num_graphs += 1
        graph.lint()

    def uuid(self) -> str:
        """Return what the compiled code depends on besides the graph, for torch's cache of compiled code.

        That is Dovetail's version and sources, the format of its plans, and every group's name, backend and size: a
        graph has only names of groups. Plans are no part of it, since compiled code looks them up at every call.
        """
        self._was_asked = True
        return sha256(repr((_version(), SCHEMA, dispatch.groups())).encode()).hexdigest()

    def explain(self) -> str:
        """Return a line for each collective: the operator that replaced it, or why it was left unmodified.

        Plans, predictions and times of the operators are printed by `dovetail.torch.explain`.
        """
        if self.collectives:
            return "\n".join(map(str, self.collectives))
        if self.num_graphs:
            return f"no collective in {self.num_graphs} compiled graph{'s' * (self.num_graphs > 1)}"
        if self._was_asked:
            return (
                "no graph passed: torch took the compiled code from its cache\n"
                "  try TORCHINDUCTOR_FORCE_DISABLE_CACHES=1, which compiles anew"
            )
        return 'no graph was compiled with this pass\n  try options={"post_grad_custom_post_pass": …} of torch.compile'

    def __deepcopy__(self, memo: Any) -> OverlapPass:
        """Return the pass itself: torch copies its options, and there is one report."""
        return self


def is_collective(node: Node) -> bool:
    """Return whether a node is a functional collective."""
    is_functional = getattr(node.target, "namespace", "") == "_c10d_functional"
    return node.op == "call_function" and is_functional and node.target is not matching.WAIT


def _compiled(graph: Graph, node: Node, number: int) -> Compiled:
    """Rewrite a collective if that is possible, and return what became of it."""
    about = arguments(node)
    own = str(node.target).split(".")[1]
    tensor = about.get("input", about.get("self"))
    fake = tensor.meta.get("val") if isinstance(tensor, Node) else None
    shape = (" × ".join(map(str, fake.shape)) or "one") if fake is not None else "several tensors"
    dtype = str(fake.dtype).removeprefix("torch.") if fake is not None else ""
    facts = number, KINDS.get(own, own), _place(node), shape, dtype, str(about.get("group_name", ""))
    try:
        return Compiled(*facts, operator=_rewritten(graph, node, facts[-1]))
    except Left as left:
        return Compiled(*facts, why=str(left))


def _rewritten(graph: Graph, node: Node, group: str) -> str:
    rewrite = REWRITES.get(node.target)
    if rewrite is None:
        raise Left("no operator overlaps this kind")
    made = named(group)
    if made.name() != NAME:
        raise Left(f'its group has backend "{made.name()}", not "{NAME}"')
    if made.size() == 1:
        raise Left("its group has one rank")
    return rewrite(graph, node, made.size(), group)


def _place(node: Node) -> str:
    """Return the line of the program that a node comes of: the last outside torch; if there is none, the module."""
    inside = os.path.dirname(torch.__file__)
    frames = [each for each in _FRAME.findall(node.meta.get("stack_trace") or "") if not each[0].startswith(inside)]
    if frames:
        return f"{os.path.basename(frames[-1][0])}:{frames[-1][1]}"
    modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {"": ("unknown line",)}
    return str(list(modules.values())[-1][0]).removeprefix("L['self'].")


@cache
def _version() -> str:
    text = b"".join(path.read_bytes() for path in sorted(_FILES))
    return f"{version('dovetail')} {sha256(text).hexdigest()}"
