"""to_program: convert the model of a trace to a Program with Prices, which the simulator runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from dovetail.cost.prices import Prices
from dovetail.ir import Builder, Kind, Program
from dovetail.trace.analysis.model_of_trace import model_of
from dovetail.trace.analysis.replay_model import (
    FROM_ROOT,
    SYNCHRONOUS,
    CollectiveCall,
    Message,
    ReplayModel,
    Step,
    StepKind,
)
from dovetail.trace.trace import Trace

DEEP = 1 << 20  # messages of collectives from or to a root that are on their way at once
_COMPUTE, _SEND, _RECV, _COLLECTIVE = map(int, (Kind.compute, Kind.send, Kind.recv, Kind.collective))


def to_program(trace: Trace | ReplayModel) -> tuple[Program, Prices]:
    """Return a Program that repeats the calls and work of a trace's ranks, and its Prices as traced.

    Each rank has a compute lane, and a net lane per channel and direction. Compute ops are the ranks' own work. Sends
    and receives begin after the compute op that precedes their call; the compute op after a wait depends on the ops
    waited for. A collective in which all ranks wait for all is one op per rank; a rooted collective becomes messages.
    """
    model = trace if isinstance(trace, ReplayModel) else model_of(trace)
    return _Writer(model).written()


class _Way(NamedTuple):
    """A channel as one of its ranks uses it: the channel's row, and the lane of the rank's ops."""

    channel: int
    lane: int


class _Writer:
    def __init__(self, model: ReplayModel) -> None:
        self.model = model
        self.builder = Builder("trace", len(model.steps))
        self.cpu = self.builder.lane("own", "compute")
        self.own = self.builder.kernel("own", ())
        self.costs: list[float] = []  # of each op: work, wire, latency, rendezvous, bytes
        self.depth = Counter((m.src, m.dst, m.key) for m in model.messages)
        self.lanes: dict[tuple[int, Any], int] = {}
        self.num_lanes: Counter[int] = Counter()
        self.rooted: dict[tuple[str, tuple[int, ...]], int] = {}
        self.curve: dict[int, tuple[float, float]] = {}  # seconds on the wire, and latency, by bytes

    def written(self) -> tuple[Program, Prices]:
        for rank, steps in enumerate(self.model.steps):
            _Rank(self, rank).add(steps)
        program = self.builder.build()
        work_s, wire_s, latency_s, rendezvous, num_bytes = (np.array(self.costs[i::5]) for i in range(5))
        more = {"latency_s": latency_s, "rendezvous": rendezvous, "num_bytes": num_bytes}
        return program, Prices.plain(program, work_s, wire_s, **more)

    def lane(self, rank: int, key: Any) -> int:
        """Return the lane of a rank for ops with this key, which need an order only among themselves."""
        if (rank, key) not in self.lanes:
            self.lanes[rank, key] = self.builder.lane(f"net {self.num_lanes[rank]}", "net")
            self.num_lanes[rank] += 1
        return self.lanes[rank, key]

    def way(self, rank: int, side: str, key: tuple[int, int, int], depth: int = 0) -> _Way:
        """Return how a rank uses the channel of this key to "send" or "recv"; `depth`: 0: that of its messages."""
        channel = self.builder.channel(*key, depth=depth or self.depth[key] + 1)
        return _Way(channel, self.lane(rank, (side, key)))

    def send(
        self,
        rank: int,
        way: _Way,
        after: list[int],
        times: tuple[float, float],
        waits: bool = False,
        num_bytes: int = 0,
    ) -> int:
        """Append a send; `times`: seconds on the wire, and latency. Return its row."""
        self.costs += (0.0, *times, waits, num_bytes)
        return self.builder.add_bare(_SEND, rank, way.lane, -1, way.channel, -1, after)

    def recv(self, rank: int, way: _Way, after: list[int], num_bytes: int = 0) -> int:
        self.costs += (0.0, 0.0, 0.0, False, num_bytes)
        return self.builder.add_bare(_RECV, rank, way.lane, way.channel, -1, -1, after)

    def work(self, rank: int, seconds: float, after: list[int]) -> int:
        self.costs += (seconds, 0.0, 0.0, False, 0)
        return self.builder.add_bare(_COMPUTE, rank, self.cpu, -1, -1, self.own, after)

    def meet(self, rank: int, it: CollectiveCall, after: list[int]) -> int:
        """Append a rank's part of a collective in which all wait for all; return its row."""
        call, lane = self.builder.collective(it.name, it.group), self.lane(rank, ("collective", it.group))
        self.costs += (it.seconds, 0.0, 0.0, False, 0)
        return self.builder.add_bare(_COLLECTIVE, rank, lane, -1, -1, call, after)

    def times(self, message: Message) -> tuple[float, float]:
        """Return the seconds of a message on the wire, and its latency in seconds."""
        if message.delay_s is None:
            return self._by_curve(message.num_bytes)
        if message.rendezvous:
            return message.delay_s, 0.0
        gap = min(message.gap_s, message.delay_s)
        return gap, message.delay_s - gap

    def _by_curve(self, num_bytes: int) -> tuple[float, float]:
        if num_bytes not in self.curve:
            seconds = float(self.model.delays(num_bytes))
            least = min(self.model.delays.latency_s, seconds)
            self.curve[num_bytes] = seconds - least, least
        return self.curve[num_bytes]


class _Rank:
    """Writes the ops of one rank, step by step."""

    def __init__(self, writer: _Writer, rank: int) -> None:
        self.to, self.rank, self.messages = writer, rank, writer.model.messages
        self.waiting: list[int] = []  # ops that the rank's next compute op depends on
        self.last: list[int] = []  # the rank's latest compute op
        self.sent: dict[int, int] = {}  # message -> the op of its send
        self.received: dict[int, int] = {}
        self.joined: dict[int, list[int]] = {}  # collective -> ops that its wait is for
        self.ways: dict[str, dict[tuple[int, int, int], _Way]] = {"send": {}, "recv": {}}
        self.stalled: dict[tuple[int, int, int], list[int]] = {}  # by channel: receives that progress only in a wait
        self.quiet: list[int] = []  # collectives that progress only in a wait
        self.held: list[int] = []  # messages that leave only at the call after the one at `row`
        self.row = -1
        self.own_s = 0.0

    def add(self, steps: Sequence[Step]) -> None:
        write = {kind: getattr(self, f"_{kind}") for kind in get_args(StepKind)}
        for step in steps:
            if step.seconds > 0:
                self.own_s += step.seconds
                self._here()  # the step's action comes after this work
            if self.held and step.row != self.row:
                self._set_out()
            self.row = step.row
            write[step.kind](step.number)

    def _here(self) -> list[int]:
        """Return the rank's latest compute op, after adding one for the work and waits so far."""
        if self.own_s > 0 or self.waiting or not self.last:
            after = sorted(set(self.waiting)) if len(self.waiting) > 1 else self.waiting
            self.last = [self.to.work(self.rank, self.own_s, after)]
            self.waiting, self.own_s = [], 0.0
        return self.last

    def _own(self, number: int) -> None:
        self._here()

    _end = _own

    def _send(self, number: int) -> None:
        if self.messages[number].held:
            self.held.append(number)
        else:
            if self.held:
                self._set_out()  # messages of one channel keep their order
            self._give(number)

    def _set_out(self) -> None:
        """Send the held messages."""
        held, self.held = self.held, []
        for number in held:
            self._give(number)

    def _way(self, side: str, message: Message) -> _Way:
        ways, key = self.ways[side], (message.src, message.dst, message.key)
        if key not in ways:
            ways[key] = self.to.way(self.rank, side, key)
        return ways[key]

    def _give(self, number: int) -> None:
        it = self.messages[number]
        way, times = self._way("send", it), self.to.times(it)
        self.sent[number] = self.to.send(self.rank, way, self._here(), times, it.rendezvous, it.num_bytes)

    def _recv(self, number: int) -> None:
        it = self.messages[number]
        if it.stalls:
            self.stalled.setdefault((it.src, it.dst, it.key), []).append(number)
            return
        self._here()
        if self.stalled:
            self._get_on((it.src, it.dst, it.key))  # messages of one channel keep their order
        self._post(number)

    def _get_on(self, *keys: tuple[int, int, int]) -> None:
        """Post the receives that stalled on these channels."""
        for key in keys:
            for number in self.stalled.pop(key, []):
                self._post(number)

    def _post(self, number: int) -> None:
        """Post a receive, independent of the ops that the rank waits for."""
        it = self.messages[number]
        after = self.last or self._here()
        self.received[number] = self.to.recv(self.rank, self._way("recv", it), after, it.num_bytes)

    def _let_on(self) -> None:
        """Let stalled receives and collectives progress, as the library does in every wait."""
        if self.stalled:
            self._get_on(*self.stalled)
        quiet, self.quiet = self.quiet, []
        for number in quiet:
            self._meet(number)

    def _sent(self, number: int) -> None:
        self._let_on()
        if self.messages[number].rendezvous and number in self.sent:
            self.waiting.append(self.sent[number])

    def _received(self, number: int) -> None:
        self._let_on()
        if number not in self.received:
            self._post(number)
        self.waiting.append(self.received[number])

    def _join(self, number: int) -> None:
        self.quiet.append(number)
        if not self.to.model.collectives[number].stalls:
            quiet, self.quiet = self.quiet, []  # collectives of one group keep their order
            for each in quiet:
                self._meet(each)

    def _meet(self, number: int) -> None:
        it = self.to.model.collectives[number]
        after = self._here()
        self.joined[number] = [self.to.meet(self.rank, it, after)] if it.way == SYNCHRONOUS else self._rooted(it, after)

    def _rooted(self, it: CollectiveCall, after: list[int]) -> list[int]:
        """Add messages from the root to all others, or from all to the root; return the ops this rank waits for."""
        is_root, others = it.root == self.rank, [rank for rank in it.group if rank != it.root]
        gives, rows = (it.way == FROM_ROOT) == is_root, []
        for other in others if is_root else [it.root]:
            src, dst = (self.rank, other) if gives else (other, self.rank)
            key = (src, dst, -1 - self.to.rooted.setdefault((it.way, it.group), len(self.to.rooted)))
            way = self.to.way(self.rank, "send" if gives else "recv", key, DEEP)
            if gives:
                self.to.send(self.rank, way, after, (0.0, it.seconds))
            else:
                rows.append(self.to.recv(self.rank, way, after))
        return rows

    def _joined(self, number: int) -> None:
        self._let_on()
        self.waiting += self.joined.get(number, [])
