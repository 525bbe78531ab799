"""passes: rewrites from Program to Program that keep the proved meaning, one a file."""

from dovetail.passes.algorithms import Algorithm
from dovetail.passes.allocate_slots import allocate_slots
from dovetail.passes.assign_channels import assign_channels
from dovetail.passes.assign_lanes import assign_lanes
from dovetail.passes.depend import depend
from dovetail.passes.drop_redundant import drop_redundant
from dovetail.passes.expand_collectives import expand_collectives
from dovetail.passes.fuse import fuse
from dovetail.passes.fuse_flows import find_flows, fuse_flows
from dovetail.passes.fuse_reduces import fuse_reduces
from dovetail.passes.hints import Hints, no_hints
from dovetail.passes.lower import lower
from dovetail.passes.replicate import replicate
from dovetail.passes.slice_messages import slice_messages
from dovetail.passes.two_sided import two_sided

__all__ = [
    "Algorithm",
    "Hints",
    "allocate_slots",
    "assign_channels",
    "assign_lanes",
    "depend",
    "drop_redundant",
    "expand_collectives",
    "find_flows",
    "fuse",
    "fuse_flows",
    "fuse_reduces",
    "lower",
    "no_hints",
    "replicate",
    "slice_messages",
    "two_sided",
]
