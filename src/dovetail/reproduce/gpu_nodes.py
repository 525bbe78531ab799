"""gpu_nodes: programs of NCCL's and MSCCL's collectives on several nodes of 8 GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

from dovetail.collective import Algorithm, build
from dovetail.collective.algorithm import Protocol as ProtocolName
from dovetail.collective.ref import Ref
from dovetail.cost import protocols
from dovetail.ir import Program
from dovetail.machine import Machine, load
from dovetail.reproduce.gpu_ways import GPUS, NCCL_CHANNELS, Way, channels_worth, seconds, shipped


@cache
def nccl_rings(nodes: int, instances: int, protocol: str) -> Program:
    """Return NCCL's rings: 8 of them, each of which crosses between nodes by another network card."""
    ranks = nodes * GPUS
    p = Algorithm(
        "nccl_rings", "all_reduce", ranks, chunks=ranks * GPUS, in_place=True, protocol=cast("ProtocolName", protocol)
    )
    for channel in range(GPUS):
        ring = [node * GPUS + (channel + place) % GPUS for node in range(nodes) for place in range(GPUS)]
        _around(p, ring, channel * ranks, channel)
    return p.compile(instances=instances)


def _around(p: Algorithm, ring: Sequence[int], first: int, channel: int) -> None:
    """Add up the chunks from `first` around a ring, then copy the sums around it."""
    _copy(p, ring, _add(p, ring, [(first + i, 1) for i in range(len(ring))], channel), channel)


def _add(p: Algorithm, ring: Sequence[int], parts: Sequence[tuple[int, int]], channel: int) -> list[Ref]:
    """Add up as many chunks (index, count) as ranks around a ring; the k-th sum ends at its k-th rank."""
    count = len(ring)
    held = [p.chunk(ring[(i + 1) % count], "input", *part) for i, part in enumerate(parts)]
    for step in range(2, count + 1):
        for i in reversed(range(count)):
            here = p.chunk(ring[(i + step) % count], "input", *parts[i])
            held[i] = here.reduce(held[i], ch=channel)
    return held


def _copy(p: Algorithm, ring: Sequence[int], held: list[Ref], channel: int) -> None:
    """Copy each rank's chunk around a ring."""
    count = len(ring)
    for step in range(1, count):
        for i in reversed(range(count)):
            held[i] = held[i].copy(ring[(i + step) % count], ch=channel)


@cache
def hierarchical(nodes: int, instances: int, protocol: str) -> Program:
    """Return MSCCLang's hierarchical all_reduce. Each phase has lanes of its own, so that tiles pipeline."""
    ranks = nodes * GPUS
    p = Algorithm(
        "hierarchical", "all_reduce", ranks, chunks=ranks, in_place=True, protocol=cast("ProtocolName", protocol)
    )
    shares = [(place * nodes, nodes) for place in range(GPUS)]
    inside = [range(node * GPUS, (node + 1) * GPUS) for node in range(nodes)]
    for ring in inside:
        _add(p, ring, shares, 0)
    for place, (first, _) in enumerate(shares):
        across = range(place, ranks, GPUS)
        _copy(p, across, _add(p, across, [(first + i, 1) for i in range(nodes)], 1), 2)
    for ring in inside:
        _copy(p, ring, [p.chunk(rank, "input", *share) for rank, share in zip(ring, shares, strict=True)], 3)
    return p.compile(instances=instances)


@cache
def nccl_trees(instances: int, protocol: str) -> Program:
    """Return NCCL's 8 trees on two nodes: chains within a node, whose heads exchange by a card of their own.

    The way up and the way down have lanes of their own, as in NCCL's kernel.
    """
    nodes = 2
    p = Algorithm(
        "nccl_trees", "all_reduce", nodes * GPUS, chunks=GPUS, in_place=True, protocol=cast("ProtocolName", protocol)
    )
    for channel in range(GPUS):
        chains = [[node * GPUS + (channel - place) % GPUS for place in range(1, GPUS + 1)] for node in range(nodes)]
        sums = [_down(p, chain, channel) for chain in chains]
        root = channel % nodes
        total = sums[root].reduce(sums[1 - root], ch=channel)
        far = total.copy(chains[1 - root][-1], ch=GPUS + channel)
        for top, chain in ((total, chains[root]), (far, chains[1 - root])):
            for rank in reversed(chain[:-1]):
                top = top.copy(rank, ch=GPUS + channel)
    return p.compile(instances=instances)


def _down(p: Algorithm, chain: Sequence[int], channel: int) -> Ref:
    """Add up one chunk along a chain; return the sum at its last rank."""
    total = p.chunk(chain[0], "input", channel)
    for rank in chain[1:]:
        total = p.chunk(rank, "input", channel).reduce(total, ch=channel)
    return total


@cache
def on_nodes(name: str, nodes: int, instances: int, protocol: str) -> Program:
    """Return a shipped algorithm on nodes of 8 GPUs."""
    levels: dict[str, Any] = {} if name.startswith("direct") else {"nodes": nodes}
    known = cast("ProtocolName", protocol)
    return build(name, nodes * GPUS, instances=instances, protocol=known, **levels)


def composed_s(machine: Machine, nodes: int, num_bytes: int, names: Sequence[str]) -> float:
    """Return the seconds of a hierarchical all_reduce as three calls of NCCL, each by the best of protocols `names`.

    Reduce_scatter within the nodes, all_reduce between the GPUs of one place on each node, each by a network card of
    its own, and all_gather within the nodes. Each call starts a kernel.
    """
    inside, apart = load("a100-8"), replace(machine, ranks=nodes, nodes=tuple(range(nodes)))
    most = NCCL_CHANNELS[inside.name]
    steps: list[tuple[Callable[[int, str], Program], int, Machine]] = [
        (
            lambda size, name: shipped("ring_reduce_scatter", 1, channels_worth(size, name, most), name),
            num_bytes,
            inside,
        ),
        (lambda size, name: _ring_of_nodes(nodes, name), num_bytes // GPUS, apart),
        (lambda size, name: shipped("ring_all_gather", 1, channels_worth(size, name, most), name), num_bytes, inside),
    ]
    return sum(
        min(seconds(Way(partial(_swapped, make, name), name), size, where, protocols(where)[name]) for name in names)
        for make, size, where in steps
    )


def _swapped(make: Callable[[int, str], Program], name: str, size: int) -> Program:
    return make(size, name)


@cache
def _ring_of_nodes(nodes: int, protocol: str) -> Program:
    """Return NCCL's ring with one rank on each node; 8 channels fill one network card."""
    return build("ring_all_reduce", nodes, instances=8, protocol=cast("ProtocolName", protocol))
