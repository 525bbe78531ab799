"""passes: rewrites from Program to Program that keep the proved meaning, one a file."""

from dovetail.passes.algorithms import Algorithm
from dovetail.passes.expand_collectives import expand_collectives
from dovetail.passes.fuse import fuse
from dovetail.passes.slice_messages import slice_messages

__all__ = ["Algorithm", "expand_collectives", "fuse", "slice_messages"]
