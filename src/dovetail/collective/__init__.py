"""collective: the front door for collective algorithms; a user's program of chunks becomes a certified Program.

The calls on arrays (`all_reduce(array, comm)` and its kin) live in `dovetail.comm`, and are handed out here too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.collective.spec import KINDS, Sizes, Spec, custom, spec_of

if TYPE_CHECKING:
    from dovetail.collective.algorithm import Algorithm
    from dovetail.collective.algorithms import ALGORITHMS, algorithms_for, build, make_algorithm
    from dovetail.collective.compile import PROTOCOLS, compile_traced
    from dovetail.collective.ref import Ref
    from dovetail.collective.wish import AllGather, AllReduce, AllToAll, AllToNext, Broadcast, ReduceScatter
    from dovetail.comm import (
        all_gather,
        all_gather_v,
        all_reduce,
        all_to_all,
        all_to_all_v,
        all_to_next,
        broadcast,
        gather,
        reduce,
        reduce_scatter,
        reduce_scatter_v,
        scatter,
    )

# Who reads or proves a file needs no algorithms: these, and the calls, are imported when they are first asked for.
_LATER = {
    "Algorithm": "collective.algorithm",
    "ALGORITHMS": "collective.algorithms",
    "algorithms_for": "collective.algorithms",
    "build": "collective.algorithms",
    "make_algorithm": "collective.algorithms",
    "PROTOCOLS": "collective.compile",
    "compile_traced": "collective.compile",
    "Ref": "collective.ref",
    "AllGather": "collective.wish",
    "AllReduce": "collective.wish",
    "AllToAll": "collective.wish",
    "AllToNext": "collective.wish",
    "Broadcast": "collective.wish",
    "ReduceScatter": "collective.wish",
    **dict.fromkeys(KINDS, "comm"),
}

__all__ = [
    "ALGORITHMS",
    "KINDS",
    "PROTOCOLS",
    "Algorithm",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AllToNext",
    "Broadcast",
    "ReduceScatter",
    "Ref",
    "Sizes",
    "Spec",
    "algorithms_for",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_to_next",
    "broadcast",
    "build",
    "compile_traced",
    "custom",
    "gather",
    "make_algorithm",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
    "spec_of",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'dovetail.collective' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(f"dovetail.{_LATER[name]}"), name)  # the next look-up costs nothing
    return found
