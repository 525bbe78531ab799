"""machines: the machine behind an executor, probed once and kept while spot checks say that it has not changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core import Say
from dovetail.ir import Operator
from dovetail.machine import Machine
from dovetail.prober import probe_links, probe_operator, spot_check, spot_check_operator
from dovetail.prober.take import Budget
from dovetail.run.executor import Executor
from dovetail.store import Item
from dovetail.store.machines import costs_on, machine_item, recall_machine, save_machine


def machine_of(executor: Executor, ranks: int, *, fresh: bool = False, say: Say | None = None) -> Machine:
    """The machine behind an executor: from the cache where a spot check says that it has not changed, else probed."""
    tell = say or (lambda what, done: None)
    place = machine_item(executor.launched_by, ranks)
    cached = None if fresh else recall_machine(place)
    if cached:
        tell("checking the cached machine", 0.05)
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
    """The machine with the costs of this operator's own computations and collectives, kept beside it while the former
    take what they took."""
    tell, place = say or (lambda what, done: None), costs_on(machine, operator, ranks) if executor.launched_by else None
    kept = None if fresh else recall_machine(place)
    if kept:
        tell("checking the cached costs", 0.3)
        if not is_doubted(kept) and spot_check_operator(executor, kept, operator, ranks):
            return kept
    found = probe_operator(executor, machine, operator, ranks, budget=budget, say=say)
    save_machine(place, _after_doubt(found, kept), operator.title)
    return found


def is_doubted(kept: Machine) -> bool:
    """Whether the final of a tune contradicted the kept costs, which were not probed again since."""
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


def hosts_of(facts: Mapping[str, Any], ranks: int) -> list[str]:
    """The host of every rank, by the facts of a job, which give one where all are the same.

    >>> hosts_of({"host": "a"}, 2), hosts_of({"host": ["a", "b"]}, 2)
    (['a', 'a'], ['a', 'b'])
    """
    host = facts["host"]
    return list(host) if isinstance(host, list) else [str(host)] * ranks
