"""passes: rewrites from Program to Program that keep the proved meaning, one a file."""

from dovetail.passes.expand_collectives import expand_collectives
from dovetail.passes.slice_messages import slice_messages

__all__ = ["expand_collectives", "slice_messages"]
