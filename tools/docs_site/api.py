"""The reference of the Python API: a page for each room, from its docstrings."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import dovetail
from dovetail.core import DovetailError
from dovetail.ir.registry import operator_names

ROOMS = (  # in the order in which a reader meets them
    *("dovetail", "dovetail.collective", "dovetail.loops", "dovetail.loops.problems", "dovetail.matmul"),
    *("dovetail.ir", "dovetail.passes", "dovetail.machine", "dovetail.cost", "dovetail.sim", "dovetail.run"),
    *("dovetail.timeline", "dovetail.planner", "dovetail.prober", "dovetail.tuner", "dovetail.call", "dovetail.store"),
    *("dovetail.trace", "dovetail.report", "dovetail.reproduce", "dovetail.core", "dovetail.torch"),
)
HEAD = """# The Python API

Made from the docstrings. `import dovetail as dt` offers the first page; the other pages are the rooms behind it.
Importing a room loads neither MPI nor PyTorch nor CUDA.

"""


def pages(out: Path) -> None:
    """Write a page for each room, and an index with the rooms' first sentences."""
    out.mkdir(parents=True, exist_ok=True)
    rows, names = [], []
    for room in ROOMS:
        module = _module(room)
        if module is not None:
            (out / f"{room}.rst").write_text(_page(module), encoding="utf-8")
            names.append(room)
            rows.append(f"| [{room}]({room}.rst) | {_about(module)} |")
    toctree = "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"
    table = "\n".join(["| room | |", "|---|---|", *rows])
    (out / "index.md").write_text(f"{HEAD}{table}\n\n{toctree}", encoding="utf-8")


def _module(room: str) -> ModuleType | None:
    """Return a room; None, with a word on stdout, if what it needs is not installed here."""
    try:
        return import_module(room)
    except (ImportError, DovetailError) as error:
        print(f"left out of the reference: {room} ({error})")
        return None


def _about(module: ModuleType) -> str:
    """Return the first sentence of a room's docstring, without the room's name."""
    text = " ".join((module.__doc__ or "").split("\n\n")[0].split())
    return text.removeprefix(f"{module.__name__.rpartition('.')[2]}: ").replace("|", "\\|")


def _page(module: ModuleType) -> str:
    """Return a room's page: its docstring, then its classes, functions and data."""
    title = module.__name__
    names = [*module.__all__, *(operator_names() if module is dovetail else ())]
    kinds: dict[str, list[str]] = {"class": [], "function": [], "data": []}
    for name in dict.fromkeys(names):
        kinds[_kind(getattr(module, name))].append(name)
    parts = [title, "=" * len(title), "", inspect.getdoc(module) or "", ""]
    for kind, heading in (("function", "Functions"), ("class", "Classes"), ("data", "Data")):
        if kinds[kind]:
            parts += [heading, "-" * len(heading), ""]
            parts += [line for name in sorted(kinds[kind], key=str.lower) for line in _entry(module, name, kind)]
    return "\n".join(parts)


def _kind(found: Any) -> str:
    return "class" if inspect.isclass(found) else "function" if inspect.isroutine(found) else "data"


def _entry(module: ModuleType, name: str, kind: str) -> list[str]:
    """Return the directive for a name. Data are shown by their type and first docstring line, not by their value."""
    full = f"{module.__name__}.{name}"
    if kind == "data":
        found = getattr(module, name)
        about = "" if type(found).__module__ == "builtins" else (inspect.getdoc(type(found)) or "").split("\n")[0]
        return [f".. py:data:: {full}", f"   :type: {type(found).__name__}", "", f"   {about}", ""]
    options = ["   :members:", "   :show-inheritance:"] if kind == "class" else []
    if module is not dovetail and getattr(dovetail, name, None) is getattr(module, name):
        options.append("   :no-index:")  # the first page has it, too, and links lead there
    return [f".. auto{kind}:: {full}", *options, ""]
