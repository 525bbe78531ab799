"""dag: the operations of ranks and what each waits for, as other tools' files list them; converted to a Program."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError, DovetailError, FileError
from dovetail.cost import Prices, price
from dovetail.ir import Builder, Kind, Program, Region, Slot, Workload
from dovetail.ir.program import MAX_SLOTS
from dovetail.machine import Machine

CALC, SEND, RECV, MEET, MERGE = "calc", "send", "recv", "collective", "merge"
DATA = "data"  # the buffer; its slots are bytes


@dataclass
class Node:
    """An operation of a rank.

    Attributes
    ----------
    kind : str
        CALC, SEND, RECV, MEET or MERGE. A MERGE takes no time: what waits for it waits for all that it waits for.
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


CallSeconds = Callable[[str, tuple[int, ...], int], float]  # of a collective's kind, ranks of its group, and bytes


@dataclass(frozen=True)
class Replay:
    """A Program that repeats what ranks did, with what the file says about durations.

    `seconds`: of each op that computes, 0 for others. `calls`: rows of collectives, with bytes.
    """

    program: Program
    seconds: NDArray[np.float64]
    workload: Workload
    calls: tuple[tuple[int, int], ...] = ()

    def priced(
        self,
        machine: Machine,
        contention: float | None = None,
        *,
        extrapolate: bool = False,
        call_seconds: CallSeconds | None = None,
    ) -> Prices:
        """Return prices: computation as in the file, messages and collectives by the machine's curves.

        A collective of one rank, or of 0 bytes, takes 0 s.

        Parameters
        ----------
        machine : Machine
            A machine with at least as many ranks.
        contention, extrapolate
            As in `price`.
        call_seconds : callable, optional
            Returns the seconds of a collective that the machine has no curve for, given its kind, the ranks of its
            group, and bytes.

        Raises
        ------
        CostError
            If the machine lacks a cost, or `call_seconds` raises a DovetailError; then the error names the node.
        """
        kind = self.program.columns["kind"]
        asked = self._without_curve(machine, call_seconds)
        as_nop = kind.copy()
        as_nop[kind == Kind.compute] = Kind.nop
        as_nop[[row for rows in asked.values() for row in rows]] = Kind.nop
        moved = self.program.with_columns({**self.program.columns, "kind": as_nop})
        found = price(moved, machine, self.workload, contention, extrapolate=extrapolate)
        work_s = found.work_s + self.seconds
        for (call, num_bytes), rows in asked.items():
            group = self.program.collectives[call].group
            if call_seconds and len(group) > 1 and num_bytes:
                work_s[rows] = self._asked_s(rows[0], num_bytes, call_seconds)
        return found.with_columns(work_s=work_s)

    def _without_curve(self, machine: Machine, call_seconds: CallSeconds | None) -> dict[tuple[int, int], list[int]]:
        """Return rows of collectives that no curve of the machine prices, by number of the collective, and bytes."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        numbers = self.program.columns["call"]
        for row, num_bytes in self.calls:
            name, group = self.program.collectives[number := int(numbers[row])]
            is_asked = call_seconds and f"{name}:{len(group)}" not in machine.costs
            if is_asked or len(group) == 1 or not num_bytes:
                found[number, num_bytes].append(row)
        return found

    def _asked_s(self, row: int, num_bytes: int, call_seconds: CallSeconds) -> float:
        """Return the seconds of a collective. Errors name its node."""
        name, group = self.program.collectives[int(self.program.columns["call"][row])]
        try:
            return call_seconds(name, group, num_bytes)
        except DovetailError as error:
            where = self.program.lines[int(self.program.columns["line"][row])]
            why = error.what + (f": {error.found}" if error.found else "")
            own = f"give the machine a curve '{name}:{len(group)}'"
            hint = error.hint if isinstance(error, CostError) and error.hint else own
            what = f"this {name} of {len(group)} ranks and {num_bytes} bytes has no predicted time"
            raise CostError(what, where=where, found=why, hint=hint) from error


MOST_RANKS = 1 << 20  # tables have an entry for each rank, so a damaged number would exhaust the memory


def to_replay(name: str, num_ranks: int, nodes: Sequence[Node]) -> Replay:
    """Return the Replay of nodes, whose sends and receives match in order for each pair of ranks and tag.

    Raises
    ------
    FileError
        If a message has no partner or another size there, if ranks give a collective different sizes, or if the nodes
        wait for each other in a circle.
    """
    if num_ranks > MOST_RANKS:
        raise FileError(f"{num_ranks} ranks are more than {MOST_RANKS}", where=name)
    for node in nodes:
        if node.num_bytes > MAX_SLOTS:
            raise FileError(f"{node.num_bytes} bytes are more than a message may have", where=node.where)
    order = _sorted(nodes, [node.after for node in nodes])
    partner = _partners(nodes, order)
    queues = _queues(nodes, order)
    _check_sizes(nodes, queues)
    before = [list(node.after) for node in nodes]
    for receive, send in partner.items():
        before[receive].append(send)
    for queue in queues.values():  # these keep their order, whatever the rest does
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


def _check_sizes(nodes: Sequence[Node], queues: dict[tuple[Any, ...], list[int]]) -> None:
    """Raise FileError if the k-th call of a collective has not the same size on all ranks of its group."""
    first: dict[tuple[Any, ...], list[Node]] = defaultdict(list)  # calls of the rank with most of them so far
    for (kind, *_), queue in queues.items():
        counts: dict[tuple[Any, ...], int] = defaultdict(int)
        for node in (nodes[number] for number in queue if kind == MEET):
            key = node.unit, *node.call
            calls, count = first[key], counts[key]
            counts[key] += 1
            if count == len(calls):
                calls.append(node)
            elif (other := calls[count]).num_bytes != node.num_bytes:
                what = f"this {node.call[0]} of rank {node.rank} is of {node.num_bytes} bytes"
                raise FileError(what, where=node.where, found=f"{other.num_bytes} bytes at {other.where}")


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
        rows: dict[int, list[int]] = {}  # of a node: its op; of a MERGE: all ops that it waits for
        seconds, calls = list[float](), list[tuple[int, int]]()
        for number in order:
            node = self.nodes[number]
            after = sorted({row for each in node.after for row in rows[each]})
            if node.kind == MERGE:
                rows[number] = after
                continue
            row = self._add(node, after)
            rows[number] = [row]
            seconds.append(node.seconds if node.kind == CALC else 0.0)
            if node.kind == MEET:
                calls.append((row, node.num_bytes))
        program = self.builder.build()
        workload = Workload({DATA: (Slot((1,), "uint8"),) * program.num_ranks})
        return Replay(program, np.array(seconds, np.float64), workload, tuple(calls))

    def _add(self, node: Node, after: list[int]) -> int:
        kind = Kind.compute if node.kind == CALC else Kind[node.kind]
        more = dict(self._more(node))
        return self.builder.add(kind, node.rank, self._lane(node), after=after, line=node.where, **more)

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
