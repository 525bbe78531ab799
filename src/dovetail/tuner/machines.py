"""machines: the machine behind an executor, probed once and kept while spot checks say that it has not changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core import CACHED, Say, cache_dir, is_cached, load_json, save_json
from dovetail.ir import Operator
from dovetail.machine import Machine
from dovetail.prober import probe_links, probe_operator, spot_check, spot_check_operator
from dovetail.prober.take import Budget
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
    cached = None
    if path is not None and is_cached(path) and not fresh:
        cached = Machine.from_json(load_json(path, "cached machine"))
        tell("checking the cached machine", 0.05)
        if not is_doubted(cached) and spot_check(executor, cached):
            return cached
    found = probe_links(executor, ranks, f"probed-{path.stem if path else 'machine'}", say=say)
    if path is not None:
        save_json(path, _after_doubt(found, cached).to_json(), CACHED)
    return found


def machine_for(
    executor: Executor,
    machine: Machine,
    operator: Operator,
    ranks: int,
    budget: Budget | None = None,
    *,
    fresh: bool = False,
    say: Say | None = None,
) -> Machine:
    """The machine with the costs of this operator's own computations and collectives, kept beside it while the former
    take what they took."""
    tell, path = say or (lambda what, done: None), costs_path(machine, operator, ranks) if launch_of(executor) else None
    kept = None
    if path is not None and is_cached(path) and not fresh:
        kept = Machine.from_json(load_json(path, "cached costs"))
        tell("checking the cached costs", 0.3)
        if not is_doubted(kept) and spot_check_operator(executor, kept, operator, ranks):
            return kept
    found = probe_operator(executor, machine, operator, ranks, budget=budget, say=say)
    if path is not None:
        save_json(path, _after_doubt(found, kept).to_json(), CACHED)
    return found


def is_doubted(kept: Machine) -> bool:
    """Whether the final of a tune contradicted the kept costs, which were not probed again since."""
    return kept.facts.get("doubted") == "yes"


def doubt(path: Path | None) -> bool:
    """Have the costs in a file of the cache probed again when they are next wanted, once; whether that is so."""
    if path is None or not is_cached(path):
        return False
    kept = Machine.from_json(load_json(path, "cached costs"))
    if "doubted" in kept.facts:
        return False  # probed again already, and contradicted again: the model is at fault, or the machine changes
    save_json(path, kept.with_costs({}, doubted="yes").to_json(), CACHED)
    return True


def _after_doubt(found: Machine, before: Machine | None) -> Machine:
    """The costs to keep, which remember that they were probed again for doubt."""
    return found.with_costs({}, doubted="probed again") if before and is_doubted(before) else found


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


def costs_path(machine: Machine, operator: Operator, ranks: int) -> Path:
    """Where a probed machine with the costs of an operator is kept."""
    return costs_of(machine.name, machine.facts.get("probed"), operator, ranks)


def costs_of(name: str, probed: str | None, operator: Operator, ranks: int) -> Path:
    """The same by the machine's name and the time at which it was probed."""
    text = f"{name}\n{probed}\n{ranks}\n{sorted(operator.to_json().items())}"
    return cache_dir("operators") / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def hosts_of(facts: Mapping[str, Any], ranks: int) -> list[str]:
    """The host of every rank, by the facts of a job, which give one where all are the same.

    >>> hosts_of({"host": "a"}, 2), hosts_of({"host": ["a", "b"]}, 2)
    (['a', 'a'], ['a', 'b'])
    """
    host = facts["host"]
    return list(host) if isinstance(host, list) else [str(host)] * ranks
