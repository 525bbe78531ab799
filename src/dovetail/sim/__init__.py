"""sim: a Program on a pretended clock."""

from dovetail.sim.simulate import simulate

__all__ = ["simulate"]
