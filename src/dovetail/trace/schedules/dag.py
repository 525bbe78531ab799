"""dag: the operations of ranks and what each waits for, as other tools' files list them; converted to a Program."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import FileError
from dovetail.cost import Prices, price
from dovetail.ir import Builder, Kind, Program, Region, Slot, Workload
from dovetail.ir.program import MAX_SLOTS
from dovetail.machine import Machine

CALC, SEND, RECV, MEET = "calc", "send", "recv", "collective"
DATA = "data"  # the buffer; its slots are bytes


@dataclass
class Node:
    """An operation of a rank.

    Attributes
    ----------
    kind : str
        CALC, SEND, RECV or MEET.
    rank : int
        The rank.
    where : str
        Place in the file, "file:line".
    seconds : float
        Duration of a CALC.
    num_bytes : int
        Bytes of a message, or of the larger of a rank's input and output of a MEET.
    peer, tag : int
        Of a message: the other rank, and its tag.
    unit : str
        What runs it: CALCs of one unit run one after another, MEETs of one unit in their order.
    call : tuple
        Of a MEET: the collective's kind, and the ranks of its group.
    after : list of int
        Numbers of nodes of this rank that must end first.
    """

    kind: str
    rank: int
    where: str
    seconds: float = 0.0
    num_bytes: int = 0
    peer: int = -1
    tag: int = 0
    unit: str = "cpu"
    call: tuple[str, tuple[int, ...]] = ("", ())
    after: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Replay:
    """A Program that repeats what ranks did, with what the file says about durations.

    `seconds`: of each op that computes, 0 for others. `calls`: rows of collectives, with kind, number of ranks, bytes.
    """

    program: Program
    seconds: NDArray[np.float64]
    workload: Workload
    calls: tuple[tuple[int, str, int, int], ...] = ()

    def priced(
        self,
        machine: Machine,
        contention: float | None = None,
        *,
        extrapolate: bool = False,
        call_seconds: Callable[[str, int, int], float] | None = None,
    ) -> Prices:
        """Return prices: computation as in the file, messages and collectives by the machine's curves.

        Parameters
        ----------
        machine : Machine
            A machine with at least as many ranks.
        contention, extrapolate
            As in `price`.
        call_seconds : callable, optional
            Returns the seconds of a collective that the machine has no curve for, given its kind, ranks and bytes.

        Raises
        ------
        CostError
            If the machine lacks a cost.
        """
        kind = self.program.columns["kind"]
        unknown = [row for row, name, ranks, _ in self.calls if f"{name}:{ranks}" not in machine.costs and call_seconds]
        as_nop = kind.copy()
        as_nop[kind == Kind.compute] = Kind.nop
        as_nop[unknown] = Kind.nop
        moved = self.program.with_columns({**self.program.columns, "kind": as_nop})
        found = price(moved, machine, self.workload, contention, extrapolate=extrapolate)
        work_s = found.work_s + self.seconds
        for row, name, ranks, num_bytes in self.calls:
            if row in set(unknown) and call_seconds:
                work_s[row] = call_seconds(name, ranks, num_bytes)
        return found.with_columns(work_s=work_s)


MOST_RANKS = 1 << 20  # tables have an entry for each rank, so a damaged number would exhaust the memory


def to_replay(name: str, num_ranks: int, nodes: Sequence[Node]) -> Replay:
    """Return the Replay of nodes, whose sends and receives match in order for each pair of ranks and tag.

    Raises
    ------
    FileError
        If a message has no partner or another size there, or if the nodes wait for each other in a circle.
    """
    if num_ranks > MOST_RANKS:
        raise FileError(f"{num_ranks} ranks are more than {MOST_RANKS}", where=name)
    for node in nodes:
        if node.num_bytes > MAX_SLOTS:
            raise FileError(f"{node.num_bytes} bytes are more than a message may have", where=node.where)
    order = _sorted(nodes, [node.after for node in nodes])
    partner = _partners(nodes, order)
    before = [list(node.after) for node in nodes]
    for receive, send in partner.items():
        before[receive].append(send)
    for queue in _queues(nodes, order).values():  # these keep their order, whatever the rest does
        for one, other in itertools.pairwise(queue):
            before[other].append(one)
    return _Writer(name, num_ranks, nodes).written(_sorted(nodes, before))


def _sorted(nodes: Sequence[Node], before: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of nodes so that each follows those before it, otherwise early ones first."""
    after: list[list[int]] = [[] for _ in nodes]
    missing = [len(each) for each in before]
    for number, each in enumerate(before):
        for one in each:
            after[one].append(number)
    ready = deque(number for number, count in enumerate(missing) if not count)
    order = []
    while ready:
        order.append(number := ready.popleft())
        for other in after[number]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if len(order) < len(nodes):
        stuck = nodes[next(number for number, count in enumerate(missing) if count)]
        what = f"this {stuck.kind} of rank {stuck.rank} waits for itself, by way of others"
        raise FileError(what, where=stuck.where, hint="dependencies and messages must not form a circle")
    return order


def _key(node: Node) -> tuple[Any, ...]:
    ends = (node.rank, node.peer) if node.kind == SEND else (node.peer, node.rank)
    return (*ends, node.tag)


def _queues(nodes: Sequence[Node], order: Sequence[int]) -> dict[tuple[Any, ...], list[int]]:
    """Return, in order, the sends and the receives of each channel, and the collectives of each unit of a rank."""
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number in order:
        node = nodes[number]
        if node.kind in (SEND, RECV):
            found[node.kind, *_key(node)].append(number)
        elif node.kind == MEET:
            found[MEET, node.rank, node.unit].append(number)
    return found


def _partners(nodes: Sequence[Node], order: Sequence[int]) -> dict[int, int]:
    """Return the send of each receive."""
    queues, found = _queues(nodes, order), dict[int, int]()
    for (kind, *key), mine in list(queues.items()):
        if kind == MEET:
            continue
        other = queues.get((RECV if kind == SEND else SEND, *key), [])
        if len(mine) > len(other):
            node = nodes[mine[len(other)]]
            peer = f"rank {node.peer} has {len(other)} for the {len(mine)} with tag {node.tag}"
            raise FileError(f"this {kind} of rank {node.rank} has no partner", where=node.where, found=peer)
        if kind == RECV:
            found |= zip(mine, other, strict=False)  # sends left over are refused in their turn
    for receive, send in found.items():
        if nodes[receive].num_bytes != nodes[send].num_bytes:
            node, sent = nodes[receive], nodes[send]
            what = f"this recv of rank {node.rank} is of {node.num_bytes} bytes"
            raise FileError(what, where=node.where, found=f"a send of {sent.num_bytes} at {sent.where}")
    return found


class _Writer:
    """Writes nodes as ops. A lane of a rank: a unit's CALCs, a unit's MEETs, or a channel's messages one way."""

    def __init__(self, name: str, num_ranks: int, nodes: Sequence[Node]) -> None:
        self.nodes, self.builder = nodes, Builder(name, num_ranks)
        most = max((node.num_bytes for node in nodes), default=0)
        self.builder.buffer(DATA, "scratch", max(most, 1))
        self.calc = self.builder.kernel(CALC, ())
        self.lanes: dict[tuple[Any, ...], int] = {}
        self.num_lanes: dict[int, int] = defaultdict(int)
        self.depth: dict[tuple[Any, ...], int] = defaultdict(int)
        for node in nodes:
            self.depth[_key(node)] += node.kind == SEND

    def written(self, order: Sequence[int]) -> Replay:
        rows: dict[int, int] = {}
        seconds, calls = [], []
        for number in order:
            node = self.nodes[number]
            rows[number] = row = self.builder.add(
                Kind.compute if node.kind == CALC else Kind[node.kind],
                node.rank,
                self._lane(node),
                after=sorted({rows[each] for each in node.after}),
                line=node.where,
                **dict(self._more(node)),
            )
            seconds.append(node.seconds if node.kind == CALC else 0.0)
            if node.kind == MEET:
                calls.append((row, node.call[0], len(node.call[1]), node.num_bytes))
        program = self.builder.build()
        workload = Workload({DATA: (Slot((1,), "uint8"),) * program.num_ranks})
        return Replay(program, np.array(seconds, np.float64), workload, tuple(calls))

    def _more(self, node: Node) -> Iterator[tuple[str, Any]]:
        whole = [Region(DATA, 0, node.num_bytes)] if node.num_bytes else []
        if node.kind == CALC:
            yield "call", self.calc
        elif node.kind == MEET:
            yield from (("call", self.builder.collective(*node.call)), ("reads", whole), ("writes", whole))
        else:
            src, dst, tag = key = _key(node)
            channel = self.builder.channel(src, dst, tag, depth=self.depth[key] + 1)
            yield ("chan_out", channel) if node.kind == SEND else ("chan_in", channel)
            yield ("reads", whole) if node.kind == SEND else ("writes", whole)

    def _lane(self, node: Node) -> int:
        key = (node.kind, node.unit) if node.kind in (CALC, MEET) else (node.kind, *_key(node))
        if node.kind == CALC:
            return self.builder.lane(node.unit, "compute")
        if (node.rank, *key) not in self.lanes:
            self.lanes[node.rank, *key] = self.builder.lane(f"net {self.num_lanes[node.rank]}", "net")
            self.num_lanes[node.rank] += 1
        return self.lanes[node.rank, *key]
