"""comm: collectives and products on arrays inside a user's MPI program, by what was measured to be the fastest.

The calls of wishes, such as `all_gather_matmul`, are made when they are first asked for (see `comm.products`).
"""

from typing import Any

from dovetail.comm.calls import (
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
from dovetail.comm.rules import choice_for, use

__all__ = [
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_to_next",
    "broadcast",
    "choice_for",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
    "use",
]


def __getattr__(name: str) -> Any:
    from dovetail.plan.wishes import wishes

    if name == "nest_on_ranks":
        from dovetail.comm.stencils import nest_on_ranks

        return nest_on_ranks
    if name.startswith("_") or name not in wishes():
        raise AttributeError(f"module 'dovetail.comm' has no attribute '{name}'")
    from dovetail.comm.products import product_call

    found = globals()[name] = product_call(name)
    return found
