"""A machine for collectives: hosts at a switch, so that nothing has to be probed."""

from __future__ import annotations

from dovetail.cost import Curve, Segment
from dovetail.machine import SWITCH, Link, Machine, load


def star(ranks: int) -> Machine:
    """Hosts at a switch, with the costs of messages of a preset."""
    two = load("two-hosts-1gbit")
    links = tuple(Link(*way, "tcp") for a in range(ranks) for way in ((a, SWITCH), (SWITCH, a)))
    costs = {key: curve for key, curve in two.costs.items() if key.split(":")[0] in ("p2p", "exchange", "reduce")}
    return Machine(f"star-{ranks}", ranks, tuple(range(ranks)), links, costs, two.facts)


def with_library(machine: Machine, kind: str, latency_s: float, bytes_per_s: float) -> Machine:
    """The same with a cost of the library's call."""
    curve = Curve("bytes", (Segment(0.0, latency_s, 1 / bytes_per_s),), label="prior")
    return machine.with_costs({f"{kind}:{machine.ranks}": curve.to_json()})
