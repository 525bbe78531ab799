"""algorithms: Dovetail's built-in algorithms of collectives, found and compiled by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from dovetail.collective.algorithm import Algorithm, Protocol
from dovetail.collective.spec import KINDS
from dovetail.core import OperatorError, parse_count
from dovetail.core.registry import at
from dovetail.ir import Program

Make = Callable[..., Algorithm]

FILES = {  # the file, in this folder, that defines the function of each algorithm; a new algorithm is a new row
    "ring_all_reduce": "ring",
    "all_pairs_all_reduce": "pairs",
    "flat_all_reduce": "pairs",
    "recursive_halving_doubling_all_reduce": "recursive",
    "recursive_doubling_all_reduce": "recursive",
    "binomial_tree_all_reduce": "tree",
    "double_tree_all_reduce": "double_tree",
    "hierarchical_all_reduce": "hierarchical",
    "ring_all_gather": "ring",
    "direct_all_gather": "pairs",
    "recursive_doubling_all_gather": "recursive",
    "sccl_122_all_gather": "sccl",
    "ring_reduce_scatter": "ring",
    "direct_reduce_scatter": "pairs",
    "recursive_halving_reduce_scatter": "recursive",
    "direct_all_to_all": "all_to_all",
    "bruck_all_to_all": "all_to_all",
    "two_step_all_to_all": "all_to_all",
    "three_step_all_to_all": "all_to_all",
    "all_to_next": "to_next",
    "direct_all_to_next": "to_next",
    "binomial_tree_all_gather": "tree",
    "binomial_tree_reduce_scatter": "tree",
    "binomial_tree_broadcast": "tree",
    "scatter_all_gather_broadcast": "scatter_all_gather",
    "binomial_tree_reduce": "tree",
    "binomial_tree_gather": "tree",
    "binomial_tree_scatter": "tree",
}
_UNEVEN = (  # algorithms that work unchanged for parts of unequal size; they also serve the v-variants
    *("ring_all_gather", "direct_all_gather", "ring_reduce_scatter", "direct_reduce_scatter", "direct_all_to_all"),
)
_COUNTS = ("nodes", "channels", "instances", "pieces")  # options that are whole numbers, at least 1
ALGORITHMS: dict[str, Make] = {name: at(f"{__name__}.{file}:{name}") for name, file in FILES.items()}
for _name in _UNEVEN:
    ALGORITHMS[f"{_name}_v"] = partial(ALGORITHMS[_name], kind=_name.partition("_")[2] + "_v")


def algorithms_for(kind: str) -> tuple[str, ...]:
    """Return the names of the algorithms for a collective.

    >>> algorithms_for("all_to_next")
    ('all_to_next', 'direct_all_to_next')
    """
    return tuple(name for name in ALGORITHMS if _kind_of(name) == kind)


def make_algorithm(name: str, num_ranks: int, **options: Any) -> Algorithm:
    """Return the algorithm called `name`. `options`: keywords of its function; OperatorError for any other."""
    make = _known(name)
    known = _options_of(make)
    for word, value in options.items():
        if word not in known:
            raise OperatorError(f"{name} has no {word} (here {value})", hint=f"it takes {', '.join(known)}")
    counts = {word: parse_count(options[word], word, least=1) for word in _COUNTS if word in options}
    return make(parse_count(num_ranks, "num_ranks", least=1), **options | counts)


def build(
    name: str,
    num_ranks: int,
    *,
    nodes: int = 1,
    channels: int = 1,
    instances: int = 1,
    protocol: Protocol = "Simple",
    in_place: bool | None = None,
    strided: bool = True,
    **more: Any,
) -> Program:
    """Return the Program of the algorithm called `name`, compiled and proved.

    Parameters
    ----------
    name : str
        A name of ALGORITHMS.
    num_ranks : int
        Number of ranks.
    nodes : int
        Number of nodes that share the ranks evenly, node by node. Only hierarchical algorithms use it.
    channels, instances, protocol, in_place, strided
        As in `Algorithm` and `Algorithm.compile`.
    **more
        Options of this algorithm only.

    Raises
    ------
    OperatorError
        If the algorithm is unknown, or does not support an option or the number of ranks.

    >>> build("ring_all_reduce", 3, channels=2, protocol="LL").num_ranks
    3
    """
    asked = {"channels": (channels, 1), "in_place": (in_place, None)}
    options = {word: value for word, (value, usual) in asked.items() if value != usual}
    if "nodes" in _options_of(_known(name)):
        options["nodes"] = nodes
    return make_algorithm(name, num_ranks, instances=instances, protocol=protocol, **options, **more).compile(
        strided=strided
    )


def _known(name: str) -> Make:
    if name not in ALGORITHMS:
        close = difflib.get_close_matches(name, ALGORITHMS, 1)
        hint = f"did you mean '{close[0]}'?" if close else f"one of {', '.join(ALGORITHMS)}"
        raise OperatorError(f"no algorithm '{name}'", hint=hint)
    return ALGORITHMS[name]


def _options_of(make: Make) -> list[str]:
    """Return the keywords of an algorithm's function, and those that it passes on to Algorithm."""
    own = [word for word, entry in inspect.signature(make).parameters.items() if entry.kind == entry.KEYWORD_ONLY]
    return [word for word in own if word != "kind"] + ["protocol", "instances"]


def _kind_of(name: str) -> str:
    return max((kind for kind in KINDS if f"_{name}".endswith(f"_{kind}")), key=len)
