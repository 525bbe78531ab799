"""to_program: convert the model of a trace to a Program with Prices, which the simulator runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from dovetail.cost.prices import Prices
from dovetail.ir import Builder, Kind, Program
from dovetail.trace.analysis.model_of_trace import model_of
from dovetail.trace.analysis.replay_model import FROM_ROOT, SYNCHRONOUS, ReplayModel
from dovetail.trace.trace import Trace


def to_program(trace: Trace | ReplayModel) -> tuple[Program, Prices]:
    """Return a Program that repeats the calls and work of a trace's ranks, and its Prices as traced.

    Each rank has a compute lane, and a net lane per channel and direction. Compute ops are the ranks' own work. Sends
    and receives begin after the compute op that precedes their call; the compute op after a wait depends on the ops
    waited for. A collective in which all ranks wait for all is one op per rank; a rooted collective becomes messages.
    """
    model = trace if isinstance(trace, ReplayModel) else model_of(trace)
    return _Writer(model).written()


class _Writer:
    def __init__(self, model: ReplayModel) -> None:
        self.model = model
        self.builder = Builder("trace", len(model.steps))
        self.cpu = self.builder.lane("own", "compute")
        self.own = self.builder.kernel("own", ())
        self.costs: list[tuple[float, float, float, bool, int]] = []  # of each op: work, wire, latency, …
        self.depth = Counter((m.src, m.dst, m.key) for m in model.messages)
        self.lanes: dict[tuple[int, Any], int] = {}
        self.num_lanes: Counter[int] = Counter()
        self.rooted: dict[tuple[str, tuple[int, ...]], int] = {}

    def written(self) -> tuple[Program, Prices]:
        for rank, steps in enumerate(self.model.steps):
            _Rank(self, rank).add(steps)
        program = self.builder.build()
        work_s, wire_s, *given = (
            np.array(column) for column in (zip(*self.costs, strict=True) if self.costs else [()] * 5)
        )
        latency_s, rendezvous, num_bytes = given
        more = {"latency_s": latency_s, "rendezvous": rendezvous, "num_bytes": num_bytes}
        return program, Prices.plain(program, work_s, wire_s, **more)

    def lane(self, rank: int, key: Any) -> int:
        """Return the lane of a rank for ops with this key, which need an order only among themselves."""
        if (rank, key) not in self.lanes:
            self.lanes[rank, key] = self.builder.lane(f"net {self.num_lanes[rank]}", "net")
            self.num_lanes[rank] += 1
        return self.lanes[rank, key]

    def add(
        self,
        kind: Kind,
        rank: int,
        lane: int,
        *,
        work_s: float = 0.0,
        wire_s: float = 0.0,
        latency_s: float = 0.0,
        rendezvous: bool = False,
        num_bytes: int = 0,
        **op: Any,
    ) -> int:
        """Append an op and its costs; return its row. Called for every step, so it builds no dictionary."""
        self.costs.append((work_s, wire_s, latency_s, rendezvous, num_bytes))
        return self.builder.add(kind, rank, lane, **op)

    def times(self, number: int) -> tuple[float, float]:
        """Return the seconds of a message on the wire, and its latency in seconds."""
        message = self.model.messages[number]
        if message.delay_s is None:
            least = min(self.model.delays.latency_s, float(self.model.delays(message.num_bytes)))
            return float(self.model.delays(message.num_bytes)) - least, least
        if message.rendezvous:
            return message.delay_s, 0.0
        gap = min(message.gap_s, message.delay_s)
        return gap, message.delay_s - gap


class _Rank:
    """Writes the ops of one rank, step by step."""

    def __init__(self, writer: _Writer, rank: int) -> None:
        self.to, self.rank = writer, rank
        self.waiting: list[int] = []  # ops that the rank's next compute op depends on
        self.last: list[int] = []  # the rank's latest compute op
        self.begun: dict[tuple[str, int], list[int]] = {}  # (wait, message or collective) -> ops that the wait is for
        self.stalled: dict[tuple[int, int, int], list[int]] = {}  # by channel: receives that progress only in a wait
        self.quiet: list[int] = []  # collectives that progress only in a wait
        self.held: list[int] = []  # messages that leave only at the call after the one at `row`
        self.row = -1
        self.own_s = 0.0

    def add(self, steps: Any) -> None:
        for step in steps:
            self.own_s += max(step.seconds, 0.0)
            if step.seconds > 0:
                self._here()  # the step's action comes after this work
            if step.row != self.row:
                self._set_out()
            self.row = step.row
            getattr(self, f"_{step.kind}")(step.number)

    def _here(self) -> list[int]:
        """Return the rank's latest compute op, after adding one for the work and waits so far."""
        if self.own_s > 0 or self.waiting or not self.last:
            after = sorted(set(self.waiting))
            row = self.to.add(Kind.compute, self.rank, self.to.cpu, call=self.to.own, after=after, work_s=self.own_s)
            self.last = [row]
            self.waiting, self.own_s = [], 0.0
        return self.last

    def _own(self, number: int) -> None:
        self._here()

    _end = _own

    def _channel(self, number: int) -> tuple[int, tuple[int, int, int]]:
        message = self.to.model.messages[number]
        key = (message.src, message.dst, message.key)
        return self.to.builder.channel(*key, depth=self.to.depth[key] + 1), key

    def _send(self, number: int) -> None:
        if self.to.model.messages[number].held:
            self.held.append(number)
        else:
            self._set_out()  # messages of one channel keep their order
            self._give(number)

    def _set_out(self) -> None:
        """Send the held messages."""
        held, self.held = self.held, []
        for number in held:
            self._give(number)

    def _give(self, number: int) -> None:
        channel, key = self._channel(number)
        message, (wire, latency) = self.to.model.messages[number], self.to.times(number)
        lane = self.to.lane(self.rank, ("send", key))
        row = self.to.add(
            *(Kind.send, self.rank, lane),
            wire_s=wire,
            latency_s=latency,
            rendezvous=message.rendezvous,
            num_bytes=message.num_bytes,
            chan_out=channel,
            after=self._here(),
        )
        self.begun["sent", number] = [row]

    def _recv(self, number: int) -> None:
        if self.to.model.messages[number].stalls:
            self.stalled.setdefault(self._channel(number)[1], []).append(number)
            return
        self._here()
        self._get_on(self._channel(number)[1])  # messages of one channel keep their order
        self._post(number)

    def _get_on(self, *keys: tuple[int, int, int]) -> None:
        """Post the receives that stalled on these channels."""
        for key in keys:
            for number in self.stalled.pop(key, []):
                self._post(number)

    def _post(self, number: int) -> None:
        """Post a receive, independent of the ops that the rank waits for."""
        channel, key = self._channel(number)
        lane = self.to.lane(self.rank, ("recv", key))
        after, num_bytes = self.last or self._here(), self.to.model.messages[number].num_bytes
        row = self.to.add(Kind.recv, self.rank, lane, chan_in=channel, after=after, num_bytes=num_bytes)
        self.begun["received", number] = [row]

    def _let_on(self) -> None:
        """Let stalled receives and collectives progress, as the library does in every wait."""
        self._get_on(*self.stalled)
        quiet, self.quiet = self.quiet, []
        for number in quiet:
            self._meet(number)

    def _sent(self, number: int) -> None:
        self._let_on()
        if self.to.model.messages[number].rendezvous:
            self.waiting += self.begun.get(("sent", number), [])

    def _received(self, number: int) -> None:
        self._let_on()
        if ("received", number) not in self.begun:
            self._post(number)
        self.waiting += self.begun["received", number]

    def _join(self, number: int) -> None:
        self.quiet.append(number)
        if not self.to.model.collectives[number].stalls:
            quiet, self.quiet = self.quiet, []  # collectives of one group keep their order
            for each in quiet:
                self._meet(each)

    def _meet(self, number: int) -> None:
        it = self.to.model.collectives[number]
        if it.way == SYNCHRONOUS:
            call = self.to.builder.collective(it.name, it.group)
            lane = self.to.lane(self.rank, ("collective", it.group))
            self.begun["joined", number] = [
                self.to.add(Kind.collective, self.rank, lane, call=call, after=self._here(), work_s=it.seconds)
            ]
        else:
            self.begun["joined", number] = list(self._rooted(it))

    def _rooted(self, it: Any) -> list[int]:
        """Add messages from the root to all others, or from all to the root; return the ops this rank waits for."""
        is_root, others = it.root == self.rank, [rank for rank in it.group if rank != it.root]
        gives = (it.way == FROM_ROOT) == is_root
        partners = others if is_root else [it.root]
        after, rows = self._here(), []
        for other in partners:
            src, dst = (self.rank, other) if gives else (other, self.rank)
            key = (src, dst, -1 - self.to.rooted.setdefault((it.way, it.group), len(self.to.rooted)))
            channel = self.to.builder.channel(*key, depth=1 << 20)
            if gives:
                lane = self.to.lane(self.rank, ("send", key))
                self.to.add(Kind.send, self.rank, lane, chan_out=channel, after=after, latency_s=it.seconds)
            else:
                lane = self.to.lane(self.rank, ("recv", key))
                rows.append(self.to.add(Kind.recv, self.rank, lane, chan_in=channel, after=after))
        return rows

    def _joined(self, number: int) -> None:
        self._let_on()
        self.waiting += self.begun.get(("joined", number), [])
