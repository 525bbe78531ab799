"""machines: probe the machine of an executor, or use the cached one if a spot check agrees with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core import OperatorError, Say, parse_count
from dovetail.ir import Operator
from dovetail.ir.registry import checked_operator
from dovetail.machine import Machine
from dovetail.prober import probe_calls, probe_links, probe_operator, probe_shared, spot_check, spot_check_operator
from dovetail.prober.take import Budget
from dovetail.run.executor import Executor, executor_on
from dovetail.store import Item
from dovetail.store.machines import costs_on, machine_item, recall_machine, save_machine


def machine_of(executor: Executor, ranks: int, *, fresh: bool = False, say: Say | None = None) -> Machine:
    """Return the machine of an executor: the cached one if a spot check agrees with it, else probed.

    `fresh`: always probe. `say`: called with a text and the share done, 0 to 1. Raises RunError if a rank fails.
    """
    notify = say or (lambda what, done: None)
    place = machine_item(executor.launched_by, ranks)
    cached = None if fresh else recall_machine(place)
    if cached:
        notify("checking the cached machine", 0.05)
        if not is_doubted(cached) and spot_check(executor, cached):
            return cached
    found = probe_links(executor, ranks, f"probed-{place.key[:12] if place else 'machine'}", say=say)
    if executor.shares_memory and ranks > 1 and found.num_nodes == 1:
        notify("messages through shared memory", 0.25)
        found = probe_shared(executor, found)
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

    Uses cached costs if a spot check of the computations agrees with them; `fresh`: probes always. `budget`: time that
    each probed cost may take. Raises RunError if a rank fails.
    """
    notify = say or (lambda what, done: None)
    place = costs_on(machine, operator, ranks) if executor.launched_by else None
    kept = None if fresh else recall_machine(place)
    if kept:
        notify("checking the cached costs", 0.3)
        if not is_doubted(kept) and spot_check_operator(executor, kept, operator, ranks):
            return kept
    found = probe_operator(executor, machine, operator, ranks, budget=budget, say=say)
    save_machine(place, _after_doubt(found, kept), operator.title)
    return found


def probe(
    ranks: int,
    operator: Operator | None = None,
    *,
    executor: Executor | None = None,
    calls: bool = False,
    fresh: bool = False,
    say: Say | None = None,
) -> Machine:
    """Measure messages on real ranks, and an operator's computations and collectives if one is given.

    Parameters
    ----------
    ranks : int
        Number of ranks.
    operator : Operator, optional
        Measure this operator's computations and collectives, too.
    executor : Executor, optional
        Runs the ranks. Default: MPI.
    calls : bool
        Measure the MPI library's blocking calls, too, which `dovetail trace replay` needs.
    fresh : bool
        Measure again, ignoring the cache.
    say : callable, optional
        Called with a text and the share done, 0 to 1.

    Returns
    -------
    Machine
        With cost curves in seconds. The cached machine if a spot check agrees with it.

    Raises
    ------
    OperatorError
        If `calls` is asked for with an executor that launches no MPI ranks.
    RunError
        If a rank fails.
    """
    runner, count = executor or executor_on(), parse_count(ranks, "ranks", least=1)
    asked = None if operator is None else checked_operator(operator)
    found = machine_of(runner, count, fresh=fresh, say=say)
    if asked is not None:
        found = machine_for(runner, found, asked, count, fresh=fresh, say=say)
    if not calls:
        return found
    launch = runner.launched_by
    if launch is None:
        raise OperatorError("calls of the MPI library can only be measured on MPI ranks", hint="leave executor=… out")
    return probe_calls(found, launch)


def is_doubted(kept: Machine) -> bool:
    """Return whether the final of a tune contradicted these cached costs."""
    return kept.facts.get("doubted") == "yes"


def doubt(place: Item | None) -> bool:
    """Mark saved costs to be probed again on their next use. Return False if they are not saved, or marked before."""
    kept = recall_machine(place)
    if kept is None or "doubted" in kept.facts:
        return False  # contradicted again after a new probe: the cost model is wrong, or the machine keeps changing
    return save_machine(place, kept.with_costs({}, doubted="yes"), "doubted costs") is not None


def _after_doubt(found: Machine, before: Machine | None) -> Machine:
    """Return the costs to save. If they replace doubted costs, they record this, so as not to be doubted again."""
    return found.with_costs({}, doubted="probed again") if before and is_doubted(before) else found


def hosts_of(facts: Mapping[str, Any], ranks: int) -> list[str]:
    """Return the host of every rank, from the facts of a job, which give a single host if all are the same.

    >>> hosts_of({"host": "a"}, 2), hosts_of({"host": ["a", "b"]}, 2)
    (['a', 'a'], ['a', 'b'])
    """
    host = facts["host"]
    return list(host) if isinstance(host, list) else [str(host)] * ranks
