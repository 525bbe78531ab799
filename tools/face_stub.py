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
from dovetail.loops.grid_operator import GridOperator

PACKAGES = ("dovetail", "dovetail.collective", "dovetail.loops.problems")
ON_ARRAYS = [name for name in BUILT_IN if issubclass(operator_class(name), OnArrays)]


def stub(package: str) -> str:
    """Return the text of a package's stub: each name, imported from where it is defined."""
    module = import_module(package)
    names = [*module.__all__, *(classes() if package == "dovetail" else ())]
    lines = [f"# What `{package}` offers, for type checkers; made by tools/face_stub.py."]
    lines += sorted({f"from {home(package, name)} import {name} as {name}" for name in names})
    if package == "dovetail":
        nests = of_nests()
        lines += sorted({f"from {base.__module__} import {base.__name__}" for base in nests.values()})
        lines += ["from typing import Any", "", "__version__: str", "", *map(on_arrays, ON_ARRAYS), ""]
        lines += [f"{name}: type[{base.__name__}]" for name, base in nests.items()]
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


def on_arrays(name: str) -> str:
    """Return the declaration of an operator's function on arrays."""
    arguments = inspect.signature(getattr(dovetail, name)).parameters.values()
    plain = [f"{each.name}: Any" for each in arguments if each.kind != each.KEYWORD_ONLY]
    keywords = [f"{each.name}: Any = ..." for each in arguments if each.kind == each.KEYWORD_ONLY]
    return f"def {name}({', '.join(plain)}, *, {', '.join(keywords)}) -> Any: ..."


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
