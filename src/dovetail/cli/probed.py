"""probed: find probed machines in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.core import MachineError

if TYPE_CHECKING:
    from dovetail.ir import Operator
    from dovetail.machine import Machine


def known(operator: Operator, ranks: int, launch: str | None) -> Machine | None:
    """Return the cached machine of a launch command, with the operator's costs if cached; None if there is none."""
    from dovetail.run.executor import executor_on
    from dovetail.store.machines import costs_on, machine_item, recall_machine

    links = recall_machine(machine_item(executor_on("mpi", launch=launch).launched_by, ranks))
    return links and (recall_machine(costs_on(links, operator, ranks)) or links)


def planned_for(document: Mapping[str, Any]) -> Machine:
    """Return the machine of a plan or tune result: a preset, or a probed machine with the costs of the operator.

    Prefers the costs of the probe that the plan used over those of a later probe. Raises MachineError if no machine has
    the name.
    """
    from dovetail.machine import load as preset
    from dovetail.machine import presets
    from dovetail.planner.plan import asked_of
    from dovetail.store.machines import costs_item, costs_on, recall_machine, saved_machines

    operator, _, ranks = asked_of(document)
    name = str(document.get("machine"))
    if name in presets():
        return preset(name)
    if kept := recall_machine(costs_item(name, document.get("probed"), operator, ranks)):
        return kept
    for _, links in saved_machines():
        if links.name == name:
            return recall_machine(costs_on(links, operator, ranks)) or links
    what = f"the plan is for machine '{name}', which was not probed here"
    raise MachineError(what, hint="pass another name or a machine's JSON file as --machine, or tune on this machine")
