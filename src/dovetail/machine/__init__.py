"""machine: the hardware as ranks, nodes, links, facts and cost curves; and the presets shipped with the package."""

from dovetail.machine.machine import LIBRARY, SHARED_COST, SWITCH, Link, Machine, even_nodes
from dovetail.machine.presets import presets
from dovetail.machine.rails import Rails

load = Machine.load

__all__ = ["LIBRARY", "SHARED_COST", "SWITCH", "Link", "Machine", "Rails", "even_nodes", "load", "presets"]
