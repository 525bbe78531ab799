"""Dovetail hides communication behind computation.

>>> import dovetail as dt
>>> made = dt.plan(dt.MatmulAllReduce(4096, 3072, 8192, "float16"), "atlas-a2-8", schedule="mc2")
>>> made.tiles, round(made.predicted_s * 1e6)
((512, 896, 896, 896, 896), 1283)

`print(made)` explains the choice; `made.run(a, b)`, called by every rank of an MPI program, computes the product;
`dt.tune(operator, ranks)` measures the promising schedules on real ranks and keeps the fastest.

Classes are operators (`dt.MatmulAllReduce(m, k, n)`), functions act on arrays (`dt.matmul_all_reduce(a, b, comm)`).
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# Name -> room; a room is imported when a name of it is first used. The names of collectives follow from their table.
_FACE = {
    "Bound": "call.bound",
    "DovetailError": "core",
    "Machine": "machine",
    "Plan": "planner",
    "Program": "ir",
    "Request": "run.requests",
    "Schedule": "ir",
    "Timeline": "timeline",
    "TuneResult": "tuner",
    "bind": "call.bind",
    "compare": "timeline",
    "empty": "run.shared.arrays",
    "explain": "report.notebook",
    "operator_of": "call.nest_operators",
    "plan": "planner",
    "probe": "tuner.machines",
    "share": "run.shared.arrays",
    "simulate": "planner.predict",
    "tune": "tuner",
    "verify": "ir",
    "world": "run.shared.world",
    **dict.fromkeys(("choice_for", "schedule_for", "use"), "call"),
    **dict.fromkeys(("array", "loop", "nest"), "loops"),
    **dict.fromkeys(("cos", "exp", "maximum", "minimum", "sin", "sqrt", "where"), "loops"),
}


def __getattr__(name: str) -> Any:
    """Return a name of the face, a collective, an operator's class, or its function on arrays, and keep it."""
    if name == "__all__":
        return [*_FACE, *(start + kind for start in ("", "begin_") for kind in _collectives())]
    if name.startswith("_"):
        raise AttributeError(f"module 'dovetail' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(f"dovetail.{_FACE[name]}"), name) if name in _FACE else _of(name)
    return found


def _collectives() -> tuple[str, ...]:
    return tuple(import_module("dovetail.ir.collectives").collectives_that("moves"))


def _of(name: str) -> Any:
    """Return an operator's class, or a function on arrays: AllGatherMatmul, (begin_)all_gather_matmul, all_gather_v."""
    table, function = import_module("dovetail.ir.registry"), name.removeprefix("begin_")
    if function in _collectives() or function in table.OPERATORS:
        return getattr(import_module("dovetail.call"), name)
    if name in table.operator_names():
        return table.operator_class(table.operator_names()[name])
    raise AttributeError(f"module 'dovetail' has no attribute '{name}'")


def load_ipython_extension(shell: Any) -> None:
    """Show plans, tune results and timelines as tables and pictures in a notebook, after `%load_ext dovetail`."""
    shown = shell.display_formatter.formatters["text/html"]
    for place in ("planner.plan.Plan", "tuner.result.TuneResult", "timeline.timeline.Timeline"):
        module, _, name = f"dovetail.{place}".rpartition(".")
        shown.for_type_by_name(module, name, lambda what: import_module("dovetail.report.notebook").html(what))


def __dir__() -> list[str]:
    return ["__version__", *__getattr__("__all__"), *import_module("dovetail.ir.registry").operator_names()]
