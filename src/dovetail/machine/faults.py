"""faults: a rank or a cable of a machine by its name, and the machine without it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dovetail.core import MachineError
from dovetail.machine.machine import Machine

WITHOUT = " without "  # in a machine's name, before what is gone
_TEXT = re.compile(r"rank:(?P<rank>\d+)|link:(?P<a>-?\d+)-(?P<b>-?\d+)")


@dataclass(frozen=True)
class Fault:
    """What fails: a rank, or the links both ways between two nodes or switches `ends`."""

    rank: int | None = None
    ends: tuple[int, int] | None = None

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault in words: `rank:5`, or `link:3-4` (`link:3--1`: between node 3 and the switch).

        >>> Fault.parse("link:3--1"), Fault.parse("rank:5")
        (Fault(rank=None, ends=(3, -1)), Fault(rank=5, ends=None))
        """
        match = _TEXT.fullmatch(text)
        if not match:
            raise MachineError(f"'{text}' names no rank or link", hint="rank:5, or link:3-4 with the numbers of nodes")
        if match["rank"]:
            return cls(rank=int(match["rank"]))
        return cls(ends=(int(match["a"]), int(match["b"])))

    def __str__(self) -> str:
        return f"rank:{self.rank}" if self.ends is None else f"link:{self.ends[0]}-{self.ends[1]}"

    def check(self, machine: Machine) -> None:
        """Raise MachineError if the machine has no such rank, or no such link of its own."""
        if self.ends is None:
            if self.rank is None or self.rank >= machine.ranks:
                raise MachineError(f"machine '{machine.name}' has no {self}", found=f"ranks 0 to {machine.ranks - 1}")
            return
        rows = self.rows(machine)
        if not rows:
            near = sorted({link.dst for link in machine.links if link.src == self.ends[0]})
            found = f"node {self.ends[0]} is linked to {', '.join(map(str, near)) or 'nothing'}"
            raise MachineError(f"machine '{machine.name}' has no {self}", found=found)
        kind = machine.links[rows[0]].kind
        if kind in machine.facts.get("ports_per_rank", ()) or self.ends[0] == self.ends[1]:
            what = f"{self} of '{machine.name}' is no single cable: every rank of the node has its own"
            raise MachineError(what, hint="let a rank fail: rank:5")

    def rows(self, machine: Machine) -> tuple[int, ...]:
        """Return the rows of the links that fail; of a rank none."""
        ends = self.ends and {self.ends, self.ends[::-1]}
        return tuple(row for row, link in enumerate(machine.links) if ends and (link.src, link.dst) in ends)


def without(machine: Machine, *faults: Fault) -> Machine:
    """Return the machine that is left when ranks and cables are gone; ranks are numbered anew, without gaps.

    A node whose ranks are all gone leaves with its links; messages no longer go through it.

    Parameters
    ----------
    machine : Machine
        The whole machine.
    *faults : Fault
        What is gone.

    Raises
    ------
    MachineError
        If a rank or link does not exist, or what is left is not connected.

    >>> from dovetail.machine import load
    >>> left = without(load("torus-2x3"), Fault(rank=5))
    >>> left.ranks, left.nodes, left.name
    (5, (0, 1, 2, 3, 4), 'torus-2x3 without rank:5')
    """
    for fault in faults:
        fault.check(machine)
    gone = {fault.rank for fault in faults if fault.ends is None}
    rows = {row for fault in faults for row in fault.rows(machine)}
    nodes = tuple(node for rank, node in enumerate(machine.nodes) if rank not in gone)
    if not nodes:
        raise MachineError(f"no rank of machine '{machine.name}' is left")
    lost = set(machine.nodes) - set(nodes)
    links = tuple(
        link
        for row, link in enumerate(machine.links)
        if row not in rows and link.src not in lost and link.dst not in lost
    )
    name = f"{machine.name}{WITHOUT}{', '.join(map(str, faults))}"
    return replace(machine, name=name, ranks=len(nodes), nodes=nodes, links=links)


def load(name_or_path: str | Path, find: Callable[[str], Machine] | None = None) -> Machine:
    """Return a machine as `Machine.load` does; of `NAME without rank:5, link:3-4`, what is left of that machine.

    `find`: how to look up NAME. Default: `Machine.load`.

    >>> load("torus-4x4 without rank:5").ranks
    15
    """
    if isinstance(name_or_path, Path):
        return Machine.load(name_or_path)
    name, gone, faults = name_or_path.partition(WITHOUT)
    machine = (find or Machine.load)(name)
    return without(machine, *map(Fault.parse, re.split(r",\s*", faults))) if gone else machine
