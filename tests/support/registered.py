"""All that is registered, the packages of examples/extend included: its names, and a small operator of each kind."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path
from unittest.mock import patch

import dovetail as dt
from dovetail.core import Registry
from dovetail.ir.registry import OPERATORS, operator_class
from dovetail.run.executor import EXECUTORS
from dovetail.trace.formats import FORMATS

EXTEND = Path(__file__).parents[2] / "examples" / "extend"
REGISTRIES = (OPERATORS, EXECUTORS, FORMATS)
PROJECTS = [tomllib.loads(path.read_text())["project"] for path in sorted(EXTEND.glob("*/pyproject.toml"))]
SIZES = (7, 5, 6)  # of the options that an operator needs, in order: ranks do not divide them
GRIDS = {1: "90", 2: "13x11", 3: "12x11x10"}


def names_in(registry: Registry) -> list[str]:
    """Names of the built-ins, of what is installed, and of what the examples declare."""
    examples = (name for project in PROJECTS for name in project["entry-points"].get(registry.group, ()))
    return [*dict.fromkeys((*registry, *examples))]


@contextmanager
def examples_installed(site: Path) -> Iterator[None]:
    """The packages of examples/extend on sys.path, with the metadata that pip would write into `site`."""
    for project in PROJECTS:
        info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
        ((group, rows),) = project["entry-points"].items()
        lines = [f"[{group}]", *(f"{name} = {place}" for name, place in rows.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
    modules = sorted(EXTEND.glob("*/*.py"))
    folders = [*(str(module.parent) for module in modules), str(site)]
    for_ranks = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    with patch.object(sys, "path", [*folders, *sys.path]), patch.dict(os.environ, PYTHONPATH=for_ranks):
        _forget()
        try:
            yield
        finally:
            _forget()
            for module in modules:
                sys.modules.pop(module.stem, None)
            for name in ("Smooth", "smooth"):
                vars(dt).pop(name, None)


def _forget() -> None:
    invalidate_caches()
    for registry in REGISTRIES:
        registry.forget()


def small(name: str, ranks: int = 3, **more: object):
    """An operator of that name, small, of sizes that ranks do not divide."""
    kind = operator_class(name)
    needed = [option.name for option in kind.options if option.needed and option.type is int]
    asked = dict(zip(needed, SIZES, strict=False)) | {"min": "1K", "max": "1K", "steps": 2} | more
    known = {option.name for option in kind.options}
    if "grid" in known:
        asked["grid"] = GRIDS[len(next(iter(kind.nest.arrays.values())).shape)]
    return kind.points(**{word: value for word, value in asked.items() if word in known})[0].resolve({}, ranks)[0]
