"""machine: the hardware as ranks, nodes, links, facts and cost curves; and the presets shipped with the package."""

from dovetail.machine.machine import LIBRARY, SHARED_COST, SWITCH, Link, Machine, even_nodes
from dovetail.machine.presets import presets

load = Machine.load

__all__ = ["LIBRARY", "SHARED_COST", "SWITCH", "Link", "Machine", "even_nodes", "load", "presets"]
