"""rails: a machine of any size given by a rule: equal servers of devices, each with its own port to one switch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dovetail.core import MachineError
from dovetail.machine.machine import SWITCH, Link, Machine, even_nodes

Mapped = Callable[[Any, Any], Any]  # adds elements of a program's symmetry to ranks


class Hop(NamedTuple):
    """A directed link: from rank `src` to rank `dst`, one of which may be the SWITCH."""

    src: int
    dst: int


@dataclass(frozen=True)
class Rails:
    """`servers` servers of `devices` devices; every device is a rank, ranks are numbered server by server.

    Devices of one server have direct links, of kind `inside`, to each other. Other messages leave by the sender's port
    and enter by the receiver's, links of kind `outside` between the device and the switch; the switch itself never
    blocks. So any permutation of the servers leaves the machine unchanged.

    Parameters
    ----------
    name : str
        Name in tables and errors.
    servers, devices : int
        Their numbers, at least 1.
    inside, outside : str
        Kinds of links.
    costs : dict
        Cost curves as in Machine: `p2p:<kind>` of both kinds, `reduce`, `copy`.
    facts : dict
        Facts as in Machine, for prices: `eager_limit_bytes`.

    >>> Rails("two", 2, 2, "nvlink", "ib").route(0, 3)
    ('ib', (Hop(src=0, dst=-1), Hop(src=-1, dst=3)))
    """

    name: str
    servers: int
    devices: int
    inside: str
    outside: str
    costs: Mapping[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.servers < 1 or self.devices < 1 or self.inside == self.outside:
            found = f"{self.servers} servers, {self.devices} devices, kinds {self.inside} and {self.outside}"
            raise MachineError(f"machine '{self.name}' needs servers, devices, and two kinds of links", found=found)
        curves = [key for key in self.costs if key.startswith(("exchange:", "cil:"))]
        if curves:
            hint = "these depend on all traffic of a rank; give p2p, reduce and copy curves"
            raise MachineError(f"machine '{self.name}' cannot have the cost '{curves[0]}'", hint=hint)

    @classmethod
    def of(cls, machine: Machine) -> Rails | None:
        """Return a machine as Rails; None if it is no such machine, or the time of a message depends on others.

        >>> from dovetail.machine import load
        >>> Rails.of(load("h100-8x4")).devices, Rails.of(load("torus-4x4"))
        (8, None)
        """
        servers = even_nodes(machine.nodes)
        devices, ends = machine.ranks // servers, {(link.src, link.dst): link.kind for link in machine.links}
        nodes = machine.nodes[::devices]
        inside = {machine.kind_within(node) for node in nodes}
        outside = {ends.pop(way, "") for node in nodes for way in ((node, SWITCH), (SWITCH, node))}
        ports = machine.facts.get("ports_per_rank", ())
        own_ports = devices == 1 or outside <= set(ports)
        is_star = servers == machine.num_nodes > 1 and all(src == dst for src, dst in ends)
        if not is_star or not own_ports or len(inside | outside) != 2 or "" in outside:
            return None
        if any(key.startswith(("exchange:", "cil:")) for key in machine.costs) or machine.facts.get("stores_messages"):
            return None
        return cls(machine.name, servers, devices, inside.pop(), outside.pop(), machine.costs, machine.facts)

    @property
    def ranks(self) -> int:
        return self.servers * self.devices

    def route(self, src: int, dst: int) -> tuple[str, tuple[Hop, ...]]:
        """Return the link kind and the links of a message between two different ranks."""
        if src // self.devices == dst // self.devices:
            return self.inside, (Hop(src, dst),)
        return self.outside, (Hop(src, SWITCH), Hop(SWITCH, dst))

    def alike(self, hop: Hop, period: int) -> tuple[int, ...]:
        """Return what a link has in common with those that a shift by `period` ranks maps it to: its ends."""
        return tuple(end if end == SWITCH else end % period for end in hop)

    def is_kept_by(self, plus: Mapped, period: int) -> bool:
        """Return whether adding multiples of `period` leaves the machine unchanged: any permutation of servers does."""
        return period % self.devices == 0

    def curves(self) -> Machine:
        """Return the cost curves as a Machine of one rank, to price ops whose routes are known."""
        return Machine(self.name, 1, (0,), (), dict(self.costs), dict(self.facts))

    def expand(self) -> Machine:
        """Return the Machine with every rank, a node of its own, and every link: for hundreds of ranks at most."""
        ranks, size = range(self.ranks), self.devices
        servers = [range(first, first + size) for first in ranks[::size]]
        links = [Link(a, b, self.inside) for server in servers for a in server for b in server if a != b]
        links += [Link(rank, SWITCH, self.outside) for rank in ranks] + [Link(SWITCH, r, self.outside) for r in ranks]
        facts = {key: value for key, value in self.facts.items() if key != "ports_per_rank"}
        return Machine(self.name, self.ranks, tuple(ranks), tuple(links), dict(self.costs), facts)
