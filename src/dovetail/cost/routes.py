"""routes: the links that each channel of a program occupies, and whether messages use them in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import RECVS, SENDS, Kind, Program, is_one_of
from dovetail.machine import SWITCH, Machine

Ints = NDArray[np.int64]
MESSAGES = (*SENDS, Kind.put, Kind.get)


@dataclass(frozen=True)
class Routes:
    """The links of each channel, in CSR form; its link kind; whether other messages use one of its links in the other
    direction (`two_way`); how many of its links lead to a switch that stores messages (`uplinks`: see `Prices`)."""

    start: Ints
    links: Ints
    num_links: int
    kinds: tuple[str, ...]
    two_way: NDArray[np.bool_]
    uplinks: Ints

    @staticmethod
    def of(program: Program, machine: Machine) -> Routes:
        """Return the routes of all channels of `program`. Raises MachineError if two nodes have no link."""
        routes: dict[tuple[int, int], tuple[str, tuple[int, ...], int]] = {}
        ends = [(False, *link[:2]) for link in machine.links]  # (is within a node, nodes or ranks) of each link
        ports = _Ports(machine, {})
        for src, dst, _, _ in program.channels:
            if (src, dst) not in routes:
                kind, links = machine.route(src, dst)
                near = _uplinks(machine, kind, links)
                if not links and src != dst:  # ranks of one node: each ordered pair has its own link
                    links, near = (len(ends),), 1
                    ends.append((True, src, dst))
                routes[src, dst] = kind, tuple(ports.of(row, src, dst, ends) for row in links), near
        lists = [routes[c.src, c.dst][1] for c in program.channels]
        start = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        flat = np.array([link for links in lists for link in links], dtype=np.int64)
        kinds = tuple(routes[c.src, c.dst][0] for c in program.channels)
        ways = [{ends[link] for link in links} for links in lists]
        uplinks = np.array([routes[c.src, c.dst][2] for c in program.channels], dtype=np.int64)
        return Routes(start, flat, len(ends), kinds, _two_way(program, ways), uplinks)


def _uplinks(machine: Machine, kind: str, links: tuple[int, ...]) -> int:
    """Return how many links lead to the first switch that stores messages of this kind; all, if there is none."""
    if kind in machine.facts.get("stores_messages", ()):
        for count, row in enumerate(links, 1):
            if machine.links[row].dst == SWITCH:
                return count
    return len(links)


class _Ports(NamedTuple):
    """The ports of single ranks, for kinds of links of which every rank has its own: (row of the link, rank) → row."""

    machine: Machine
    rows: dict[tuple[int, int], int]

    def of(self, row: int, src: int, dst: int, ends: list[tuple[bool, int, int]]) -> int:
        """Return the row of the link that a message between two ranks occupies; add a rank's port to `ends` if new."""
        link = self.machine.links[row] if row < len(self.machine.links) else None
        if link is None or link.kind not in self.machine.facts.get("ports_per_rank", ()):
            return row
        rank = src if link.src >= 0 else dst
        if (row, rank) not in self.rows:
            self.rows[row, rank] = len(ends)
            out, back = (-2 - rank, -1) if link.src >= 0 else (-1, -2 - rank)
            ends.append((False, out, back))
        return self.rows[row, rank]


def carriers(program: Program) -> NDArray[np.int32]:
    """Return, for each op, the channel on which it sends, puts, signals or gets; -1: none."""
    found: NDArray[np.int32] = np.where(program.kind == Kind.get, program.chan_in, program.chan_out)
    return found


def _two_way(program: Program, ways: list[set[tuple[bool, int, int]]]) -> NDArray[np.bool_]:
    """Return, for each channel, whether other messages of the program use one of its links in the other direction."""
    busy = np.unique(carriers(program)[is_one_of(program.kind, MESSAGES)])
    busy = busy[busy >= 0]
    if len(busy) == 2 and _take_turns(program, *busy.tolist()):
        return np.zeros(len(ways), dtype=np.bool_)
    back = {(within, dst, src) for row in busy.tolist() for within, src, dst in ways[row]}
    return np.array([not way.isdisjoint(back) for way in ways], dtype=np.bool_)


def _take_turns(program: Program, one: int, other: int) -> bool:
    """Whether the messages of two channels alternate, each answering the last one, as in a ping-pong."""
    return any(_answers(program, a, b, 0) and _answers(program, b, a, 1) for a, b in ((one, other), (other, one)))


def _answers(program: Program, out: int, back: int, ahead: int) -> bool:
    """Whether the k-th message on channel `out` is sent after k + `ahead` messages have arrived on channel `back`: it
    depends on that receive, or follows it on its lane."""
    col = program.columns
    receives = np.flatnonzero((col["chan_in"] == back) & is_one_of(col["kind"], RECVS)).tolist()
    number = {row: k for k, row in enumerate(receives, 1)}
    sends = np.flatnonzero((col["chan_out"] == out) & is_one_of(col["kind"], SENDS)).tolist()
    for k, row in enumerate(sends):
        known = col["dep"][col["dep_start"][row] : col["dep_start"][row + 1]].tolist()
        known += [row - 1] if row and all(col[name][row - 1] == col[name][row] for name in ("rank", "lane")) else []
        if max((number.get(each, 0) for each in known), default=0) < k + ahead:
            return False
    return bool(sends)
