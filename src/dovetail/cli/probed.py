"""probed: find probed machines in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dovetail.cli import output
from dovetail.core import DovetailError, EnvironmentFault, MachineError

if TYPE_CHECKING:
    from dovetail.ir import Operator
    from dovetail.machine import Machine


def known(operator: Operator, ranks: int, launch: str | None) -> Machine | None:
    """Return the cached machine of a launch command, with the operator's costs if cached; None if there is none.

    Without a launch command, and if MPI was not probed with this number of ranks: the machine that another executor
    probed last. A note then names its library.
    """
    from dovetail.store.machines import machine_item, recall_machine

    links = recall_machine(machine_item(mpi_command(launch), ranks))
    if links is not None:
        return with_costs(links, operator, ranks)
    return _of_another(operator, ranks) if launch is None else None


def _of_another(operator: Operator, ranks: int) -> Machine | None:
    """Return the machine probed last with this number of ranks. One with the operator's costs comes first."""
    from dovetail.store.machines import saved_machines

    found = [machine for _, machine in saved_machines() if machine.ranks == ranks]
    if not found:
        return None
    costed = (with_costs(machine, operator, ranks) for machine in found)
    chosen = next((known for known, machine in zip(costed, found, strict=True) if known is not machine), found[0])
    library = " ".join(str(chosen.facts.get("mpi") or chosen.name).split())
    when = f" at {chosen.facts['probed']}" if "probed" in chosen.facts else ""
    output.note(f"No probe of this MPI with {ranks} ranks is saved. The plan uses costs probed{when} by {library}.")
    return chosen


def with_costs(machine: Machine, operator: Operator, ranks: int) -> Machine:
    """Return a probed machine with the cached costs of the operator; the machine itself if none are cached."""
    from dovetail.store.machines import costs_on, recall_machine

    return recall_machine(costs_on(machine, operator, ranks)) or machine


def mpi_command(launch: str | None = None) -> str | None:
    """Return the command that starts ranks of MPI; None if there is no MPI here."""
    from dovetail.run.executor import executor_on

    try:
        return executor_on("mpi", launch=launch).launched_by
    except EnvironmentFault:
        return None


def probed_on(machine: Machine) -> str | None:
    """Return the executor (--on) that probed a machine; None for presets, files, and machines of other launchers."""
    from dovetail.run.executor import EXECUTORS, executor_on
    from dovetail.store.machines import machine_item

    for name in EXECUTORS.usable:
        with suppress(DovetailError):  # there is no MPI, say
            place = machine_item(executor_on(name).launched_by, machine.ranks)
            if place is not None and machine.name.startswith(f"probed-{place.key[:12]}"):
                return name
    return None


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
