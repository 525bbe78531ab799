"""collective: collectives as operators, and a language for their algorithms: operations on chunks become a Program."""

from importlib import import_module
from typing import Any

from dovetail.collective.spec import KINDS, Sizes, Spec, custom, spec_of

# Imported on first use, because code that reads or proves a file needs no algorithms.
# __init__.pyi declares the same names.
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
    "AllGather": "operators",
    "AllReduce": "operators",
    "AllToAll": "operators",
    "AllToNext": "operators",
    "Broadcast": "operators",
    "ReduceScatter": "operators",
}

__all__ = ["KINDS", "Sizes", "Spec", "custom", "spec_of", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'dovetail.collective' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(f"dovetail.collective.{_LATER[name]}"), name)
    return found
