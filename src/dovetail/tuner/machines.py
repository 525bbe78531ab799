"""machines: the probed machine of an executor, cached as long as spot checks agree with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core import OperatorError, Say, parse_count
from dovetail.ir import Operator
from dovetail.ir.registry import checked_operator
from dovetail.machine import Machine
from dovetail.prober import probe_calls, probe_links, probe_operator, spot_check, spot_check_operator
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
    """Measure messages, collectives and, with an operator, its compute on real ranks.

    Parameters
    ----------
    ranks : int
        Ranks to measure with.
    operator : Operator, optional
        The operator whose own computations and collectives are measured, too.
    executor : Executor, optional
        What runs the ranks; the MPI at hand unless given.
    calls : bool
        Whether to measure the library's blocking calls, which `dovetail trace replay` needs.
    fresh : bool
        Whether to measure again what is cached.
    say : callable, optional
        Called with what is being done, and the share that is done.

    Returns
    -------
    Machine
        With cost curves in seconds; cached while spot checks say that the machine has not changed.
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
        raise OperatorError("calls of the MPI library are measured on its own ranks", hint="leave executor=… out")
    return probe_calls(found, launch)


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


def hosts_of(facts: Mapping[str, Any], ranks: int) -> list[str]:
    """The host of every rank, by the facts of a job, which give one where all are the same.

    >>> hosts_of({"host": "a"}, 2), hosts_of({"host": ["a", "b"]}, 2)
    (['a', 'a'], ['a', 'b'])
    """
    host = facts["host"]
    return list(host) if isinstance(host, list) else [str(host)] * ranks
