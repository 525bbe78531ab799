"""call: run collectives and products on the arrays of a user's MPI program, by the fastest schedule that was measured.

Each collective that moves data has a function in `call.collectives` and a non-blocking one in `call.begin`. Those of
products, such as `all_gather_matmul`, are made on first access (see `call.products`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.call.products import schedule_for
    from dovetail.call.selection_rules import choice_for, use

__all__ = ["choice_for", "schedule_for", "use"]
HOMES = {"choice_for": "selection_rules", "schedule_for": "products", "use": "selection_rules"}


def __getattr__(name: str) -> Any:
    """Import a function on first access, with only the modules that it needs."""
    from dovetail.ir.collectives import collectives_that

    home = HOMES.get(name)
    if name.removeprefix("begin_") in collectives_that("moves"):
        home = "begin" if name.startswith("begin_") else "collectives"
    found = globals()[name] = getattr(import_module(f"dovetail.call.{home}"), name) if home else _product(name)
    return found


def _product(name: str) -> Any:
    """Return the function that runs a product. Raise AttributeError, naming what to use, for any other operator."""
    from dovetail.ir.abilities import OnArrays
    from dovetail.ir.registry import OPERATORS, operator_class

    operator = name.removeprefix("begin_")
    if name.startswith("_") or operator not in OPERATORS:
        raise AttributeError(f"module 'dovetail.call' has no attribute '{name}'")
    kind: Any = operator_class(operator)
    if issubclass(kind, OnArrays):
        from dovetail.call.begin import begin_product
        from dovetail.call.products import product_call

        return product_call(name) if name == operator else begin_product(operator)
    door = f"dovetail.bind(dovetail.{kind.__name__}(…), comm)"
    raise AttributeError(f"module 'dovetail' has no function '{name}': it is no product. Use `{door}`")


def __dir__() -> list[str]:
    from dovetail.ir.collectives import collectives_that

    return [*__all__, *collectives_that("moves")]
