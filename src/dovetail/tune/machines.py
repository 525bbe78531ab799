"""machines: the machine behind an executor, probed once and kept while spot checks say that it has not changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core import CACHED, Say, cache_dir, is_cached, load_json, save_json
from dovetail.ir import Wish
from dovetail.machine import Machine
from dovetail.probe import probe_links, probe_wish, spot_check, spot_check_wish
from dovetail.probe.take import Budget
from dovetail.run.job import Executor

PROBE = 3  # raised when probes find out more, or find other numbers: what was kept of before is probed anew


def default_executor() -> Executor:
    """Real ranks by the MPI at hand."""
    from dovetail.run.mpi import MpiExecutor

    return MpiExecutor()


def in_folder(executor: Executor, folder: Path) -> Executor:
    """The executor that keeps what its jobs leave in `folder`, where it keeps anything."""
    moved: Any = getattr(executor, "in_folder", None)
    found: Executor = moved(folder) if moved else executor
    return found


def machine_of(executor: Executor, ranks: int, *, fresh: bool = False, say: Say | None = None) -> Machine:
    """The machine behind an executor: from the cache where a spot check says that it has not changed, else probed."""
    tell = say or (lambda what, done: None)
    path = machine_path(launch_of(executor), ranks)
    if path is not None and is_cached(path) and not fresh:
        cached = Machine.from_json(load_json(path, "cached machine"))
        tell("checking the cached machine", 0.05)
        if spot_check(executor, cached):
            return cached
    found = probe_links(executor, ranks, f"probed-{path.stem if path else 'machine'}", say=say)
    if path is not None:
        save_json(path, found.to_json(), CACHED)
    return found


def machine_for(
    executor: Executor,
    machine: Machine,
    wish: Wish,
    ranks: int,
    budget: Budget | None = None,
    *,
    fresh: bool = False,
    say: Say | None = None,
) -> Machine:
    """The machine with the costs of this wish's own computations and collectives, kept beside it while the former take
    what they took."""
    tell, path = say or (lambda what, done: None), costs_path(machine, wish, ranks) if launch_of(executor) else None
    if path is not None and is_cached(path) and not fresh:
        kept = Machine.from_json(load_json(path, "cached costs"))
        tell("checking the cached costs", 0.3)
        if spot_check_wish(executor, kept, wish, ranks):
            return kept
    found = probe_wish(executor, machine, wish, ranks, budget=budget, say=say)
    if path is not None:
        save_json(path, found.to_json(), CACHED)
    return found


def launch_of(executor: Executor) -> str | None:
    """How the executor starts its ranks, which tells machines apart; None for one that is not real."""
    found: str | None = getattr(executor, "launched_by", None)
    return found


def machine_path(launch: str | None, ranks: int) -> Path | None:
    """Where the machine behind a launch command is kept."""
    if launch is None:
        return None
    key = hashlib.sha256(f"{PROBE}\n{launch}\n{ranks}".encode()).hexdigest()[:12]
    return cache_dir("machines") / f"{key}.json"


def costs_path(machine: Machine, wish: Wish, ranks: int) -> Path:
    """Where a probed machine with the costs of a wish is kept."""
    return costs_of(machine.name, machine.facts.get("probed"), wish, ranks)


def costs_of(name: str, probed: str | None, wish: Wish, ranks: int) -> Path:
    """The same by the machine's name and the time at which it was probed."""
    text = f"{name}\n{probed}\n{ranks}\n{sorted(wish.to_json().items())}"
    return cache_dir("wishes") / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def hosts_of(facts: Mapping[str, Any], ranks: int) -> list[str]:
    """The host of every rank, by the facts of a job, which give one where all are the same.

    >>> hosts_of({"host": "a"}, 2), hosts_of({"host": ["a", "b"]}, 2)
    (['a', 'a'], ['a', 'b'])
    """
    host = facts["host"]
    return list(host) if isinstance(host, list) else [str(host)] * ranks
