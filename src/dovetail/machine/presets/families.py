"""families: presets with numbers in their names: nodes of 8 GPUs, tori and fat trees."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

Document = dict[str, Any]
MOST_RANKS = 65_536
SWITCH = -1
NET_LATENCY_S = {"LL": 2.7e-6, "LL128": 4.0e-6, "Simple": 9.6e-6}
NET_SOURCE = "latencies between nodes: NCCL's own constants (microsoft/msccl@b23e9cd: src/graph/tuning.cc, ring, NET)"
NDV4 = "seed 002, Experimental Setup: one HDR InfiniBand card of 25 GB/s for each of 8 A100"
NDV5 = "Azure's page of its H100 v5 series: one NDR card of 400 Gbit/s for each of 8 H100 (unchecked)"
GENERATED = "no hardware: a topology with the rates of a 100 Gbit/s InfiniBand, 12.5 GB/s and 1.5 µs assumed"


def gpu_nodes(base: Document, name: str, nodes: int, nic_bytes_per_s: float, source: str) -> Document:
    """Return `nodes` nodes of the machine `base` (8 GPUs), each GPU with a network card of its own."""
    size = int(base["ranks"])
    inside = [[node, node, base["links"][0][2]] for node in range(nodes)]
    outside = [[node, SWITCH, "ib"] for node in range(nodes)] + [[SWITCH, node, "ib"] for node in range(nodes)]
    wire = {"p2p:ib": _line(NET_LATENCY_S["Simple"], 1 / nic_bytes_per_s, f"{source}; {NET_SOURCE}")}
    facts = dict(base["facts"])
    protocols = {
        key: {**fields, "net_latency_s": NET_LATENCY_S[key]}
        for key, fields in facts["protocols"].items()
        if key in NET_LATENCY_S
    }
    facts |= {"protocols": protocols, "nic_bytes_per_s": nic_bytes_per_s, "ports_per_rank": ["ib"]}
    facts["device"] = f"{nodes} nodes of {facts['device']}"
    known = {**base["provenance"], "network": source, "latencies": NET_SOURCE}
    head = {"name": name, "ranks": size * nodes, "nodes": [rank // size for rank in range(size * nodes)]}
    costs = {**base["costs"], **wire}
    return {
        **base,
        **head,
        "links": inside + outside * (nodes > 1),
        "costs": costs,
        "facts": facts,
        "provenance": known,
    }


def torus(name: str, sides: tuple[int, ...]) -> Document:
    """Return a torus of one rank a node, each linked to its neighbours along every axis, both ways."""
    places = list(product(*map(range, sides)))
    number = {place: rank for rank, place in enumerate(places)}
    links = {
        (number[place], number[(*place[:axis], (place[axis] + step) % side, *place[axis + 1 :])])
        for place in places
        for axis, side in enumerate(sides)
        for step in (1, -1)
    }
    return _generated(name, len(places), [[a, b, "wire"] for a, b in sorted(links) if a != b])


def fat_tree(name: str, leaves: int, hosts: int, spines: int) -> Document:
    """Return `leaves` switches of `hosts` ranks each, every one of which is linked to each of `spines` switches.

    Switches have the numbers -1, -2, …: first the leaves, then the spines.
    """
    links = []
    for leaf in range(leaves):
        for rank in range(leaf * hosts, (leaf + 1) * hosts):
            links += [[rank, -1 - leaf, "wire"], [-1 - leaf, rank, "wire"]]
        for spine in range(spines if leaves > 1 else 0):
            top = -1 - leaves - spine
            links += [[-1 - leaf, top, "wire"], [top, -1 - leaf, "wire"]]
    return _generated(name, leaves * hosts, links)


def _generated(name: str, ranks: int, links: list[list[Any]]) -> Document:
    costs = {"p2p:wire": _line(1.5e-6, 1 / 12.5e9, GENERATED)}
    costs |= {key: _line(0.0, each / 100e9, "memory of 100 GB/s assumed") for key, each in (("copy", 2), ("reduce", 3))}
    provenance = {"label": "preset, not measured here", "source": GENERATED}
    head = {"schema": "dovetail.machine/1", "name": name, "ranks": ranks, "nodes": list(range(ranks))}
    facts = {"device": f"{ranks} hosts, generated"}
    return {**head, "links": links, "costs": costs, "facts": facts, "provenance": provenance}


def _line(start_s: float, byte_s: float, source: str) -> Document:
    head = {"schema": "dovetail.curve/1", "x_unit": "bytes", "segments": [[0, start_s, byte_s, 0.0]]}
    return {**head, "low": 0.0, "high": None, "label": "preset", "provenance": {"source": source}}


def _ndv4(name: str, numbers: list[int], read: Callable[[str], Document]) -> Document:
    return gpu_nodes(read("a100-8"), name, numbers[0], 25e9, NDV4)


def _ndv5(name: str, numbers: list[int], read: Callable[[str], Document]) -> Document:
    return gpu_nodes(read("h100-8"), name, numbers[0], 50e9, NDV5)


def _torus(name: str, numbers: list[int], read: Callable[[str], Document]) -> Document:
    return torus(name, tuple(numbers))


def _fat_tree(name: str, numbers: list[int], read: Callable[[str], Document]) -> Document:
    leaves, hosts, *spines = numbers
    return fat_tree(name, leaves, hosts, *spines or [hosts])


Maker = Callable[[str, list[int], Callable[[str], Document]], Document]
FAMILIES: dict[str, tuple[str, Maker]] = {
    "ndv4-a100-8xN": (r"ndv4-a100-8x(\d+)", _ndv4),
    "h100-8xN": (r"h100-8x(\d+)", _ndv5),
    "torus-AxB[xC…]": (r"torus-(\d+(?:x\d+)+)", _torus),
    "fat-tree-LEAVESxHOSTS[xSPINES]": (r"fat-tree-(\d+x\d+(?:x\d+)?)", _fat_tree),
}


def family_document(name: str, read: Callable[[str], Document]) -> Document | None:
    """Return the document of a machine whose name has numbers in it; None if it is no such name.

    `read` returns the document of a preset. Raises ValueError if a number is 0, or there would be too many ranks.
    """
    for pattern, make in FAMILIES.values():
        match = re.fullmatch(pattern, name)
        if match:
            numbers = [int(each) for each in match[1].split("x")]
            if 0 in numbers:
                raise ValueError(f"0 {_counted(make, numbers.index(0))}; at least 1 is needed")
            ranks = prod(numbers[:2]) if make is _fat_tree else prod(numbers) * (1 if make is _torus else 8)
            if ranks > MOST_RANKS:
                raise ValueError(f"{ranks} ranks; 1 to {MOST_RANKS} can be generated")
            if max(numbers) > MOST_RANKS:
                raise ValueError(f"{max(numbers)} spine switches; 1 to {MOST_RANKS} can be generated")
            return make(name, numbers, read)
    return None


def _counted(make: Maker, place: int) -> str:
    """Return what the number at `place` of a family's names counts."""
    if make is _fat_tree:
        return ("leaf switches", "hosts of a leaf switch", "spine switches")[place]
    return f"ranks along axis {place + 1}" if make is _torus else "nodes"
