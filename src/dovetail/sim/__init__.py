"""sim: predict the Timeline of a Program by discrete-event simulation."""

from dovetail.sim.simulate import simulate

__all__ = ["simulate"]
