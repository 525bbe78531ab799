"""collective: the front door for collective algorithms; a user's program of chunks becomes a certified Program.

The calls on arrays (`all_reduce(array, comm)` and its kin) live in `dovetail.comm`, and are offered here too.
"""

from importlib import import_module
from typing import Any

from dovetail.collective.spec import KINDS, Sizes, Spec, custom, spec_of
from dovetail.supply import CALLS

# Who reads or proves a file needs no algorithms: these are imported when they are first asked for, as the calls are.
# __init__.pyi says the same.
_LATER = {
    "Algorithm": "algorithm",
    "ALGORITHMS": "algorithms",
    "algorithms_for": "algorithms",
    "build": "algorithms",
    "make_algorithm": "algorithms",
    "PROTOCOLS": "compile",
    "compile_traced": "compile",
    "FAMILIES": "families",
    "Family": "families",
    "family": "families",
    "Ref": "ref",
    "AllGather": "wish",
    "AllReduce": "wish",
    "AllToAll": "wish",
    "AllToNext": "wish",
    "Broadcast": "wish",
    "ReduceScatter": "wish",
}

__all__ = ["KINDS", "Sizes", "Spec", "custom", "spec_of", *_LATER, *KINDS]


def __getattr__(name: str) -> Any:
    if name in KINDS:
        found = CALLS[name]
    elif name in _LATER:
        found = getattr(import_module(f"dovetail.collective.{_LATER[name]}"), name)
    else:
        raise AttributeError(f"module 'dovetail.collective' has no attribute '{name}'")
    globals()[name] = found  # the next look-up costs nothing
    return found
