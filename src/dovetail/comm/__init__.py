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
    from dovetail.comm.products import schedule_for
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
    "schedule_for",
    "use",
]


HOMES = {"choice_for": "rules", "use": "rules", "nest_on_ranks": "stencils", "schedule_for": "products"}  # else: calls


def __getattr__(name: str) -> Any:
    """Found when it is first asked for, with what it needs and no more."""
    if name in __all__ or name in HOMES:
        found = getattr(import_module(f"dovetail.comm.{HOMES.get(name, 'calls')}"), name)
    else:
        found = _product(name)
    globals()[name] = found
    return found


def _product(name: str) -> Any:
    """Return the call that carries out a product; AttributeError, which names the door, for any other operator."""
    from dovetail.plan.wishes import wish_class, wishes

    if name.startswith("_") or name not in wishes():
        raise AttributeError(f"module 'dovetail.comm' has no attribute '{name}'")
    kind = wish_class(name)
    if hasattr(kind, "said") and hasattr(kind, "of_ranks"):
        from dovetail.comm.products import product_call

        return product_call(name)
    module, _, of_class = wishes()[name].partition(":")
    if hasattr(kind, "nest"):
        what, door = "is a nest", f"from {module} import {of_class}; {of_class}.nest.on(comm, grid, …)"
    else:
        what, door = "is no product", "dovetail.plan(wish, machine).run(*arrays, comm=comm)"
    more = "collectives are in dovetail.collective, as all_reduce(array, comm)"
    raise AttributeError(f"module 'dovetail.comm' has no call '{name}': it {what}. Use `{door}`; {more}")


def __dir__() -> list[str]:
    return __all__
