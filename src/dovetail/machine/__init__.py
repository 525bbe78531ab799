"""machine: the hardware as ranks, nodes, links, facts and cost curves; and the presets shipped with the package."""

from dovetail.machine.faults import Fault, load, without
from dovetail.machine.machine import LIBRARY, SHARED_COST, SWITCH, Link, Machine, even_nodes
from dovetail.machine.presets import presets
from dovetail.machine.rails import Rails
from dovetail.machine.torus import Torus, level_nodes

__all__ = [
    "LIBRARY",
    "SHARED_COST",
    "SWITCH",
    "Fault",
    "Link",
    "Machine",
    "Rails",
    "Torus",
    "even_nodes",
    "level_nodes",
    "load",
    "presets",
    "without",
]
