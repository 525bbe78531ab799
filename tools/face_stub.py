"""Write src/dovetail/__init__.pyi and others: what packages offer whose names are made as they run, for type checkers.

python tools/face_stub.py            # a test holds the files to what this writes
"""

from __future__ import annotations

import inspect
import subprocess
from importlib import import_module
from pathlib import Path

import dovetail
import dovetail.collective
import dovetail.loops.problems
from dovetail.ir.abilities import OnArrays
from dovetail.ir.registry import BUILT_IN, operator_class
from dovetail.loops import Nest
from dovetail.loops.grid.grid_operator import GridOperator

PACKAGES = ("dovetail", "dovetail.collective", "dovetail.loops.problems")
ON_ARRAYS = [name for name in BUILT_IN if issubclass(operator_class(name), OnArrays)]
SEARCHES = ("plan", "tune")  # which take the options of an operator's schedules
TYPES = [  # of parameters
    "from collections.abc import Sequence",
    "from pathlib import Path",
    "from typing import Any",
    "from dovetail.core import Say",
    "from dovetail.ir import Operator",
    "from dovetail.prober.take import Budget",
    "from dovetail.run.arrays import Array",
    "from dovetail.run.executor import Executor",
]


def stub(package: str) -> str:
    """Return the text of a package's stub: each name, imported from where it is defined."""
    module = import_module(package)
    names = [*module.__all__, *(classes() if package == "dovetail" else ())]
    lines = [f"# What `{package}` offers, for type checkers; made by tools/face_stub.py."]
    lines += sorted({f"from {home(package, name)} import {name} as {name}" for name in names})
    if package == "dovetail":
        begun = [name for name in names if name.startswith("begin_")]
        lines = [line for line in lines if not line.endswith(tuple(f" as {name}" for name in (*SEARCHES, *begun)))]
        nests = of_nests()
        lines += sorted({f"from {base.__module__} import {base.__name__}" for base in nests.values()})
        lines += [*TYPES, "", "__version__: str", "", *map(search, SEARCHES), *map(on_arrays, ON_ARRAYS)]
        lines += [*map(begins, begun), *(on_arrays(f"begin_{name}", "Request[Any]") for name in ON_ARRAYS)]
        lines += ["", *(f"{name}: type[{base.__name__}]" for name, base in nests.items())]
    return "\n".join(lines) + "\n"


def classes() -> dict[str, str]:
    """Return the modules of the built-in operators that are classes, by the names of these."""
    places = (
        place.partition(":") for name, place in BUILT_IN.items() if not issubclass(operator_class(name), GridOperator)
    )
    return {name: module for module, _, name in places}


def of_nests() -> dict[str, type]:
    """Return the base classes of the built-in operators that are made of nests, by the names of their classes."""
    kinds = [kind for kind in map(operator_class, BUILT_IN) if issubclass(kind, GridOperator)]
    return {kind.__name__: kind.__mro__[1] for kind in kinds}


def home(package: str, name: str) -> str:
    """Return the module that a type checker finds a name in."""
    if package == "dovetail" and name in classes():
        return classes()[name]
    found = getattr(import_module(package), name)
    if isinstance(found, Nest):
        return BUILT_IN[name].partition(":")[0]
    if callable(found) and found.__module__.startswith("dovetail."):
        return str(found.__module__)
    homes = getattr(import_module(package), "_LATER", {})
    return f"{package}.{homes.get(name, 'spec')}"


def search(name: str) -> str:
    """Return the declaration of `plan` or `tune`: its own parameters, then the schedule options of every built-in."""
    signature = inspect.signature(getattr(dovetail, name))
    *own, others = signature.parameters.values()
    shown = [each.replace(default=... if each.default is not each.empty else each.empty) for each in own]
    shown += [inspect.Parameter(option, own[-1].kind, default=..., annotation=of) for option, of in options().items()]
    text = str(signature.replace(parameters=[*shown, others])).replace("'", "").replace("Ellipsis", "...")
    return f"def {name}{text}: ..."


def options() -> dict[str, str]:
    """Return the types of the options of schedules, over all built-in operators, by name."""
    kinds = map(operator_class, BUILT_IN)
    found = (option for kind in kinds for option in kind.options if option.of == "schedules")
    return {option.name: f"{option.type.__name__} | None" for option in found}


def on_arrays(name: str, returns: str = "Any") -> str:
    """Return the declaration of an operator's function on arrays."""
    arguments = inspect.signature(getattr(dovetail, name)).parameters.values()
    plain = [f"{each.name}: Any" for each in arguments if each.kind != each.KEYWORD_ONLY]
    keywords = [f"{each.name}: Any = ..." for each in arguments if each.kind == each.KEYWORD_ONLY]
    return f"def {name}({', '.join(plain)}, *, {', '.join(keywords)}) -> {returns}: ..."


def begins(name: str) -> str:
    """Return the declaration of a collective's non-blocking form."""
    signature = inspect.signature(getattr(dovetail, name.removeprefix("begin_")))
    shown = [
        each.replace(default=each.empty if each.default is each.empty else ...)
        for each in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=shown, return_annotation=signature.empty))
    text = text.replace("'", "").replace("Ellipsis", "...")
    return f"def {name}{text} -> Request[{signature.return_annotation}]: ..."


def formatted(text: str) -> str:
    """Return a stub as the linter wants it."""
    ruff = ["ruff", "check", "--select", "I", "--fix", "-q", "--stdin-filename", "face.pyi", "-"]
    ordered = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    command = ["ruff", "format", "--stdin-filename", "face.pyi", "-"]
    return subprocess.run(command, input=ordered, capture_output=True, text=True, check=True).stdout


def write() -> None:
    """Write every stub beside its package."""
    for package in PACKAGES:
        place = Path(str(import_module(package).__file__)).with_suffix(".pyi")
        place.write_text(formatted(stub(package)), encoding="utf-8")


if __name__ == "__main__":
    write()
