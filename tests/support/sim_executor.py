"""Machines whose costs are known, for the executor that pretends."""

from __future__ import annotations

from dataclasses import replace

from dovetail.cost import Curve, Segment
from dovetail.machine import Machine, load
from dovetail.tuner.simulated import SimExecutor

__all__ = ["SimExecutor", "constant", "line", "two_hosts"]


def two_hosts(cil: float = 1.1) -> Machine:
    """Two hosts whose every cost is a straight line; compute and messages slow each other by `cil`."""
    costs = {
        "p2p:tcp": line(60e-6, 1 / 115e6),
        "exchange:tcp": line(10e-6, 1 / 114e6),
        "all_reduce:2": line(100e-6, 1 / 110e6),
        "reduce": line(1e-6, 1 / 5e9),
        "flops:matmul:float32": line(5e-6, 1 / 110e9, "flop"),
        "cil:compute": line(cil, 0.0),
        "cil:net": line(cil, 0.0),
    }
    return replace(load("two-hosts-1gbit"), costs=costs, facts={"eager_limit_bytes": 16 << 10})


def line(seconds: float, slope: float, unit: str = "bytes") -> dict[str, object]:
    """A cost that grows with size by `slope`."""
    return Curve(unit, (Segment(0.0, seconds, slope),), label="prior").to_json()


def constant(seconds: float) -> dict[str, object]:
    """A cost that does not depend on size."""
    return line(seconds, 0.0, "rows")
