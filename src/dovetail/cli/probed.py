"""Machines that a probe measured here, as the cache holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.core import DovetailError, MachineError, cache_dir, is_cached, load_json

if TYPE_CHECKING:
    from dovetail.ir import Operator
    from dovetail.machine import Machine


def known(operator: Operator, ranks: int, launch: str | None) -> Machine | None:
    """The cached machine behind a launch command, with the costs of the operator where they are cached too."""
    from dovetail.run.mpi import MpiExecutor
    from dovetail.tuner.machines import costs_path, machine_path

    links = load(machine_path(MpiExecutor(launch).launched_by, ranks))
    return links and (load(costs_path(links, operator, ranks)) or links)


def planned_for(document: Mapping[str, Any]) -> Machine:
    """The machine that the document of a plan, or of a tuning, was made for: a preset, or with the costs of the
    operator as it was probed here at the time, else as it was probed since. MachineError where there is none of its
    name."""
    from dovetail.machine import load as preset
    from dovetail.machine import presets
    from dovetail.planner.plan import asked_of
    from dovetail.tuner.machines import costs_of, costs_path

    operator, _, ranks = asked_of(document)
    name = str(document.get("machine"))
    if name in presets():
        return preset(name)
    if kept := load(costs_of(name, document.get("probed"), operator, ranks)):
        return kept
    for _, links in cached():
        if links.name == name:
            return load(costs_path(links, operator, ranks)) or links
    what = f"the plan is for machine '{name}', which was not probed here"
    raise MachineError(what, hint="--machine: another, or its JSON file; or tune the operator on this one")


def load(path: Path | None) -> Machine | None:
    """The machine in a file of the cache; None where there is none. Raises DovetailError for a broken file."""
    from dovetail.machine import Machine

    return Machine.from_json(load_json(path, "cached machine")) if path and is_cached(path) else None


def cached() -> Iterator[tuple[Path, Machine]]:
    """Every probed machine in the cache, newest first; broken files are passed over."""
    paths = list(cache_dir("machines").glob("*.json"))
    for path in sorted(paths, key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            found = load(path)
        except DovetailError:
            continue
        if found:
            yield path, found
