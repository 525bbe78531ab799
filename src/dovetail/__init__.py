"""Dovetail hides communication behind computation.

>>> import dovetail as dt
>>> made = dt.plan(dt.matmul_all_reduce(4096, 3072, 8192, "float16"), "atlas-a2-8", schedule="mc2")
>>> made.tiles, round(made.predicted_s * 1e6)
((512, 896, 896, 896, 896), 1283)

`print(dt.explain(made))` says why; `made.run(a, b)`, called by every rank of an MPI program, does it; `dt.tune(wish,
ranks)` measures the promising schedules on real ranks and keeps the fastest.
"""

from importlib import import_module
from typing import Any

from dovetail.supply import CALLS

__version__ = "0.1.0"

# Name -> room, and the name there; a room is imported when its name is first used. __init__.pyi says the same.
_FACE = {
    "DovetailError": ("core", "DovetailError"),
    "Machine": ("machine", "Machine"),
    "Plan": ("plan", "Plan"),
    "Program": ("ir", "Program"),
    "Timeline": ("timeline", "Timeline"),
    "TuneResult": ("tune", "TuneResult"),
    "explain": ("report.explain", "explain"),
    "load_machine": ("machine", "load"),
    "plan": ("plan", None),  # the room, which can be called; so is "tune"
    "tune": ("tune", None),
    "verify": ("ir", "verify"),
}


__all__ = [*_FACE]


def __getattr__(name: str) -> Any:
    if name not in _FACE:  # wishes by their names, e.g. all_gather_matmul
        table = import_module("dovetail.plan.wishes") if not name.startswith("_") else None
        if table is None or name not in table.wishes():
            raise AttributeError(f"module 'dovetail' has no attribute '{name}'")
        return table.wish_class(name)
    room, there = _FACE[name]
    module = import_module(f"dovetail.{room}")
    return getattr(module, there) if there else module


# The front doors offer the calls on arrays, too, and lie below the room that makes them.
CALLS.fill(lambda name: getattr(import_module("dovetail.comm"), name))


def __dir__() -> list[str]:
    return ["__version__", *_FACE, *import_module("dovetail.plan.wishes").wishes()]
