"""all_to_all: all-to-all directly, in logarithmic steps, or with few large messages between nodes."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm
from dovetail.collective.algorithms.nodes import ranks_per_node


def direct_all_to_all(
    num_ranks: int, *, in_place: bool = False, kind: str = "all_to_all", **settings: Any
) -> Algorithm:
    """Each rank sends every other rank its chunk: 1 step. In place, ranks receive into scratch, then copy."""
    p = Algorithm(f"direct_{kind}", kind, num_ranks, in_place=in_place, **settings)
    for step in range(num_ranks):
        for rank in range(num_ranks):
            to = (rank + step) % num_ranks
            chunk = p.chunk(rank, "input", to)
            chunk.copy(to, "inbox" if in_place and step else "output", rank)
    for rank in range(num_ranks if in_place else 0):
        for source in range(num_ranks):
            if source != rank:
                p.chunk(rank, "inbox", source).copy(rank, "output", source)
    return p


def bruck_all_to_all(num_ranks: int, **settings: Any) -> Algorithm:
    """Bruck's algorithm: ⌈log2 R⌉ steps, for short messages.

    In step k, a chunk that must travel w ranks moves 2^k ranks if bit k of w is set. All such chunks of a rank form one
    message.
    """
    p = Algorithm("bruck_all_to_all", "all_to_all", num_ranks, **settings)
    ranks, distance = range(num_ranks), 1
    have = [{way: p.chunk(rank, "input", (rank + way) % num_ranks) for way in ranks} for rank in ranks]
    while distance < num_ranks:
        ways = [way for way in ranks if way & distance]
        sent = [[have[rank][way].copy(rank, "outbox") for way in ways] for rank in ranks]
        for rank in ranks:
            first = sent[rank][0]
            packed = p.chunk(rank, "outbox", first.index, len(ways))
            got = packed.copy((rank + distance) % num_ranks, "inbox").split(len(ways))
            have[(rank + distance) % num_ranks] |= dict(zip(ways, got, strict=True))
        distance *= 2
    for rank in ranks:
        for way, chunk in have[rank].items():
            chunk.copy(rank, "output", (rank - way) % num_ranks)
    return p


def two_step_all_to_all(num_ranks: int, *, nodes: int = 1, **settings: Any) -> Algorithm:
    """Gather a node's chunks for a distant rank at one rank of the node, which sends them as one message.

    Rank g of node n gathers, from all ranks of node n, the chunks for rank g of every other node. With R ranks on N
    nodes of G ranks, R − G messages leave a node instead of (R − G)·G (seed 002, section 7.3).
    """
    p = Algorithm("two_step_all_to_all", "all_to_all", num_ranks, **settings)
    size = ranks_per_node(num_ranks, nodes)
    for to in range(num_ranks):
        node, place = divmod(to, size)
        for source in range(num_ranks):
            home = source // size
            chunk = p.chunk(source, "input", to)
            if home == node:
                chunk.copy(to, "output", source)
            else:
                chunk.copy(home * size + place, "outbox", node * size + source % size)
    for to in range(num_ranks):
        node, place = divmod(to, size)
        for home in range(nodes):
            if home != node:
                together = p.chunk(home * size + place, "outbox", node * size, size)
                together.copy(to, "output", home * size)
    return p


def three_step_all_to_all(num_ranks: int, *, nodes: int = 1, **settings: Any) -> Algorithm:
    """Gather all chunks from one node to another at one rank, send them as one message, and scatter them there.

    With G ranks per node, rank m mod G of node n sends to node m, and rank n mod G of node m receives from node n.
    """
    p = Algorithm("three_step_all_to_all", "all_to_all", num_ranks, **settings)
    size = ranks_per_node(num_ranks, nodes)
    pairs = [(home, node) for home in range(nodes) for node in range(nodes)]
    crossing = [(home, node) for home, node in pairs if home != node]
    held = {}
    for home, node in pairs:
        for rank in range(home * size, (home + 1) * size):
            chunk = p.chunk(rank, "input", node * size, size)
            if home != node:
                index = (node * size + rank % size) * size
                chunk.copy(home * size + node % size, "outbox", index)
            else:
                for place, part in enumerate(chunk.split(size)):
                    part.copy(node * size + place, "output", rank)
    for home, node in crossing:
        together = p.chunk(home * size + node % size, "outbox", node * size * size, size * size)
        held[home, node] = together.copy(node * size + home % size, "inbox", home * size * size)
    for home, node in crossing:
        for i, part in enumerate(held[home, node].split(size * size)):
            part.copy(node * size + i % size, "output", home * size + i // size)
    return p
