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

__version__ = "0.1.0"

# Name -> room; a room is imported when a name of it is first used. __init__.pyi declares the same names.
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
    "explain": "report.notebook",
    "operator_of": "call.nest_operators",
    "plan": "planner",
    "probe": "tuner.machines",
    "simulate": "planner.predict",
    "tune": "tuner",
    "verify": "ir",
    "world": "run.shared.world",
    **dict.fromkeys(("choice_for", "schedule_for", "use"), "call"),
    **dict.fromkeys(("array", "loop", "nest"), "loops"),
    **dict.fromkeys(("cos", "exp", "maximum", "minimum", "sin", "sqrt", "where"), "loops"),
    **dict.fromkeys(("all_gather", "all_gather_v", "all_reduce", "all_to_all", "all_to_all_v", "all_to_next"), "call"),
    **dict.fromkeys(("broadcast", "gather", "reduce", "reduce_scatter", "reduce_scatter_v", "scatter"), "call"),
    **dict.fromkeys(("begin_all_gather", "begin_all_gather_v", "begin_all_reduce", "begin_all_to_all"), "call.begin"),
    **dict.fromkeys(("begin_all_to_all_v", "begin_all_to_next", "begin_broadcast", "begin_gather"), "call.begin"),
    **dict.fromkeys(("begin_reduce", "begin_reduce_scatter", "begin_reduce_scatter_v", "begin_scatter"), "call.begin"),
}

__all__ = [*_FACE]


def __getattr__(name: str) -> Any:
    """Return a name of the face, an operator's class, or its function on arrays, and keep it."""
    if name.startswith("_"):
        raise AttributeError(f"module 'dovetail' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(f"dovetail.{_FACE[name]}"), name) if name in _FACE else _of(name)
    return found


def _of(name: str) -> Any:
    """Return an operator's class or a function on its arrays: AllGatherMatmul, (begin_)all_gather_matmul."""
    table = import_module("dovetail.ir.registry")
    if name.removeprefix("begin_") in table.OPERATORS:
        return getattr(import_module("dovetail.call"), name)
    if name in table.operator_names():
        return table.operator_class(table.operator_names()[name])
    raise AttributeError(f"module 'dovetail' has no attribute '{name}'")


def load_ipython_extension(shell: Any) -> None:
    """Show plans, tune results and timelines as tables and pictures in a notebook, after `%load_ext dovetail`."""
    shown = shell.display_formatter.formatters["text/html"]
    for place in ("planner.plan.Plan", "tuner.tune.TuneResult", "timeline.timeline.Timeline"):
        module, _, name = f"dovetail.{place}".rpartition(".")
        shown.for_type_by_name(module, name, lambda what: import_module("dovetail.report.notebook").html(what))


def __dir__() -> list[str]:
    return ["__version__", *_FACE, *import_module("dovetail.ir.registry").operator_names()]
