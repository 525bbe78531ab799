"""machines: save probed machines, and beside each the costs of an operator's computations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dovetail.core import cache_dir
from dovetail.ir import Operator
from dovetail.machine import Machine
from dovetail.store.store import COSTS, MACHINES, Item, item, recall, save

PROBE = 3  # increased when probes change, so that saved machines are probed again


def machine_item(launch: str | None, ranks: int) -> Item | None:
    """Return the item of the machine that a launch command uses; None without a command: nothing is saved."""
    return None if launch is None else item(MACHINES, PROBE, launch, ranks)


def costs_item(name: str, probed: str | None, operator: Operator, ranks: int) -> Item:
    """Return the item of an operator's costs on a machine, given by its name and the time at which it was probed."""
    return item(COSTS, PROBE, name, probed, operator.to_json(), ranks)


def costs_on(machine: Machine, operator: Operator, ranks: int) -> Item:
    """Return the item of the costs of an operator on a machine."""
    return costs_item(machine.name, machine.facts.get("probed"), operator, ranks)


def recall_machine(place: Item | None) -> Machine | None:
    """Return the saved machine; None if there is none, or (with a warning) its file cannot be used."""
    return None if place is None else recall(place, Machine.from_json).warned()


def save_machine(place: Item | None, machine: Machine, what: str = "") -> Path | None:
    """Save a machine, and return its file; None, with a warning, if not writable. `what`: whose costs it has."""
    about = f"{machine.name}, {machine.ranks} ranks on {machine.num_nodes} nodes"
    return None if place is None else save(place, f"{what} on {about}" if what else about, machine.to_json())


def saved_machines() -> Iterator[tuple[Path, Machine]]:
    """Yield every probed machine, the most recent first; warn of files that cannot be used."""
    paths = cache_dir(MACHINES.name).glob(f"*{MACHINES.ending}")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        if found := recall_machine(Item(MACHINES, path.stem)):
            yield path, found
