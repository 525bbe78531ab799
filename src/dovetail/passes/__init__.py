"""passes: rewrites from Program to Program that preserve what was proved, one per file."""

from dovetail.passes.allocate_slots import allocate_slots
from dovetail.passes.assign_channels import assign_channels
from dovetail.passes.assign_lanes import assign_lanes
from dovetail.passes.collective_calls import Make
from dovetail.passes.depend import depend
from dovetail.passes.drop_redundant import drop_redundant
from dovetail.passes.fuse import fuse
from dovetail.passes.fuse_flows import find_flows, fuse_flows
from dovetail.passes.fuse_reduces import fuse_reduces
from dovetail.passes.hints import Hints, no_hints
from dovetail.passes.inline_collectives import inline_collectives
from dovetail.passes.lower import lower
from dovetail.passes.replicate import replicate
from dovetail.passes.slice_messages import slice_messages
from dovetail.passes.split_slots import split_slots
from dovetail.passes.two_sided import two_sided

__all__ = [
    "Hints",
    "Make",
    "allocate_slots",
    "assign_channels",
    "assign_lanes",
    "depend",
    "drop_redundant",
    "find_flows",
    "fuse",
    "fuse_flows",
    "fuse_reduces",
    "inline_collectives",
    "lower",
    "no_hints",
    "replicate",
    "slice_messages",
    "split_slots",
    "two_sided",
]
