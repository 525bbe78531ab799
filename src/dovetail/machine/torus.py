"""torus: a torus of any size given by its sides, so that programs which its shifts leave unchanged can be folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from dovetail.core import MachineError
from dovetail.machine.machine import Link, Machine, even_nodes
from dovetail.machine.rails import Hop, Mapped


@dataclass(frozen=True)
class Torus:
    """A rank at each place of a grid, linked to its neighbours along every axis, both ways and around the ends.

    Ranks are numbered with the last axis fastest. Shifting all places along an axis leaves the torus unchanged; folded
    programs use shifts along the first axis, so that the ranks of its first place stand for all.

    Parameters
    ----------
    name : str
        Name in tables and errors.
    sides : tuple of int
        Ranks along each axis, at least two axes.
    kind : str
        Kind of all links.
    costs, facts : dict
        As in Machine.

    >>> torus = Torus("small", (4, 3), "wire")
    >>> torus.ranks, torus.route(0, 2)
    (12, ('wire', (Hop(src=0, dst=2),)))
    """

    name: str
    sides: tuple[int, ...]
    kind: str
    costs: Mapping[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, machine: Machine) -> Torus | None:
        """Return a machine as a Torus; None if it is none, or the cost of a message depends on other messages.

        >>> from dovetail.machine import load
        >>> Torus.of(load("torus-4x2x3")).sides, Torus.of(load("h100-8x4"))
        ((4, 2, 3), None)
        """
        kinds = {link.kind for link in machine.links}
        if machine.num_nodes != machine.ranks or len(kinds) != 1:
            return None
        if any(key.startswith(("exchange:", "cil:")) for key in machine.costs):
            return None
        ends = {(link.src, link.dst) for link in machine.links}
        near = {dst for src, dst in ends if src == 0}
        for sides in _sides(near, machine.ranks, 1):
            found = cls(machine.name, sides, next(iter(kinds)), machine.costs, machine.facts)
            if len(sides) > 1 and ends == {(hop.src, hop.dst) for hop in found.hops()}:
                return found
        return None

    @property
    def ranks(self) -> int:
        return prod(self.sides)

    @property
    def servers(self) -> int:
        """Return the ranks along the first axis: the nodes of algorithms of two levels."""
        return self.sides[0]

    @property
    def devices(self) -> int:
        """Return the ranks of one place of the first axis."""
        return prod(self.sides[1:])

    def hops(self) -> Iterator[Hop]:
        """Yield all links."""
        for rank in range(self.ranks):
            for axis in range(len(self.sides)):
                yield from (Hop(rank, self._next(rank, axis, step)) for step in (1, -1) if self.sides[axis] > 1)

    def route(self, src: int, dst: int) -> tuple[str, tuple[Hop, ...]]:
        """Return the link kind and the links of a message between two different ranks.

        Raises MachineError unless one way is shorter than all others: along one axis, by less than half of its side.
        """
        places = np.array(np.unravel_index([src, dst], self.sides))
        apart = np.flatnonzero(places[:, 0] != places[:, 1])
        axis = int(apart[0])
        side, ahead = self.sides[axis], int((places[axis, 1] - places[axis, 0]) % self.sides[axis])
        if len(apart) > 1 or (2 * ahead == side and side > 2):
            found = f"from rank {src} to rank {dst}"
            hint = "simulate the expanded program"
            raise MachineError(f"'{self.name}' has several shortest ways {found}", hint=hint)
        step = 1 if 2 * ahead <= side else -1
        way, here = [], src
        while here != dst:
            way.append(Hop(here, self._next(here, axis, step)))
            here = way[-1].dst
        return self.kind, tuple(way)

    def alike(self, hop: Hop, period: int) -> tuple[int, ...]:
        """Return what a link has in common with those that shifts by `period` ranks map it to: place, and direction."""
        places = np.array(np.unravel_index([hop.src, hop.dst], self.sides))
        axis = int(np.flatnonzero(places[:, 0] != places[:, 1])[0])
        return hop.src % period, axis, int((places[axis, 1] - places[axis, 0]) % self.sides[axis])

    def is_kept_by(self, plus: Mapped, period: int) -> bool:
        """Return whether adding multiples of `period` shifts the torus along its first axis."""
        firsts, ranks = np.arange(0, self.ranks, period), np.arange(period)
        moved = plus(ranks[None, :], firsts[:, None])
        shifts = np.array_equal(moved, ranks + firsts[:, None])
        return shifts and np.array_equal(plus(firsts, period % self.ranks), (firsts + period) % self.ranks)

    def curves(self) -> Machine:
        """Return the cost curves as a Machine of one rank, to price ops whose routes are known."""
        return Machine(self.name, 1, (0,), (), dict(self.costs), dict(self.facts))

    def expand(self) -> Machine:
        """Return the Machine with every link."""
        links = tuple(Link(*ends, self.kind) for ends in sorted(set(self.hops())))
        return Machine(self.name, self.ranks, tuple(range(self.ranks)), links, dict(self.costs), dict(self.facts))

    def _next(self, rank: int, axis: int, step: int) -> int:
        stride, side = prod(self.sides[axis + 1 :]), self.sides[axis]
        place = rank // stride % side
        return rank + ((place + step) % side - place) * stride


def level_nodes(machine: Machine) -> int:
    """Return the number of nodes for algorithms of two levels: a torus's first side, or those that share the ranks.

    >>> from dovetail.machine import load
    >>> level_nodes(load("torus-4x2")), level_nodes(load("h100-8x3"))
    (4, 3)
    """
    torus = Torus.of(machine)
    return torus.servers if torus is not None else even_nodes(machine.nodes)


def _sides(near: set[int], ranks: int, stride: int) -> Iterator[tuple[int, ...]]:
    """Yield the sides of tori whose axes from `stride` on give rank 0 these neighbours; the last axis comes last."""
    if stride == ranks:
        yield ()
    for following in sorted({ranks, *near}) if stride in near else ():
        side = following // stride
        if side > 1 and following % stride == 0 and ranks % following == 0 and (side - 1) * stride in near:
            yield from ((*outer, side) for outer in _sides(near, ranks, following))
