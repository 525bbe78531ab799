"""comm: collectives and products on arrays inside a user's MPI program, by what was measured to be the fastest.

The calls of wishes, such as `all_gather_matmul`, are made when they are first asked for (see `comm.products`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


HOMES = {"choice_for": "rules", "use": "rules", "nest_on_ranks": "stencils"}  # of the others: calls


def __getattr__(name: str) -> Any:
    """Found when it is first asked for, with what it needs and no more."""
    if name in __all__ or name in HOMES:
        found = getattr(import_module(f"dovetail.comm.{HOMES.get(name, 'calls')}"), name)
    else:
        from dovetail.plan.wishes import wishes

        if name.startswith("_") or name not in wishes():
            raise AttributeError(f"module 'dovetail.comm' has no attribute '{name}'")
        from dovetail.comm.products import product_call

        found = product_call(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
