"""machines: the probed machine of an executor, cached as long as spot checks agree with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core import Say
from dovetail.ir import Operator
from dovetail.machine import Machine
from dovetail.prober import probe_links, probe_operator, spot_check, spot_check_operator
from dovetail.prober.take import Budget
from dovetail.run.job import Executor
from dovetail.store import Item
from dovetail.store.machines import costs_on, machine_item, recall_machine, save_machine


def default_executor() -> Executor:
    """Real ranks by the MPI at hand."""
    from dovetail.run.mpi import MpiExecutor

    return MpiExecutor()


def in_folder(executor: Executor, folder: Path) -> Executor:
    """Return the executor with its jobs' files in `folder`, if it writes any."""
    moved: Any = getattr(executor, "in_folder", None)
    found: Executor = moved(folder) if moved else executor
    return found


def machine_of(executor: Executor, ranks: int, *, fresh: bool = False, say: Say | None = None) -> Machine:
    """Return the machine of an executor: the cached one if a spot check agrees with it, else probed.

    `fresh`: always probe. `say`: called with a text and the share done, 0 to 1. Raises RunError if a rank fails.
    """
    notify = say or (lambda what, done: None)
    place = machine_item(launch_of(executor), ranks)
    cached = None if fresh else recall_machine(place)
    if cached:
        notify("checking the cached machine", 0.05)
        if not is_doubted(cached) and spot_check(executor, cached):
            return cached
    found = probe_links(executor, ranks, f"probed-{place.key[:12] if place else 'machine'}", say=say)
    save_machine(place, _after_doubt(found, cached))
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
    """Return the machine with the costs of this operator's computations and collectives.

    Cached costs are used as long as spot checks of the computations agree with them, unless `fresh`.
    """
    notify = say or (lambda what, done: None)
    place = costs_on(machine, operator, ranks) if launch_of(executor) else None
    kept = None if fresh else recall_machine(place)
    if kept:
        notify("checking the cached costs", 0.3)
        if not is_doubted(kept) and spot_check_operator(executor, kept, operator, ranks):
            return kept
    found = probe_operator(executor, machine, operator, ranks, budget=budget, say=say)
    save_machine(place, _after_doubt(found, kept), operator.title)
    return found


def is_doubted(kept: Machine) -> bool:
    """Whether the final of a tune contradicted these cached costs."""
    return kept.facts.get("doubted") == "yes"


def doubt(place: Item | None) -> bool:
    """Have saved costs probed again when they are next wanted, once; whether that is so."""
    kept = recall_machine(place)
    if kept is None or "doubted" in kept.facts:
        return False  # probed again already, and contradicted again: the model is at fault, or the machine changes
    return save_machine(place, kept.with_costs({}, doubted="yes"), "doubted costs") is not None


def _after_doubt(found: Machine, before: Machine | None) -> Machine:
    """The costs to keep, which remember that they were probed again for doubt."""
    return found.with_costs({}, doubted="probed again") if before and is_doubted(before) else found


def launch_of(executor: Executor) -> str | None:
    """How the executor starts its ranks, which distinguishes machines; None for an executor that is not real."""
    found: str | None = getattr(executor, "launched_by", None)
    return found


def hosts_of(facts: Mapping[str, Any], ranks: int) -> list[str]:
    """The host of every rank, by the facts of a job, which give one where all are the same.

    >>> hosts_of({"host": "a"}, 2), hosts_of({"host": ["a", "b"]}, 2)
    (['a', 'a'], ['a', 'b'])
    """
    host = facts["host"]
    return list(host) if isinstance(host, list) else [str(host)] * ranks
