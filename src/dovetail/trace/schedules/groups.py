"""groups: the machine as the ranks of a process group see it, on which their collectives are planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dovetail.machine import SWITCH, Machine, Torus


def machine_of_group(machine: Machine, group: Sequence[int]) -> Machine:
    """Return a machine whose first `len(group)` ranks are linked as those of a group are.

    Groups that are alike get equal machines: on one switch, those with as many ranks on each node, in the same order;
    on a torus, those that a shift maps to each other.

    Parameters
    ----------
    machine : Machine
        The machine of all ranks.
    group : sequence of int
        Different ranks of it, in any order: the result has them in ascending order.

    >>> from dovetail.machine import load
    >>> machine = load("h100-8x4")
    >>> machine_of_group(machine, [0, 8]) == machine_of_group(machine, [25, 17])
    True
    >>> machine_of_group(load("torus-2x3"), [1, 5]).nodes
    (0, 4, 1, 2, 3, 5)
    """
    ranks = sorted(group)
    if len(ranks) == machine.ranks:
        return machine
    if all(link.src == link.dst or SWITCH in (link.src, link.dst) for link in machine.links):
        return _on_one_switch(machine, ranks)
    nodes = tuple(machine.nodes[rank] for rank in ranks)
    if torus := Torus.of(machine):
        nodes = _shifted(nodes, torus.sides)
        return replace(machine, nodes=(*nodes, *sorted(set(machine.nodes) - set(nodes))))
    others = sorted(set(range(machine.ranks)) - set(ranks))
    return replace(machine, nodes=(*nodes, *(machine.nodes[rank] for rank in others)))


def _on_one_switch(machine: Machine, ranks: list[int]) -> Machine:
    """Return these ranks with their nodes, numbered anew, and the links of these."""
    nodes = [machine.nodes[rank] for rank in ranks]
    number = {node: place for place, node in enumerate(dict.fromkeys(nodes))} | {SWITCH: SWITCH}
    links = sorted(
        link._replace(src=number[link.src], dst=number[link.dst])
        for link in machine.links
        if link.src in number and link.dst in number
    )
    name = f"{machine.name} with {len(ranks)} ranks"
    return replace(machine, name=name, ranks=len(ranks), nodes=tuple(number[n] for n in nodes), links=tuple(links))


def _shifted(nodes: Sequence[int], sides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the nodes of a torus, shifted along all axes so that the first becomes node 0."""
    places = np.array(np.unravel_index(nodes, sides))
    shifted = (places - places[:, :1]) % np.array(sides)[:, None]
    return tuple(np.ravel_multi_index(tuple(shifted), sides).tolist())
